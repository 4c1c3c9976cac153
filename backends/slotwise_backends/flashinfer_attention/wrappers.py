"""FlashInfer's objects: made once, planned once a step for each kind of layer, run once a layer.

The library's LSE is in base 2; what leaves this file is in base e. What this file does not know: batches, the contract.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from slotwise.interfaces.attention import AttentionLayer
from slotwise_backends.flashinfer_attention.pages import PagedRows

PlanType = TypeVar("PlanType", bound="Plan")


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
    page_size: int
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
        return DecodePlan(wrapper, self, key)

    def _wants_tensor_cores(self, key: PlanKey) -> bool:
        return key.num_heads // key.num_kv_heads >= 4 if self.use_tensor_cores is None else self.use_tensor_cores


class Plan:
    """One wrapper, for one kind of layer."""

    def __init__(self, wrapper: Any, factory: WrapperFactory, key: PlanKey) -> None:
        self.wrapper, self.factory, self.key = wrapper, factory, key

    @property
    def _facts(self) -> dict[str, Any]:
        key, factory = self.key, self.factory
        return {
            "window_left": key.window_left,
            "logits_soft_cap": key.soft_cap,
            "sm_scale": key.scale,
            "q_data_type": factory.dtype,
            "o_data_type": factory.dtype,
        }


class DecodePlan(Plan):
    """Rows of one query token each."""

    def plan(self, rows: PagedRows) -> None:
        """Once a step."""
        key, factory = self.key, self.factory
        self.wrapper.plan(
            indptr=rows.page_indptr,
            indices=rows.page_indices,
            last_page_len=rows.last_page_len,
            num_qo_heads=key.num_heads,
            num_kv_heads=key.num_kv_heads,
            head_dim=key.head_dim,
            page_size=factory.page_size,
            kv_data_type=factory.kv_dtype,
            **self._facts,
        )

    def run(self, query: torch.Tensor, cache: torch.Tensor, k_scale: float, v_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [num_tokens, num_heads, head_dim] and natural-log LSE [num_tokens, num_heads]."""
        return _natural(self.wrapper.run(query.contiguous(), cache, k_scale=k_scale, v_scale=v_scale, return_lse=True))


class PrefillPlan(Plan):
    """Rows of any number of query tokens."""

    def plan(self, rows: PagedRows, custom_mask: torch.Tensor | None = None) -> None:
        """Once a step. custom_mask: flat bool of all rows; replaces causality."""
        key, factory = self.key, self.factory
        self.wrapper.plan(
            qo_indptr=rows.query_indptr,
            paged_kv_indptr=rows.page_indptr,
            paged_kv_indices=rows.page_indices,
            paged_kv_last_page_len=rows.last_page_len,
            num_qo_heads=key.num_heads,
            num_kv_heads=key.num_kv_heads,
            head_dim_qk=key.head_dim,
            page_size=factory.page_size,
            custom_mask=custom_mask,
            causal=key.causal,
            kv_data_type=factory.kv_dtype,
            **self._facts,
        )

    def run(self, query: torch.Tensor, cache: torch.Tensor, k_scale: float, v_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """As `DecodePlan.run`."""
        return _natural(self.wrapper.run(query.contiguous(), cache, k_scale=k_scale, v_scale=v_scale, return_lse=True))


class RaggedPlan(Plan):
    """Encoders: keys are this step's tokens."""

    def plan(self, indptr: torch.Tensor) -> None:
        """indptr: [num_rows + 1] int32, CPU, of queries and keys alike."""
        key = self.key
        self.wrapper.plan(
            qo_indptr=indptr,
            kv_indptr=indptr,
            num_qo_heads=key.num_heads,
            num_kv_heads=key.num_kv_heads,
            head_dim_qk=key.head_dim,
            causal=key.causal,
            kv_data_type=self.factory.dtype,
            **self._facts,
        )

    def run(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `DecodePlan.run`."""
        return _natural(self.wrapper.run(query.contiguous(), key.contiguous(), value.contiguous(), return_lse=True))


def _natural(found: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A row whose mask hides every key: 0 and -inf."""
    output, lse = found
    sees_nothing = torch.isneginf(lse)
    return output.masked_fill(sees_nothing[..., None], 0.0), lse * math.log(2)
