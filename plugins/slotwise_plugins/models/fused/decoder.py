"""`fused` model: a flat loop over the layers of a Llama-like decoder, on packed matrices and fused element-wise kernels.

    hidden = embedding
    per layer:  norm -> qkv -> norms of heads, rotation -> attention -> output, added to hidden
                norm -> gate and up -> activation, product -> down, added to hidden
    norm -> output head

Hidden states are float32; what goes into matrices and attention has the model's dtype. What this file does not know: how matrices are
stored, which backend attends, where parameters come from.
"""

from __future__ import annotations

import torch

from slotwise.errors import ModelLoadError
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.linear import PackedMatrix
from slotwise.interfaces.model import ForwardBatch, Model, ModelOutput, ModelSetup, ProgressCallback, Weights
from slotwise_plugins.models.attention_trace import trace_attention
from slotwise_plugins.models.fused.parameters import PackingLoader, Parameters
from slotwise_plugins.models.fused.rope_tables import no_rotation, rope_table
from slotwise_plugins.models.fused.spec import LayerSpec, decoder_spec
from slotwise_plugins.models.transformers_model import build_on_meta
from slotwise_plugins.native.availability import missing_library
from slotwise_plugins.native.library import DenseKernels, load_library
from slotwise_plugins.native.row_ops import HeadShape, NativeRowOps, RopeTable, RowOps, TorchRowOps


