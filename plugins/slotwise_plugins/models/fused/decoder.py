"""`fused` model: a Llama-like decoder as chains of row-wise operations, with an attention between each two.

What this file does not know: what is in a chain (`links`), how matrices are stored, which backend attends, where parameters come from.
"""

from __future__ import annotations

import torch

from slotwise.errors import ModelLoadError
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import ForwardBatch, Model, ModelOutput, ModelSetup, ProgressCallback, Weights
from slotwise_plugins.models.attention_trace import trace_attention
from slotwise_plugins.models.fused.links import decoder_links, row_layouts
from slotwise_plugins.models.fused.parameters import PackingLoader, Parameters
from slotwise_plugins.models.fused.rope_tables import rope_table
from slotwise_plugins.models.fused.spec import decoder_spec
from slotwise_plugins.models.transformers_model import build_on_meta
from slotwise_plugins.native.availability import missing_library
from slotwise_plugins.native.chain import BLOCK_ROWS, Chain, Workspace, make_chain
from slotwise_plugins.native.library import DenseKernels, load_library
from slotwise_plugins.native.row_ops import NativeRowOps, RowOps, TorchRowOps


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
        is_cpu = torch.device(setup.device).type == "cpu"
        self._workspace = Workspace(row_layouts(self.spec, self._dtype), setup.device, BLOCK_ROWS if is_cpu else None)
        self._parameters = Parameters()
        self.chains: list[Chain] = []
        """One more than there are layers."""
        self.kernels = DenseKernels(load_library()) if is_cpu and missing_library() is None else None
        self.ops: RowOps = TorchRowOps() if self.kernels is None else NativeRowOps(self.kernels)

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

    @property
    def num_weights(self) -> int:
        """Of all matrices; each is multiplied with once per token."""
        return sum(matrix.out_features * matrix.in_features for matrix in self._parameters.matrices.values())

    def load(self, weights: Weights, progress: ProgressCallback | None = None) -> None:
        spec, setup = self.spec, self.setup
        assert setup.linear is not None
        loader = PackingLoader(self._skeleton, spec, setup.linear, setup.device)
        loader.load(weights, progress)
        self._parameters = loader.parameters
        num_positions = setup.max_model_len or self._skeleton.config.get_text_config().max_position_embeddings
        tables = {name: rope_table(self._skeleton, name, num_positions).to(setup.device) for name in spec.ropes}
        links = decoder_links(spec, self._parameters, tables)
        self.chains = [make_chain(each, self._workspace, self.ops, self.kernels) for each in links]

    def forward(self, batch: ForwardBatch) -> ModelOutput:
        num_tokens = len(batch.positions)
        self._workspace.begin_step(num_tokens)
        hidden = self._workspace.whole("hidden", num_tokens)
        hidden.copy_(self.embed_tokens(batch.input_ids))
        query, key, value = self._heads(num_tokens)
        *chains, last = self.chains
        for index, chain in enumerate(chains):
            chain.run(batch.positions)
            attended = batch.attention.attend(index, query, key, value).view(num_tokens, -1)
            self._workspace.bind("attended", attended)
        if batch.wants_hidden_states:
            last.run(batch.positions)
            normed = self._final_norm(hidden)
            return ModelOutput(logits=self._logits(normed[batch.logits_indices]), hidden_states=normed)
        wanted = batch.logits_indices  # after the last attention nobody looks at the other rows
        hidden = self._workspace.bind("hidden", hidden[wanted])
        self._workspace.bind("attended", attended[wanted])
        last.run(batch.positions[wanted])
        return ModelOutput(logits=self._logits(self._final_norm(hidden)))

    def _heads(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where chains leave queries, keys and values for attention, each [num_tokens, heads, head_dim]."""
        spec = self.spec
        heads = self._workspace.whole("rotated", num_tokens).view(num_tokens, -1, spec.head_dim)
        query, key, value = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        return query, key, value

    def _final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(hidden, dtype=self._dtype)
        self.ops.norm(hidden, self._parameters.vectors[self.spec.final_norm], self.spec.norm_eps, out)
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
