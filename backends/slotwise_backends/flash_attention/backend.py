"""`flash_attention`: paged, ragged batches through the FlashAttention library.

The library aligns causality at the end of query and keys, as the contract does; its window counts the keys beside the query's own
position, so a window of W is (W - 1, 0). A cascade is two calls, over the common prefix for all tokens at once and over each row's
suffix, merged by LSE.

What this file does not know: how a version of the library is called.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from slotwise.interfaces.attention import (
    CROSS,
    ENCODER,
    ENCODER_ONLY,
    AttentionBackend,
    AttentionCall,
    AttentionLayer,
    AttentionSetup,
    CommonAttentionMetadata,
    MetadataRequest,
)
from slotwise_backends.captured_tensors import CapturedTensors
from slotwise_backends.flash_attention.capabilities import CAPABILITIES, FlashAttentionOptions
from slotwise_backends.flash_attention.choice import Wish, choose_library
from slotwise_backends.flash_attention.work import Rows, Work
from slotwise_backends.lse_merge import merge_parts


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Rows that one call serves: all of them, or those of one causality where rows differ in it."""

    tokens: torch.Tensor | None
    """Indices of their tokens; None = all, in order."""
    rows: Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetadata:
    """One step."""

    num_tokens: int
    phases: tuple[Phase, ...]
    encoder_seq_lens: torch.Tensor | None
    max_encoder_len: int
    common_prefix_len: int