class FusedModel(Model):
    """A decoder described by a `DecoderSpec`."""

    def __init__(self, setup: ModelSetup) -> None:
        """Raises ModelLoadError for a model that this decoder does not compute."""
        super().__init__(setup)
        if setup.linear is None:
            raise ModelLoadError("the model component fused needs a linear component.")
        self._skeleton = build_on_meta(setup)
        self._attention_layers, _ = trace_attention(self._skeleton)
        self.spec = decoder_spec(self._skeleton)
        self._dtype: torch.dtype = getattr(torch, setup.dtype)
        self._shape = HeadShape(
            num_heads=self.spec.num_heads,
            num_kv_heads=self.spec.num_kv_heads,
            head_dim=self.spec.head_dim,
            eps=self.spec.norm_eps,
        )
        self._layers: tuple[FusedLayer, ...] = ()
        self._parameters = Parameters()
        self._ops: RowOps = TorchRowOps()

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return self._attention_layers

    @property
    def gives_hidden_states(self) -> bool:
        return True

    @property
    def num_bytes(self) -> int:
        """Memory of the parameters."""
        parameters = self._parameters
        tensors = [*parameters.vectors.values(), *([] if parameters.embedding is None else [parameters.embedding])]
        return sum(matrix.num_bytes for matrix in parameters.matrices.values()) + sum(tensor.nbytes for tensor in tensors)

    def load(self, weights: Weights, progress: ProgressCallback | None = None) -> None:
        spec, setup = self.spec, self.setup
        assert setup.linear is not None
        loader = PackingLoader(self._skeleton, spec, setup.linear, setup.device)
        loader.load(weights, progress)
        self._parameters = loader.parameters
        num_positions = setup.max_model_len or self._skeleton.config.get_text_config().max_position_embeddings
        tables = {name: rope_table(self._skeleton, name, num_positions).to(setup.device) for name in spec.ropes}
        self._layers = tuple(FusedLayer(layer, loader.parameters, tables) for layer in spec.layers)
        if torch.device(setup.device).type == "cpu" and missing_library() is None:
            self._ops = NativeRowOps(DenseKernels(load_library()))

    def forward(self, batch: ForwardBatch) -> ModelOutput:
        hidden = self.embed_tokens(batch.input_ids).float()
        rows = Rows(len(hidden), self)
        for index, layer in enumerate(self._layers):
            self._attend(index, layer, hidden, batch, rows)
            self._mlp(layer, hidden, rows)
        return ModelOutput(
            logits=self._logits(self._final_norm(hidden[batch.logits_indices])),
            hidden_states=self._final_norm(hidden) if batch.wants_hidden_states else None,
        )

    def _attend(self, index: int, layer: FusedLayer, hidden: torch.Tensor, batch: ForwardBatch, rows: Rows) -> None:
        self._ops.norm(hidden, layer.attention_norm, self.spec.norm_eps, rows.normed)
        layer.qkv.multiply(rows.normed, rows.qkv)
        self._ops.rope(
            rows.qkv,
            layer.rope,
            batch.positions,
            rows.rotated,
            shape=self._shape,
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
        )
        attended = batch.attention.attend(index, rows.query, rows.key, rows.value).view(len(hidden), -1)
        self._add(layer.output, attended, layer.attention_norm_after, hidden, rows)

    def _mlp(self, layer: FusedLayer, hidden: torch.Tensor, rows: Rows) -> None:
        self._ops.norm(hidden, layer.mlp_norm, self.spec.norm_eps, rows.normed)
        layer.gate_up.multiply(rows.normed, rows.gate_up)
        self._ops.gate(rows.gate_up, self.spec.activation, rows.gated)
        self._add(layer.down, rows.gated, layer.mlp_norm_after, hidden, rows)

    def _add(self, matrix: PackedMatrix, x: torch.Tensor, norm_after: torch.Tensor | None, hidden: torch.Tensor, rows: Rows) -> None:
        """hidden += matrix x, or its norm."""
        if norm_after is None:
            matrix.multiply(x, hidden, adds=True)
        else:
            self._ops.norm(matrix.multiply(x, rows.added), norm_after, self.spec.norm_eps, hidden, adds=True)

    def _final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(hidden, dtype=self._dtype)
        self._ops.norm(hidden, self._parameters.vectors[self.spec.final_norm], self.spec.norm_eps, out)
        return out

    def _logits(self, normed: torch.Tensor) -> torch.Tensor:
        logits = self._parameters.matrices[self._parameters.head].multiply(normed)
        cap = self.spec.logits_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def embed_tokens(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedding = self._parameters.embedding
        if embedding is None:
            rows = self._parameters.matrices[self._parameters.head].rows(token_ids).to(self._dtype)
        else:
            rows = embedding[token_ids]
        return rows * self.spec.embedding_scale if self.spec.embedding_scale != 1.0 else rows

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._logits(hidden_states)


class FusedLayer:
    """One layer's parameters."""

    __slots__ = (
        "attention_norm",
        "attention_norm_after",
        "down",
        "gate_up",
        "key_norm",
        "mlp_norm",
        "mlp_norm_after",
        "output",
        "qkv",
        "query_norm",
        "rope",
    )

    def __init__(self, spec: LayerSpec, parameters: Parameters, tables: dict[str, RopeTable]) -> None:
        matrices = parameters.matrices
        self.qkv, self.output = matrices[spec.qkv], matrices[(spec.output,)]
        self.gate_up, self.down = matrices[spec.gate_up], matrices[(spec.down,)]
        self.attention_norm = parameters.vectors[spec.attention_norm]
        self.mlp_norm = parameters.vectors[spec.mlp_norm]
        self.attention_norm_after = parameters.vector(spec.attention_norm_after)
        self.mlp_norm_after = parameters.vector(spec.mlp_norm_after)
        self.query_norm, self.key_norm = parameters.vector(spec.query_norm), parameters.vector(spec.key_norm)
        self.rope = no_rotation() if spec.rope is None else tables[spec.rope]


class Rows:
    """Memory between the matrices, used by all layers of a step in turn."""

    __slots__ = ("added", "gate_up", "gated", "key", "normed", "qkv", "query", "rotated", "value")

    def __init__(self, num_rows: int, model: FusedModel) -> None:
        spec, dtype, device = model.spec, model._dtype, model.setup.device
        num_heads, num_kv_heads, head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        width = (num_heads + 2 * num_kv_heads) * head_dim

        def rows(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(num_rows, size, dtype=dtype, device=device)

        self.normed = rows(spec.hidden_size, dtype)
        self.added = rows(spec.hidden_size)
        self.qkv = rows(width)
        self.rotated = rows(width, dtype)
        self.gate_up = rows(2 * spec.intermediate_size)
        self.gated = rows(spec.intermediate_size, dtype)
        heads = self.rotated.view(num_rows, -1, head_dim)
        self.query = heads[:, :num_heads]
        self.key, self.value = heads[:, num_heads : num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads :]
