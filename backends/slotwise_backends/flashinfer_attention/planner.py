"""Plans one step for each kind of layer: which rows go together, which kernels serve them.

Steps of single tokens take the decode kernels, all others the prefill kernels; a cascade is the common prefix for all tokens at once and
each row's suffix. What this file does not know: caches, calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from slotwise.interfaces.attention import CROSS, ENCODER, ENCODER_ONLY, AttentionLayer, AttentionSetup, CommonAttentionMetadata
from slotwise_backends.flashinfer_attention.cache_views import slots_per_block
from slotwise_backends.flashinfer_attention.pages import PagedRows, first_seen, paged_rows, shared_prefix, token_rows, windowed_rows
from slotwise_backends.flashinfer_attention.wrappers import DecodePlan, Plan, PlanKey, PrefillPlan, RaggedPlan, WrapperFactory

PlanType = TypeVar("PlanType", bound=Plan)


@dataclass(frozen=True, slots=True)
class Part:
    """A plan and the tokens it serves; None = all."""

    plan: DecodePlan | PrefillPlan | RaggedPlan
    tokens: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Planned:
    """What serves a kind of layer: parts with rows of their own, or of a cascade."""

    parts: tuple[Part, ...]
    is_cascade: bool = False


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
    planned: dict[tuple[str, PlanKey], Planned] = field(default_factory=dict)
    """By attention type and kind of layer."""


class StepPlanner:
    """Keeps the wrappers of one backend instance."""

    def __init__(self, setup: AttentionSetup, factory: WrapperFactory) -> None:
        self.setup, self.factory = setup, factory
        self._idle: dict[tuple[type[Plan], PlanKey], list[Any]] = {}
        self._captured: dict[tuple[int, str, PlanKey], DecodePlan] = {}

    def planned(self, step: StepMetadata, layer: AttentionLayer) -> Planned:
        """Made at the first layer of its kind in the step."""
        key = layer.attention_type, _kind(layer)
        if key not in step.planned:
            step.planned[key] = self._plan_captured(step, *key) if step.is_captured else self._plan_step(step, *key)
        return step.planned[key]

    def take_back(self, step: StepMetadata | None) -> None:
        """The wrappers of a step that is over, to be planned anew."""
        if step is None:
            return
        for plan in (part.plan for planned in step.planned.values() for part in planned.parts):
            self._idle.setdefault((type(plan), plan.key), []).append(plan)

    def _plan_step(self, step: StepMetadata, attention_type: str, kind: PlanKey) -> Planned:
        common = step.common
        if attention_type == CROSS:
            return Planned(self._plan_rows(step, attention_type, kind))
        if common.custom_mask is not None:
            return Planned(self._plan_rows(step, attention_type, replace(kind, has_mask=True)))
        if kind.causal and isinstance(common.causal, torch.Tensor):
            by_row = common.causal.bool().cpu()
            causal = self._plan_rows(step, attention_type, kind, chosen=by_row)
            return Planned((*causal, *self._plan_rows(step, attention_type, replace(kind, causal=False), chosen=~by_row)))
        kind = replace(kind, causal=kind.causal and common.causal is True)
        num_pages = step.common_prefix_len // self.setup.block_size
        if num_pages and kind.causal and kind.window_left < 0 and attention_type not in (ENCODER, ENCODER_ONLY):
            return self._plan_cascade(step, attention_type, kind, num_pages)
        return Planned(self._plan_rows(step, attention_type, kind))

    def _plan_cascade(self, step: StepMetadata, attention_type: str, kind: PlanKey, num_pages: int) -> Planned:
        """No query lies in the prefix, so that all see the whole of it."""
        prefix = shared_prefix(step.common.num_tokens, step.common.block_table, num_pages=num_pages, page_size=self.setup.block_size)
        plan = self._borrow(PrefillPlan, replace(kind, causal=False))
        plan.plan(prefix)
        return Planned((Part(plan, None), *self._plan_rows(step, attention_type, kind, first_page=num_pages)), is_cascade=True)

    def _plan_rows(
        self, step: StepMetadata, attention_type: str, kind: PlanKey, *, chosen: torch.Tensor | None = None, first_page: int = 0
    ) -> tuple[Part, ...]:
        """Of one causality, or masked; nothing where there are no such rows, which the library does not plan."""
        mask = step.common.custom_mask if kind.has_mask else None
        if attention_type in (ENCODER, ENCODER_ONLY):
            tokens = token_rows(step.query_lens, self.factory.workspace.device, chosen)
            if not tokens.num_rows:
                return ()
            ragged = self._borrow(RaggedPlan, kind)
            ragged.plan(tokens, mask)
            return (Part(ragged, tokens.tokens),)
        rows = self._rows(step, kind, _key_lens(step, attention_type), chosen, first_page)
        if not rows.num_rows:
            return ()
        if rows.is_decode and mask is None:
            decode = self._borrow(DecodePlan, kind)
            decode.plan(rows)
            return (Part(decode, rows.tokens),)
        prefill = self._borrow(PrefillPlan, kind)
        prefill.plan(rows, mask)
        return (Part(prefill, rows.tokens),)

    def _rows(self, step: StepMetadata, kind: PlanKey, key_lens: torch.Tensor, chosen: torch.Tensor | None, first_page: int) -> PagedRows:
        table, block_size = step.common.block_table, self.setup.block_size
        if kind.window_left < 0 or not bool(first_seen(step.query_lens, key_lens, kind.window_left).any()):
            return paged_rows(step.query_lens, key_lens, table, page_size=block_size, chosen=chosen, first_page=first_page)
        return self._windowed(step.query_lens, key_lens, table, kind, chosen)

    def _windowed(
        self, query_lens: torch.Tensor, key_lens: torch.Tensor, table: torch.Tensor, kind: PlanKey, chosen: torch.Tensor | None = None
    ) -> PagedRows:
        return windowed_rows(
            query_lens,
            key_lens,
            table,
            block_size=self.setup.block_size,
            slots_per_block=slots_per_block(self.setup.kv_layout, self.setup.block_size, kind.num_kv_heads),
            window_left=kind.window_left,
            chosen=chosen,
        )

    def _plan_captured(self, step: StepMetadata, attention_type: str, kind: PlanKey) -> Planned:
        """Row i is token i. A graph replays as many rows as it captured, so rows without keys are planned too, with a key of the null
        block, and hidden afterwards. The last token of a row sees all its keys, causal or not."""
        is_encoder, has_many = attention_type in (ENCODER, ENCODER_ONLY), bool((step.query_lens > 1).any())
        if step.common.custom_mask is not None or is_encoder or has_many:
            raise NotImplementedError("flashinfer captures decodes of single tokens alone: no custom masks, no encoders, no longer rows")
        key_lens = _key_lens(step, attention_type)
        is_empty = (step.query_lens == 0) | (key_lens == 0)
        key_lens, query_lens = key_lens.masked_fill(is_empty, 1), torch.ones_like(step.query_lens)
        empty = is_empty.to(self.factory.workspace.device)
        table = step.common.block_table[: empty.numel()].masked_fill(empty[:, None], 0)
        if kind.window_left < 0:
            rows = paged_rows(query_lens, key_lens, table, page_size=self.setup.block_size)
        else:
            rows = self._windowed(query_lens, key_lens, table, kind)
        plan = self._captured_plan(rows.num_rows, table.shape[1], attention_type, kind)
        plan.plan(replace(rows, empty=empty))
        return Planned((Part(plan, None),))

    def _captured_plan(self, num_rows: int, table_width: int, attention_type: str, kind: PlanKey) -> DecodePlan:
        """Its buffers hold the longest lists that such rows may have."""
        key = num_rows, attention_type, kind
        if key not in self._captured:
            block_size = self.setup.block_size
            pages_per_row = max(table_width, math.ceil(self.setup.max_model_len / block_size))
            if kind.window_left >= 0:
                pages_per_row = min(pages_per_row * block_size, kind.window_left + 1)
            self._captured[key] = self.factory.make_captured(kind, num_rows=num_rows, max_pages=num_rows * pages_per_row)
        return self._captured[key]

    def _borrow(self, which: type[PlanType], kind: PlanKey) -> PlanType:
        """A wrapper that no plan of this step uses; each holds scratch memory of its own, so they are made once and used again."""
        idle = self._idle.setdefault((which, kind), [])
        plan: PlanType = idle.pop() if idle else self.factory.make(which, kind)
        return plan


def _key_lens(step: StepMetadata, attention_type: str) -> torch.Tensor:
    """[num_reqs] int32, CPU, exact."""
    if attention_type != CROSS:
        return step.key_lens
    assert step.common.encoder_seq_lens is not None  # cross attention brings them
    return step.common.encoder_seq_lens[: step.common.num_reqs].cpu()


def _kind(layer: AttentionLayer) -> PlanKey:
    """Cross attention sees all keys, whatever the layer says of its own sequence."""
    kind = PlanKey.of(layer, causal=layer.causal and layer.attention_type != CROSS)
    return replace(kind, window_left=-1) if layer.attention_type == CROSS else kind
