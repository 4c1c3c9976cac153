"""FlashInfer's objects: made once, planned once a step for each kind of layer, run once a layer.

The library's LSE is in base 2, its infinity was 5e4 before version 0.7; what leaves this file is in base e, and minus infinity where no key
was seen.
What this file does not know: batches, the contract.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from slotwise.interfaces.attention import AttentionLayer
from slotwise_backends.flashinfer_attention.cache_views import slot_view
from slotwise_backends.flashinfer_attention.pages import PagedRows, TokenRows

PlanType = TypeVar("PlanType", bound="Plan")
OLD_INFINITY = 5e4
"""`math::inf` of the kernels before version 0.7."""
LOG2_OF_MASKED = 32.0
"""Those kernels add to it, negative, the logarithm of how many keys were masked; there are fewer than 2 ** 32."""
CUDA_CORE_GROUPS = (1, 2, 3, 4, 8)
"""Query heads per KV head that the decode kernels without tensor cores are compiled for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanKey:
    """What a plan depends on besides the rows."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window_left: int
    """Keys seen left of the query's own; -1 = all."""
    soft_cap: float
    """0 = none."""
    causal: bool
    has_mask: bool = False
    """A custom mask replaces causality. Such plans have wrappers of their own: one keeps the kernels it chose at its first plan, and those
    for Hopper take no mask."""

    @classmethod
    def of(cls, layer: AttentionLayer, *, causal: bool) -> PlanKey:
        """For a layer's rows of one causality."""
        return cls(
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            scale=layer.scale,
            window_left=-1 if layer.sliding_window is None else layer.sliding_window - 1,
            soft_cap=layer.logits_soft_cap or 0.0,
            causal=causal,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapperFactory:
    """Makes wrappers that share one scratch memory; they run one after the other."""

    workspace: torch.Tensor
    """uint8, device."""
    kv_layout: str
    """FlashInfer's word: NHD or HND."""
    dtype: torch.dtype
    kv_dtype: torch.dtype
    use_tensor_cores: bool | None

    def make(self, which: type[PlanType], key: PlanKey) -> PlanType:
        """A wrapper of one of FlashInfer's three kinds."""
        import flashinfer

        if issubclass(which, DecodePlan):
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self.workspace, kv_layout=self.kv_layout, use_tensor_cores=self._wants_tensor_cores(key)
            )
        elif issubclass(which, PrefillPlan):
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, kv_layout=self.kv_layout)
        else:
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(self.workspace, kv_layout="NHD")
        return which(wrapper, self, key)

    def make_captured(self, key: PlanKey, *, num_rows: int, max_pages: int) -> DecodePlan:
        """A decode wrapper that keeps its page table in buffers which a graph may capture."""
        import flashinfer

        device = self.workspace.device
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self.workspace,
            kv_layout=self.kv_layout,
            use_cuda_graph=True,
            use_tensor_cores=self._wants_tensor_cores(key),
            paged_kv_indptr_buffer=torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
            paged_kv_indices_buffer=torch.zeros(max_pages, dtype=torch.int32, device=device),
            paged_kv_last_page_len_buffer=torch.ones(num_rows, dtype=torch.int32, device=device),
        )
        plan = DecodePlan(wrapper, self, key)
        plan.empty = torch.zeros(num_rows, dtype=torch.bool, device=device)
        return plan

    def _wants_tensor_cores(self, key: PlanKey) -> bool:
        group_size = key.num_heads // key.num_kv_heads
        if group_size not in CUDA_CORE_GROUPS:
            return True
        return group_size >= 4 if self.use_tensor_cores is None else self.use_tensor_cores


class Plan:
    """One wrapper, for one kind of layer."""

    def __init__(self, wrapper: Any, factory: WrapperFactory, key: PlanKey) -> None:
        self.wrapper, self.factory, self.key = wrapper, factory, key

    @property
    def _facts(self) -> dict[str, Any]:
        key, factory = self.key, self.factory
        return {
            "num_qo_heads": key.num_heads,
            "num_kv_heads": key.num_kv_heads,
            "window_left": key.window_left,
            "logits_soft_cap": key.soft_cap,
            "sm_scale": key.scale,
            "q_data_type": factory.dtype,
            "o_data_type": factory.dtype,
        }


