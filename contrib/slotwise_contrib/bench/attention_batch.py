"""One attention layer and one step to measure: random numbers in a paged cache, and what computing it must cost.

What this file does not know: backends' names, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from slotwise.interfaces.attention import SLIDING_WINDOW, AttentionLayer, AttentionSetup, CommonAttentionMetadata


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """A layer and a step."""

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    sliding_window: int | None = None
    dtype: str = "float32"
    kv_dtype: str = "auto"

    @property
    def title(self) -> str:
        """`8 x 1 of 512`: rows x query tokens of sequence length."""
        pairs = sorted(set(zip(self.query_lens, self.seq_lens, strict=True)))
        if len(pairs) == 1:
            return f"{len(self.query_lens)} x {pairs[0][0]} of {pairs[0][1]}"
        return f"{len(self.query_lens)} rows, {sum(self.query_lens)} of {sum(self.seq_lens)}"

    @property
    def layer(self) -> AttentionLayer:
        """The layer's facts."""
        window = {} if self.sliding_window is None else {"kind": SLIDING_WINDOW, "sliding_window": self.sliding_window}
        return AttentionLayer(
            name="layer",
            index=0,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            **window,  # type: ignore[arg-type]
        )

    @property
    def storage_dtype(self) -> str:
        """Of the cache."""
        return self.dtype if self.kv_dtype == "auto" else self.kv_dtype

    @property
    def num_visible_pairs(self) -> int:
        """(query token, key) pairs that are computed, per head."""
        window = self.sliding_window or math.inf
        return int(
            sum(
                sum(min(position + 1, window) for position in range(seq_len - query_len, seq_len))
                for query_len, seq_len in zip(self.query_lens, self.seq_lens, strict=True)
            )
        )

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products: 4 * heads * head_dim per pair."""
        return 4 * self.num_heads * self.head_dim * self.num_visible_pairs

    @property
    def bytes_moved(self) -> int:
        """Every visible key and value read once, queries read, output written."""
        window = self.sliding_window or math.inf
        keys = sum(min(seq_len, window + query_len - 1) for query_len, seq_len in zip(self.query_lens, self.seq_lens, strict=True))
        kv = 2 * keys * self.num_kv_heads * self.head_dim * getattr(torch, self.storage_dtype).itemsize
        return int(kv + 2 * sum(self.query_lens) * self.num_heads * self.head_dim * getattr(torch, self.dtype).itemsize)


@dataclass(kw_only=True, slots=True)
class RandomBatch:
    """The shape as tensors on a device."""

    shape: AttentionShape
    device: str
    query: torch.Tensor = field(init=False)
    key: torch.Tensor = field(init=False)
    value: torch.Tensor = field(init=False)
    common: CommonAttentionMetadata = field(init=False)
    num_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        shape = self.shape
        generator = torch.Generator().manual_seed(0)
        num_tokens = sum(shape.query_lens)

        def random(num_heads: int) -> torch.Tensor:
            drawn = torch.randn(num_tokens, num_heads, shape.head_dim, generator=generator)
            return drawn.to(getattr(torch, shape.dtype)).to(self.device)

        self.query, self.key, self.value = random(shape.num_heads), random(shape.num_kv_heads), random(shape.num_kv_heads)
        counts = [math.ceil(seq_len / shape.block_size) for seq_len in shape.seq_lens]
        self.num_blocks = 1 + sum(counts)
        table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
        order = (torch.randperm(sum(counts), generator=generator) + 1).to(torch.int32)
        for row, part in enumerate(torch.split(order, counts)):
            table[row, : len(part)] = part
        self.common = _common(shape, table, self.device)

    def setup(self, kv_layout: str, options: object) -> AttentionSetup:
        """For a backend that serves just this."""
        shape = self.shape
        return AttentionSetup(
            layers=(shape.layer,),
            block_size=shape.block_size,
            kv_layout=kv_layout,
            dtype=shape.dtype,
            kv_dtype=shape.storage_dtype,
            device=self.device,
            max_num_reqs=len(shape.query_lens),
            max_num_batched_tokens=sum(shape.query_lens),
            max_model_len=max(shape.seq_lens),
            options=options,  # type: ignore[arg-type]
        )


def _common(shape: AttentionShape, table: torch.Tensor, device: str) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *torch.tensor(shape.query_lens).cumsum(0).tolist()], dtype=torch.int32)
    seq_lens = torch.tensor(shape.seq_lens, dtype=torch.int32)
    positions = torch.cat([torch.arange(s - q, s) for q, s in zip(shape.query_lens, shape.seq_lens, strict=True)])
    rows = torch.arange(len(shape.query_lens)).repeat_interleave(torch.tensor(shape.query_lens))
    slots = table[rows, positions // shape.block_size].long() * shape.block_size + positions % shape.block_size
    return CommonAttentionMetadata(
        num_reqs=len(shape.query_lens),
        num_tokens=sum(shape.query_lens),
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=seq_lens.to(device),
        seq_lens_cpu=seq_lens,
        block_table=table.to(device),
        slot_mapping=slots.to(device),
        positions=positions.to(device),
        max_query_len=max(shape.query_lens),
        max_seq_len=max(shape.seq_lens),
        is_prefilling=torch.tensor([query_len > 1 for query_len in shape.query_lens]),
    )


def usual_shapes(
    *, num_rows: Sequence[int], contexts: Sequence[int], prompts: Sequence[int], **facts: object
) -> tuple[AttentionShape, ...]:
    """Decodes of every number of rows at every context length, and one prompt of every length."""
    decodes = [
        AttentionShape(query_lens=(1,) * rows, seq_lens=(context,) * rows, **facts)  # type: ignore[arg-type]
        for rows in num_rows
        for context in contexts
    ]
    prefills = [AttentionShape(query_lens=(length,), seq_lens=(length,), **facts) for length in prompts]  # type: ignore[arg-type]
    return (*decodes, *prefills)
