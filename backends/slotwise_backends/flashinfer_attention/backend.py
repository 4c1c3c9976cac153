"""`flashinfer`: paged, ragged batches through the FlashInfer library.

Each step is planned once for every kind of layer (window, scale, soft cap, heads), which reads the lengths back from the device; the
layers of a kind then run without the CPU. Steps of single tokens take the decode kernels, all others the prefill kernels; a cascade is the
common prefix for all tokens at once and each row's suffix, merged by LSE.

What this file does not know: FlashInfer's arguments (`wrappers`), its page tables (`pages`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from slotwise.interfaces.attention import (
    CROSS,
    ENCODER,
    ENCODER_ONLY,
    HND,
    AttentionBackend,
    AttentionCall,
    AttentionLayer,
    AttentionSetup,
    CommonAttentionMetadata,
    MetadataRequest,
)
from slotwise_backends.flashinfer_attention.capabilities import CAPABILITIES, FlashInferOptions
from slotwise_backends.flashinfer_attention.pages import PagedRows, paged_rows, shared_prefix
from slotwise_backends.flashinfer_attention.wrappers import DecodePlan, Plan, PlanKey, PrefillPlan, RaggedPlan, WrapperFactory
from slotwise_backends.lse_merge import merge_parts

PlanType = TypeVar("PlanType", bound=Plan)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and the tokens it serves."""

    plan: DecodePlan | PrefillPlan
    tokens: torch.Tensor | None


@dataclass(kw_only=True, slots=True)
class StepMetadata:
    """One step, and what was planned for it so far."""

    common: CommonAttentionMetadata
    query_lens: torch.Tensor
    """[num_reqs] int32, CPU."""
    key_lens: torch.Tensor
    """[num_reqs] int32, CPU, exact."""
    common_prefix_len: int
    is_captured: bool
    planned: dict[PlanKey, tuple[Planned, ...]] = field(default_factory=dict)
    """Parts that together serve a kind of layer; a cascade's prefix first."""
    ragged: dict[PlanKey, RaggedPlan] = field(default_factory=dict)
    cascades: set[PlanKey] = field(default_factory=set)


