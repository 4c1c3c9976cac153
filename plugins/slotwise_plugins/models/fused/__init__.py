"""`fused`: one decoder for the Llama-like families, described by data. See `spec`."""
