"""Dense kernels in C: products with packed matrices, norms, rotary embedding, gated activations."""