class PagedPlan(Plan):
    """Keys lie in the cache."""

    is_by_key = False

    def run(self, query: torch.Tensor, cache: torch.Tensor, k_scale: float, v_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [num_tokens, num_heads, head_dim] and natural-log LSE [num_tokens, num_heads]. cache: in its logical shape."""
        is_hnd = self.factory.kv_layout == "HND"
        if self.is_by_key:
            pages: Any = slot_view(cache, is_hnd=is_hnd)
        else:
            pages = cache.permute(0, 1, 3, 2, 4) if is_hnd else cache
        return _natural(self.wrapper.run(query.contiguous(), pages, k_scale=k_scale, v_scale=v_scale, return_lse=True))


class DecodePlan(PagedPlan):
    """Rows of one query token each."""

    empty: torch.Tensor | None = None
    """[num_rows] bool, device: rows that see nothing, in a captured plan."""

    def plan(self, rows: PagedRows) -> None:
        """Once a step."""
        self.is_by_key = rows.is_by_key
        if self.empty is not None and rows.empty is not None:
            self.empty.copy_(rows.empty)
        self.wrapper.plan(
            indptr=rows.page_indptr,
            indices=rows.page_indices,
            last_page_len=rows.last_page_len,
            head_dim=self.key.head_dim,
            page_size=rows.page_size,
            kv_data_type=self.factory.kv_dtype,
            **self._facts,
        )

    def run(self, query: torch.Tensor, cache: torch.Tensor, k_scale: float, v_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """As `PagedPlan.run`."""
        output, lse = super().run(query, cache, k_scale, v_scale)
        if self.empty is None:
            return output, lse
        return output.masked_fill(self.empty[:, None, None], 0.0), lse.masked_fill(self.empty[:, None], -math.inf)


class PrefillPlan(PagedPlan):
    """Rows of any number of query tokens."""

    def plan(self, rows: PagedRows, custom_mask: torch.Tensor | None = None) -> None:
        """Once a step. custom_mask: flat bool of all rows; replaces causality."""
        self.is_by_key = rows.is_by_key
        tables = _beside(custom_mask, rows.query_indptr, rows.page_indptr, rows.last_page_len)
        self.wrapper.plan(
            qo_indptr=tables[0],
            paged_kv_indptr=tables[1],
            paged_kv_indices=rows.page_indices,
            paged_kv_last_page_len=tables[2],
            head_dim_qk=self.key.head_dim,
            page_size=rows.page_size,
            custom_mask=custom_mask,
            causal=self.key.causal,
            kv_data_type=self.factory.kv_dtype,
            **self._facts,
        )


class RaggedPlan(Plan):
    """Encoders: keys are this step's tokens."""

    def plan(self, rows: TokenRows, custom_mask: torch.Tensor | None = None) -> None:
        """Once a step; the rows' queries and keys are the same tokens."""
        (indptr,) = _beside(custom_mask, rows.query_indptr)
        self.wrapper.plan(
            qo_indptr=indptr,
            kv_indptr=indptr,
            head_dim_qk=self.key.head_dim,
            custom_mask=custom_mask,
            causal=self.key.causal,
            kv_data_type=self.factory.dtype,
            **self._facts,
        )

    def run(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `PagedPlan.run`."""
        return _natural(self.wrapper.run(query.contiguous(), key.contiguous(), value.contiguous(), return_lse=True))


def _beside(custom_mask: torch.Tensor | None, *tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The library packs a mask on the device, by tables that must lie there too; it reads all others on the CPU."""
    return tables if custom_mask is None else tuple(table.to(custom_mask.device) for table in tables)


def _natural(found: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Base 2 to base e; a row that sees no key has 0 and -inf."""
    output, lse = found
    sees_nothing = torch.isneginf(lse) | ((lse + OLD_INFINITY).abs() <= LOG2_OF_MASKED)
    return output.masked_fill(sees_nothing[..., None], 0.0), (lse * math.log(2)).masked_fill(sees_nothing, -math.inf)
