"""Cases of the `attention` slot about plain causal attention: shapes, dtypes, layouts, lengths, magnitudes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from slotwise.testing.attention_kit import AttentionKit, kv_write
from slotwise.testing.attention_scenario import DECODES, MIXED, PROMPTS, Scenario
from slotwise.testing.verdicts import require


class AttentionNumericCases(AttentionKit):
    """Everything here is asked of every backend."""

    def test_decodes(self) -> None:
        """One query token per row, contexts of all lengths, in every claimed dtype."""
        self._check_dtypes(Scenario(**DECODES), "decode")

    def test_prompts(self) -> None:
        """Whole prompts, in every claimed dtype."""
        self._check_dtypes(Scenario(**PROMPTS), "prefill")

    def test_mixed_batches(self) -> None:
        """Decodes, whole prompts and chunks of prompts in one ragged batch, in every claimed dtype."""
        self._check_dtypes(Scenario(**MIXED), "mixed batch")
        self._check_dtypes(Scenario(query_lens=(1, 1, 2, 40, 1, 9), seq_lens=(33, 1, 50, 40, 2, 64), seed=1), "mixed batch")

    def test_head_dims(self) -> None:
        """Every claimed head dimension, or a choice of them."""
        for head_dim in self.head_dims():
            self.check(Scenario(**DECODES, head_dim=head_dim), "head dimensions")
            self.check(Scenario(query_lens=(5, 1), seq_lens=(9, 3), head_dim=head_dim), "head dimensions")

    def test_grouped_query_heads(self) -> None:
        """Query head h reads KV head h // group size: as many, fewer and one KV head."""
        for num_heads, num_kv_heads in ((4, 4), (6, 2), (8, 1), (9, 3), (2, 1)):
            self.check(Scenario(**MIXED, num_heads=num_heads, num_kv_heads=num_kv_heads), "grouped heads")

    def test_block_sizes(self) -> None:
        """Accepted block sizes, among them those that divide nothing; blocks lie in random order."""
        for block_size in self.block_sizes():
            self.check(Scenario(**MIXED, block_size=block_size), "block sizes")

    def test_layouts(self) -> None:
        """Every claimed KV layout."""
        for layout in self.claims.kv_layouts:
            self.check(Scenario(**MIXED, layout=layout), "layouts")

    def test_very_long_context(self) -> None:
        """Thousands of keys, for one token and for a chunk, beside a short row."""
        for query_lens in ((1, 1), (9, 1)):
            scenario = Scenario(query_lens=query_lens, seq_lens=(4090, 3), num_heads=2, num_kv_heads=1, block_size=self._large_block())
            self.check(scenario, "long contexts")

    def test_extreme_magnitudes(self) -> None:
        """Scores of hundreds and thousands, where one key takes all, and of nearly nothing, where all keys count alike."""
        for magnitude in (8.0, 30.0, 1e-3):
            self.check(Scenario(**MIXED, magnitude=magnitude), "extreme magnitudes")

    def test_scale_is_the_layers(self) -> None:
        """Scores are multiplied by `AttentionLayer.scale`, whatever the head dimension."""
        self.check(Scenario(**MIXED, scale=1.0), "scales")
        self.check(Scenario(**MIXED, scale=0.05), "scales")

    def test_empty_rows(self) -> None:
        """Rows without tokens, as padding brings them, change nothing and are not read."""
        self.check(Scenario(query_lens=(1, 0, 3, 0), seq_lens=(9, 0, 12, 0)), "empty rows")
        self.check(Scenario(query_lens=(1, 1, 0), seq_lens=(9, 30, 0)), "empty rows")

    def test_padding_tokens(self) -> None:
        """Tokens beyond the last row yield 0, even where they hold NaN."""
        self.check(Scenario(**MIXED, num_padding_tokens=3), "padding")
        self.check(Scenario(**DECODES, num_padding_tokens=4), "padding")

    def test_strided_queries_and_keys(self) -> None:
        """Query, key and value are views of one fused projection, as models hand them over."""
        batch = self.batch(Scenario(**MIXED))
        backend = self.make_backend(batch)
        cache = self.make_cache(backend, batch)
        metadata = backend.build_metadata(self.request(batch))
        key, value = batch.step_keys()
        assert value is not None
        query, key, value = _views_of_one(batch.query, key, value)
        if not backend.capabilities.fused_kv_write:
            backend.write_kv(kv_write(batch, cache, batch.common.slot_mapping, key, value))
        call = self.call(batch, cache, metadata, query=query, key=key, value=value)
        backend.forward(call)
        self.compare(batch, call, "strided views")

    def test_lengths_on_the_cpu_are_upper_bounds(self) -> None:
        """`seq_lens_cpu` and `max_seq_len` may be larger than the truth, which only `seq_lens` tells."""
        batch = self.batch(Scenario(**MIXED))
        longest = batch.block_table.shape[1] * batch.dimensions.block_size
        bounds = (batch.common.seq_lens_cpu + 3).clamp(max=longest)
        batch.common = replace(batch.common, seq_lens_cpu=bounds.to(torch.int32), max_seq_len=int(bounds.max()))
        self.compare(batch, self.run(batch), "upper bounds")

    def test_random_shapes(self) -> None:
        """Random batches, head counts, block sizes and dtypes."""
        generator = torch.Generator().manual_seed(self.seed)

        def draw(*choices: Any) -> Any:
            return choices[int(torch.randint(len(choices), (1,), generator=generator))]

        for number in range(min(self.max_examples, 12)):
            rows = [(draw(1, 1, 2, 5, 17), draw(0, 0, 3, 16, 31)) for _ in range(draw(1, 2, 5))]
            num_heads, num_kv_heads = draw((4, 2), (3, 3), (8, 1), (6, 3))
            scenario = Scenario(
                query_lens=tuple(query_len for query_len, _ in rows),
                seq_lens=tuple(query_len + context for query_len, context in rows),
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=draw(*self.head_dims()[:4]),
                block_size=draw(*self.block_sizes()[:6]),
                dtype=draw(*self.dtypes()),
                layout=draw(*self.claims.kv_layouts),
                seed=self.seed * 1000 + number,
            )
            self.check(scenario, "random shapes")

    def _check_dtypes(self, scenario: Scenario, feature: str) -> None:
        for dtype in self.dtypes():
            self.check(replace(scenario, dtype=dtype), f"{feature}, {dtype}")

    def _large_block(self) -> int:
        """The largest accepted block size up to 64: few blocks to look up."""
        sizes = self.block_sizes()
        return max((size for size in sizes if size <= 64), default=min(sizes))


def _views_of_one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The three as slices of one [num_tokens, heads + 2 * kv_heads + 1, head_dim] tensor, with NaN between them."""
    gap = torch.full_like(key[:, :1], math.nan)
    fused = torch.cat([query, gap, key, value], dim=1)
    num_heads, num_kv_heads = query.shape[1], key.shape[1]
    require(not fused[:, :num_heads].is_contiguous(), "the kit's views must be strided")
    return fused[:, :num_heads], fused[:, num_heads + 1 : num_heads + 1 + num_kv_heads], fused[:, num_heads + 1 + num_kv_heads :]