class FlashAttention(AttentionBackend):
    """Attention by the FlashAttention library."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        self.options = setup.options if isinstance(setup.options, FlashAttentionOptions) else FlashAttentionOptions()
        device = torch.device(setup.device)
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        wish = Wish(
            capability=capability,
            block_size=setup.block_size,
            head_dims=tuple(layer.head_dim for layer in setup.layers),
            num_splits=self.options.num_splits,
        )
        self.library = choose_library(self.options.version, wish)
        self._captured = CapturedTensors()

    def build_metadata(self, request: MetadataRequest) -> StepMetadata:
        common, captured = request.common, request.for_graph_capture
        rows = Rows(
            query_start_loc=common.query_start_loc[: common.num_reqs + 1],
            key_lens=common.seq_lens[: common.num_reqs],
            max_query_len=common.max_query_len,
            max_key_len=self.setup.max_model_len if captured else common.max_seq_len,
            block_table=common.block_table[: common.num_reqs],
            causal=True,
        )
        if captured:
            rows = self._keep(rows, common)
        return StepMetadata(
            num_tokens=common.num_tokens,
            phases=_phases(rows, common.causal),
            encoder_seq_lens=common.encoder_seq_lens,
            max_encoder_len=self.setup.max_model_len,
            common_prefix_len=0 if captured else request.common_prefix_len,
        )

    def forward(self, call: AttentionCall) -> None:
        step: StepMetadata | None = call.metadata
        call.output[0 if step is None else step.num_tokens :].zero_()
        if call.lse is not None:
            call.lse[0 if step is None else step.num_tokens :].fill_(-math.inf)
        if step is None:
            return
        for phase in step.phases:
            tokens = slice(0, step.num_tokens) if phase.tokens is None else phase.tokens
            output, lse = self._attend(call, step, phase, call.query[tokens])
            call.output[tokens] = output
            if call.lse is not None:
                call.lse[tokens] = lse

    def _attend(self, call: AttentionCall, step: StepMetadata, phase: Phase, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [num_tokens, num_heads, head_dim] and LSE [num_tokens, num_heads]."""
        layer = call.layer
        if layer.attention_type in (ENCODER, ENCODER_ONLY):
            assert call.key is not None  # encoders bring them
            assert call.value is not None
            tokens = slice(0, step.num_tokens) if phase.tokens is None else phase.tokens
            work = self._work(layer, query, call.key[tokens], call.value[tokens], replace(phase.rows, block_table=None))
            return self._run(work)
        rows = phase.rows
        if layer.attention_type == CROSS:
            assert step.encoder_seq_lens is not None  # cross attention brings them
            rows = replace(rows, key_lens=step.encoder_seq_lens, max_key_len=step.max_encoder_len, causal=False)
        work = self._work(layer, query, call.kv_cache[:, 0], call.kv_cache[:, 1], rows)
        if step.common_prefix_len and layer.sliding_window is None and layer.attention_type != CROSS and len(step.phases) == 1:
            return self._cascade(work, step.common_prefix_len)
        return self._run(work)

    def _cascade(self, work: Work, prefix_len: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = work.rows
        assert rows.block_table is not None
        num_tokens = work.query.shape[0]
        one_row = torch.tensor([0, num_tokens], dtype=torch.int32, device=work.query.device)
        prefix = Rows(
            query_start_loc=one_row,
            key_lens=torch.full((1,), prefix_len, dtype=torch.int32, device=work.query.device),
            max_query_len=num_tokens,
            max_key_len=prefix_len,
            block_table=rows.block_table[:1],
            causal=False,
        )
        suffix = replace(
            rows,
            key_lens=(rows.key_lens - prefix_len).clamp(min=0),
            max_key_len=max(rows.max_key_len - prefix_len, 1),
            block_table=rows.block_table[:, prefix_len // self.setup.block_size :].contiguous(),
        )
        parts = [self._run(replace(work, rows=each)) for each in (prefix, suffix)]
        return merge_parts([output for output, _ in parts], [lse for _, lse in parts])

    def _run(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
        """A row without keys gets 0 and -inf, whatever the library makes of it. The lengths tell, not the LSE: an infinite one may come
        from NaN too, which must not be hidden."""
        output, lse = self.library.attend(work)
        rows, lse = work.rows, lse.transpose(0, 1)
        query_lens = rows.query_start_loc[1:] - rows.query_start_loc[:-1]
        sees_nothing = torch.repeat_interleave(rows.key_lens == 0, query_lens, output_size=output.shape[0])[:, None]
        return output.masked_fill(sees_nothing[..., None], 0.0), lse.masked_fill(sees_nothing, -math.inf)

    def _work(self, layer: AttentionLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Rows) -> Work:
        causal = rows.causal and layer.causal
        window = None
        if layer.sliding_window is not None:
            window = (layer.sliding_window - 1, 0 if causal else layer.sliding_window - 1)
        return Work(
            query=query,
            key=key,
            value=value,
            rows=replace(rows, causal=causal),
            scale=layer.scale,
            window=window,
            soft_cap=layer.logits_soft_cap or 0.0,
            num_splits=self.options.num_splits,
        )

    def _keep(self, rows: Rows, common: CommonAttentionMetadata) -> Rows:
        """The rows in tensors that the next such step overwrites."""
        assert rows.block_table is not None
        kept = self._captured.refresh(
            (common.num_reqs, common.num_tokens),
            {"query_start_loc": rows.query_start_loc, "key_lens": rows.key_lens, "block_table": rows.block_table},
            {"block_table": math.ceil(self.setup.max_model_len / self.setup.block_size)},
        )
        return replace(rows, query_start_loc=kept["query_start_loc"], key_lens=kept["key_lens"], block_table=kept["block_table"])


def _phases(rows: Rows, causal: bool | torch.Tensor) -> tuple[Phase, ...]:
    """One for all rows; two where some rows are causal and some are not, since a call has one causality."""
    if isinstance(causal, bool):
        return (Phase(tokens=None, rows=replace(rows, causal=causal)),)
    return tuple(_select(rows, causal.bool() == wanted, wanted) for wanted in (True, False) if bool((causal.bool() == wanted).any()))


def _select(rows: Rows, chosen: torch.Tensor, causal: bool) -> Phase:
    lens = rows.query_start_loc[1:] - rows.query_start_loc[:-1]
    tokens = torch.repeat_interleave(chosen, lens).nonzero().squeeze(1)
    starts = torch.zeros(int(chosen.sum()) + 1, dtype=torch.int32, device=lens.device)
    torch.cumsum(lens[chosen], 0, out=starts[1:])
    assert rows.block_table is not None
    selected = replace(rows, query_start_loc=starts, key_lens=rows.key_lens[chosen], block_table=rows.block_table[chosen], causal=causal)
    return Phase(tokens=tokens, rows=selected)
