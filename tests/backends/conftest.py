"""A paged attention case small enough to compute by hand: layer, cache, block tables and one step's batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from slotwise.engine.kv_layout import allocate, standard_layout
from slotwise.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionLayer,
    AttentionSetup,
    CommonAttentionMetadata,
    KVLayoutRequest,
    KVWrite,
    MetadataRequest,
)
from slotwise_backends.cpu_attention.backend import CpuAttention
from slotwise_backends.cpu_attention.capabilities import missing_library
from slotwise_backends.reference import ReferenceAttention
from slotwise_backends.torch_sdpa import TorchSdpaAttention

BACKENDS: dict[str, type[AttentionBackend]] = {"reference": ReferenceAttention, "torch_sdpa": TorchSdpaAttention}
if missing_library() is None:
    BACKENDS["cpu"] = CpuAttention


@dataclass(kw_only=True)
class PagedCase:
    """Random requests with some context; `run` computes the last `query_lens` tokens of each."""

    query_lens: list[int]
    seq_lens: list[int]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 4
    layout: str = "nhd"
    dtype: str = "float32"
    kv_dtype: str = "auto"
    poison: float = math.nan
    unused_block_id: int = 0
    num_padding_tokens: int = 0
    seed: int = 0
    common_prefix_len: int = 0
    layer_facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        dtype = getattr(torch, self.dtype)

        def random(num_tokens: int, num_heads: int) -> torch.Tensor:
            return torch.randn(num_tokens, num_heads, self.head_dim, generator=generator, dtype=torch.float64).to(dtype)

        self.layer = AttentionLayer(
            name="layer",
            index=0,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            **{"scale": self.head_dim**-0.5} | self.layer_facts,
        )
        self.keys = [random(seq_len, self.num_kv_heads) for seq_len in self.seq_lens]
        self.values = [random(seq_len, self.num_kv_heads) for seq_len in self.seq_lens]
        self.query = random(sum(self.query_lens) + self.num_padding_tokens, self.num_heads)
        self.generator = generator

    def backend(self, backend_class: type[AttentionBackend], options: Any = None) -> AttentionBackend:
        return backend_class(
            AttentionSetup(
                layers=(self.layer,),
                block_size=self.block_size,
                kv_layout=self.layout,
                dtype=self.dtype,
                kv_dtype=self.kv_dtype,
                device="cpu",
                max_num_reqs=len(self.seq_lens),
                max_num_batched_tokens=self.query.shape[0],
                max_model_len=max(self.seq_lens),
                options=options,
            )
        )

    def common(self, causal: bool | torch.Tensor = True, custom_mask: torch.Tensor | None = None) -> CommonAttentionMetadata:
        blocks_per_request = [math.ceil(seq_len / self.block_size) for seq_len in self.seq_lens]
        self.num_blocks = 1 + sum(blocks_per_request)
        order = (torch.randperm(self.num_blocks - 1, generator=torch.Generator().manual_seed(self.seed)) + 1).tolist()
        block_table = torch.full((len(self.seq_lens), max(blocks_per_request) + 2), self.unused_block_id, dtype=torch.int32)
        for request, count in enumerate(blocks_per_request):
            block_table[request, :count] = torch.tensor([order.pop() for _ in range(count)])
        starts = torch.tensor([0, *torch.tensor(self.query_lens).cumsum(0).tolist()], dtype=torch.int32)
        seq_lens = torch.tensor(self.seq_lens, dtype=torch.int32)
        positions = torch.cat([torch.arange(s - q, s) for q, s in zip(self.query_lens, self.seq_lens, strict=True)])
        requests = torch.arange(len(self.seq_lens)).repeat_interleave(torch.tensor(self.query_lens))
        slots = block_table[requests, positions // self.block_size].long() * self.block_size + positions % self.block_size
        padding = torch.full((self.num_padding_tokens,), -1)
        return CommonAttentionMetadata(
            num_reqs=len(self.seq_lens),
            num_tokens=sum(self.query_lens),
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            block_table=block_table,
            slot_mapping=torch.cat([slots, padding]),
            positions=torch.cat([positions, padding * 0]),
            max_query_len=max(self.query_lens),
            max_seq_len=max(self.seq_lens),
            is_prefilling=torch.zeros(len(self.seq_lens), dtype=torch.bool),
            causal=causal,
            custom_mask=custom_mask,
        )

    def cache(self, backend: AttentionBackend, common: CommonAttentionMetadata) -> torch.Tensor:
        """Poisoned everywhere, then the whole context written slot by slot."""
        request = KVLayoutRequest(
            name=self.layout,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype if self.kv_dtype == "auto" else self.kv_dtype,
        )
        cache = allocate(standard_layout(request), "cpu").fill_(self.poison)
        for row, seq_len in enumerate(self.seq_lens):
            positions = torch.arange(seq_len)
            slots = common.block_table[row, positions // self.block_size].long() * self.block_size + positions % self.block_size
            backend.write_kv(KVWrite(layer=self.layer, key=self.keys[row], value=self.values[row], kv_cache=cache, slot_mapping=slots))
        return cache

    def run(
        self,
        backend_class: type[AttentionBackend],
        *,
        options: Any = None,
        common: CommonAttentionMetadata | None = None,
        wants_lse: bool = False,
        **call_facts: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output, and LSE if wanted, of the batch."""
        backend = self.backend(backend_class, options)
        common = common or self.common()
        cache = self.cache(backend, common)
        output = torch.full_like(self.query, math.nan)
        lse = torch.full(self.query.shape[:2], math.nan) if wants_lse else None
        backend.forward(
            AttentionCall(
                layer=self.layer,
                query=self.query,
                key=None,
                value=None,
                kv_cache=cache,
                metadata=backend.build_metadata(MetadataRequest(common=common, common_prefix_len=self.common_prefix_len)),
                output=output,
                lse=lse,
                **call_facts,
            )
        )
        return output, lse

    def in_float64(self) -> PagedCase:
        """The same numbers in float64."""
        twin = dataclasses.replace(self, dtype="float64", kv_dtype="auto")
        twin.keys = [key.double() for key in self.keys]
        twin.values = [value.double() for value in self.values]
        twin.query = self.query.double()
        return twin


@pytest.fixture(params=sorted(BACKENDS))
def backend_class(request: pytest.FixtureRequest) -> type[AttentionBackend]:
    return BACKENDS[request.param]


@pytest.fixture
def make_case() -> Callable[..., PagedCase]:
    return PagedCase