class FlashInferAttention(AttentionBackend):
    """Attention by the FlashInfer library."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        options = setup.options if isinstance(setup.options, FlashInferOptions) else FlashInferOptions()
        self.factory = WrapperFactory(
            workspace=torch.zeros(options.workspace_mib * 2**20, dtype=torch.uint8, device=setup.device),
            kv_layout="HND" if setup.kv_layout == HND else "NHD",
            page_size=setup.block_size,
            dtype=getattr(torch, setup.dtype),
            kv_dtype=getattr(torch, setup.kv_dtype),
            use_tensor_cores=options.use_tensor_cores,
        )
        self._idle: dict[tuple[type[Plan], PlanKey], list[Any]] = {}
        self._captured: dict[tuple[int, PlanKey], DecodePlan] = {}
        self._last: StepMetadata | None = None

    def build_metadata(self, request: MetadataRequest) -> StepMetadata:
        self._take_back(self._last)
        common, num_reqs = request.common, request.common.num_reqs
        starts = common.query_start_loc_cpu[: num_reqs + 1]
        step = StepMetadata(
            common=common,
            query_lens=starts[1:] - starts[:-1],
            key_lens=common.seq_lens[:num_reqs].cpu(),
            common_prefix_len=request.common_prefix_len,
            is_captured=request.for_graph_capture,
        )
        if step.is_captured:
            for layer in self.setup.layers:
                self._planned(step, layer)
        else:
            self._last = step
        return step

    def forward(self, call: AttentionCall) -> None:
        step: StepMetadata | None = call.metadata
        call.output.zero_()
        if call.lse is not None:
            call.lse.fill_(-math.inf)
        if step is None:
            return
        if call.layer.attention_type in (ENCODER, ENCODER_ONLY):
            self._encode(call, step)
            return
        cache = call.kv_cache.permute(0, 1, 3, 2, 4) if self.setup.kv_layout == HND else call.kv_cache
        kind = _kind(call.layer)
        planned = self._planned(step, call.layer)
        results = [
            (each.tokens, each.plan.run(_take(call.query, each.tokens, step), cache, call.k_scale, call.v_scale)) for each in planned
        ]
        if kind in step.cascades:
            results = [(None, merge_parts([output for _, (output, _) in results], [lse for _, (_, lse) in results]))]
        for tokens, (output, lse) in results:
            self._put(call, step, tokens, output, lse)

    def _encode(self, call: AttentionCall, step: StepMetadata) -> None:
        assert call.key is not None  # encoders bring them
        assert call.value is not None
        key = PlanKey.of(call.layer, causal=call.layer.causal)
        num_tokens = step.common.num_tokens
        if key not in step.ragged:
            plan = step.ragged[key] = self._borrow(RaggedPlan, key)
            plan.plan(step.common.query_start_loc_cpu[: step.common.num_reqs + 1])
        output, lse = step.ragged[key].run(call.query[:num_tokens], call.key[:num_tokens], call.value[:num_tokens])
        self._put(call, step, None, output, lse)

    def _put(self, call: AttentionCall, step: StepMetadata, tokens: torch.Tensor | None, output: torch.Tensor, lse: torch.Tensor) -> None:
        where = slice(0, step.common.num_tokens) if tokens is None else tokens
        call.output[where] = output
        if call.lse is not None:
            call.lse[where] = lse

    def _planned(self, step: StepMetadata, layer: AttentionLayer) -> tuple[Planned, ...]:
        """Made at the first layer of its kind in the step."""
        kind = _kind(layer)
        if kind not in step.planned:
            step.planned[kind] = self._plan_step(step, layer, kind)
        return step.planned[kind]

    def _plan_step(self, step: StepMetadata, layer: AttentionLayer, kind: PlanKey) -> tuple[Planned, ...]:
        common = step.common
        if step.is_captured:
            return (self._plan_captured(step, kind),)
        if layer.attention_type == CROSS:
            assert common.encoder_seq_lens is not None  # cross attention brings them
            return self._plan_rows(self._rows(step, key_lens=common.encoder_seq_lens.cpu()), kind)
        if common.custom_mask is not None:
            plan = self._borrow(PrefillPlan, kind)
            rows = self._rows(step)
            plan.plan(rows, common.custom_mask)
            return (Planned(plan, rows.tokens),)
        if not kind.causal or common.causal is True:
            return self._plan_causal(step, kind)
        if common.causal is False:
            return self._plan_rows(self._rows(step), _with_causality(kind, False))
        by_row = common.causal.bool().cpu()
        return tuple(
            planned
            for causal in (True, False)
            if bool((by_row == causal).any())
            for planned in self._plan_rows(self._rows(step, chosen=by_row == causal), _with_causality(kind, causal))
        )

    def _plan_causal(self, step: StepMetadata, kind: PlanKey) -> tuple[Planned, ...]:
        """All rows alike: in one part, or as a cascade."""
        num_pages = step.common_prefix_len // self.setup.block_size
        if not num_pages or kind.window_left >= 0 or not kind.causal:
            return self._plan_rows(self._rows(step), kind)
        step.cascades.add(kind)
        prefix_kind = _with_causality(kind, False)
        prefix = shared_prefix(step.common.num_tokens, step.common.block_table, num_pages=num_pages, page_size=self.setup.block_size)
        plan = self._borrow(PrefillPlan, prefix_kind)
        plan.plan(prefix)
        return (Planned(plan, None), *self._plan_rows(self._rows(step, first_page=num_pages), kind))

    def _plan_rows(self, rows: PagedRows, kind: PlanKey) -> tuple[Planned, ...]:
        if not rows.num_rows:
            return ()
        plan: DecodePlan | PrefillPlan = self._borrow(DecodePlan, kind) if rows.is_decode else self._borrow(PrefillPlan, kind)
        plan.plan(rows)
        return (Planned(plan, rows.tokens),)

    def _plan_captured(self, step: StepMetadata, kind: PlanKey) -> Planned:
        rows = self._rows(step)
        plan = self._captured.get((rows.num_rows, kind))
        if plan is None:
            max_pages = rows.num_rows * math.ceil(self.setup.max_model_len / self.setup.block_size)
            plan = self._captured[rows.num_rows, kind] = self.factory.make_captured(kind, num_rows=rows.num_rows, max_pages=max_pages)
        plan.plan(rows)
        return Planned(plan, rows.tokens)

    def _rows(
        self, step: StepMetadata, *, key_lens: torch.Tensor | None = None, chosen: torch.Tensor | None = None, first_page: int = 0
    ) -> PagedRows:
        return paged_rows(
            step.query_lens,
            step.key_lens if key_lens is None else key_lens,
            step.common.block_table,
            page_size=self.setup.block_size,
            chosen=chosen,
            first_page=first_page,
        )

    def _borrow(self, which: type[PlanType], kind: PlanKey) -> PlanType:
        """A wrapper that no plan of this step uses; each holds scratch memory of its own, so they are made once and used again."""
        idle = self._idle.setdefault((which, kind), [])
        plan: PlanType = idle.pop() if idle else self.factory.make(which, kind)
        return plan

    def _take_back(self, step: StepMetadata | None) -> None:
        """The wrappers of a step that is over."""
        if step is None:
            return
        for plan in (*step.ragged.values(), *(each.plan for parts in step.planned.values() for each in parts)):
            self._idle.setdefault((type(plan), plan.key), []).append(plan)


def _take(query: torch.Tensor, tokens: torch.Tensor | None, step: StepMetadata) -> torch.Tensor:
    return query[: step.common.num_tokens] if tokens is None else query[tokens]


def _kind(layer: AttentionLayer) -> PlanKey:
    return PlanKey.of(layer, causal=layer.causal and layer.attention_type != CROSS)


def _with_causality(kind: PlanKey, causal: bool) -> PlanKey:
    return replace(kind, causal=causal)
