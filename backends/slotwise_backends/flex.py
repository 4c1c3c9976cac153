"""`flex` attention: torch's FlexAttention, with every rule as a few lines of Python that inductor can compile.

The keys that some row sees are gathered from the paged cache; masks are a `mask_mod`, soft cap and ALiBi a `score_mod`. Made to be
correct and easy to extend. On a CPU it runs uncompiled unless asked.

What this file does not know: which rows and keys are computed together (`flex_plan`), requests, scheduling.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from slotwise.interfaces.attention import AttentionBackend, AttentionCall, AttentionSetup, MetadataRequest
from slotwise_backends.flex_capabilities import CAPABILITIES, FlexOptions
from slotwise_backends.flex_plan import Pack, StepMetadata
from slotwise_backends.key_memory import KeyReader
from slotwise_backends.key_visibility import PlanKey

MAX_SHAPES = 512
"""Padded shapes and layer rules compiled before torch refuses; its own limit of 8 is made for code that should not vary."""
MIN_COMPILED_DIM, MAX_COMPILED_DIM = 16, 256
ScoreMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class FlexAttention(AttentionBackend):
    """Attention through FlexAttention."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        self.options = setup.options if isinstance(setup.options, FlexOptions) else FlexOptions()
        self._is_cuda = setup.device.startswith("cuda")
        self._wants_compiled = self._is_cuda if self.options.compile is None else self.options.compile
        self._reader = KeyReader(setup)

    def build_metadata(self, request: MetadataRequest) -> StepMetadata:
        common = request.common
        return StepMetadata(
            common=common,
            kv_layout=self.setup.kv_layout,
            block_size=self.setup.block_size,
            max_scores=self.options.max_scores,
            starts=common.query_start_loc_cpu[: common.num_reqs + 1].tolist(),
            seq_lens=common.seq_lens[: common.num_reqs].tolist(),
        )

    def forward(self, call: AttentionCall) -> None:
        metadata: StepMetadata | None = call.metadata
        if metadata is None:
            call.output.zero_()
            return
        is_compiled = self._is_compiled(call)
        dtype = call.query.dtype if is_compiled and self._is_cuda else torch.promote_types(call.query.dtype, torch.float32)
        key = PlanKey.of(call.layer, dtype, explicit=False)
        plan = metadata.plan(key, is_compiled=is_compiled)
        for pack in plan.packs:
            self._attend(call, key, pack, is_compiled=is_compiled)
        _clear(call, slice(metadata.starts[-1], None))
        if plan.blind_rows is not None:
            _clear(call, plan.blind_rows)

    def _is_compiled(self, call: AttentionCall) -> bool:
        """Compiling is wanted and torch's kernels can serve the layer; those for CPUs return no LSE."""
        layer = call.layer
        has_dims = MIN_COMPILED_DIM <= layer.head_dim <= MAX_COMPILED_DIM and not layer.is_mla
        has_lse = self._is_cuda or (call.lse is None and call.sinks is None)
        return self._wants_compiled and has_dims and has_lse and call.query.dtype != torch.float64

    def _attend(self, call: AttentionCall, key: PlanKey, pack: Pack, *, is_compiled: bool) -> None:
        wants_lse = call.lse is not None or call.sinks is not None
        k, v = self._reader.read(call, key, pack.keys, key.dtype)
        result = _flex_attention(
            call.query.index_select(0, pack.query_rows).to(key.dtype).transpose(0, 1)[None],
            k,
            v,
            score_mod=_score_mod(call, pack),
            block_mask=pack.block_mask,
            scale=call.layer.scale,
            enable_gqa=call.layer.num_heads != call.layer.num_kv_heads,
            is_compiled=is_compiled,
            return_aux=AuxRequest(lse=True) if wants_lse else None,
        )
        output, lse = (result[0], result[1].lse) if wants_lse else (result, None)
        query_rows = pack.query_rows[: pack.num_real_rows]
        output = output[0].transpose(0, 1)[: pack.num_real_rows]
        if lse is not None:
            lse = lse[0].transpose(0, 1)[: pack.num_real_rows]
            output, lse = _with_sinks(call, output, lse)
            if call.lse is not None:
                call.lse.index_copy_(0, query_rows, lse.to(call.lse.dtype))
        call.output.index_copy_(0, query_rows, output.to(call.output.dtype))


def _score_mod(call: AttentionCall, pack: Pack) -> ScoreMod | None:
    """Soft cap, then ALiBi; FlexAttention has scaled before and masks afterwards."""
    cap, slopes = call.layer.logits_soft_cap, call.alibi_slopes
    if not cap and slopes is None:
        return None
    position_of_row, position_of_key = pack.position_of_row, pack.position_of_key

    def score_mod(score: torch.Tensor, _batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        if cap:
            score = cap * torch.tanh(score / cap)
        if slopes is not None:
            score = score - slopes[head] * (position_of_row[row] - position_of_key[column]).abs()
        return score

    return score_mod


def _with_sinks(call: AttentionCall, output: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [num_rows, num_heads, value_dim] and LSE [num_rows, num_heads] with one more logit in each denominator.

    Of several ranks that share a sequence the first one counts it.
    """
    if call.sinks is None or call.metadata.common.context_parallel_rank > 0:
        return output, lse
    sinks = call.sinks.to(lse.dtype)
    return output * torch.sigmoid(lse - sinks)[..., None], torch.logaddexp(lse, sinks)


def _clear(call: AttentionCall, rows: slice | torch.Tensor) -> None:
    """Rows that see no key."""
    call.output[rows] = 0
    if call.lse is not None:
        call.lse[rows] = -math.inf


def _flex_attention(*args: Any, is_compiled: bool, **kwargs: Any) -> Any:
    if not is_compiled:
        return flex_attention(*args, **kwargs)
    with torch._dynamo.config.patch(recompile_limit=MAX_SHAPES, accumulated_recompile_limit=MAX_SHAPES):
        return _compiled_flex_attention()(*args, **kwargs)


@functools.cache
def _compiled_flex_attention() -> Callable[..., Any]:
    """One function for all shapes, each compiled at its first use.

    Not `dynamic`: torch 2.13 then writes C++ that does not compile as soon as a mask reads tensors. `fullgraph`: beyond the limit comes an
    error, not uncompiled code.
    """
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return compiled
