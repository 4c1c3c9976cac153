"""`AttentionBatch`: a `Scenario` as tensors, and the true answer to it.

The cache is poisoned wherever no visible key lies; blocks are handed out in random order; what left a sliding window is gone, and its
block-table entry points at poison. What this file does not know: whether a backend is right.

    keys[r], values[r]      all key positions of row r, as the model computed them; the last query_lens[r] are this step's
    block_table[r, j]       block of the positions j * block_size .. that this rank holds; block 0 and one spare hold only poison
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from slotwise.engine.kv_layout import stored
from slotwise.interfaces.attention import AttentionLayer, CommonAttentionMetadata
from slotwise.testing.attention_masks import make_mask
from slotwise.testing.attention_scenario import Scenario
from slotwise.testing.attention_truth import Answer, Question, answer

NULL_BLOCK = 0
POISON_BLOCK = 1
"""Where stale entries point."""
NUM_SPARE_BLOCKS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """What the kit chose for what a scenario leaves open."""

    dtype: str
    head_dim: int
    block_size: int
    layout: str


class AttentionBatch:
    """Everything random is drawn from `scenario.seed`."""

    def __init__(self, scenario: Scenario, dimensions: Dimensions, device: str = "cpu") -> None:
        self.scenario, self.dimensions, self.device = scenario, dimensions, device
        self.dtype: torch.dtype = getattr(torch, dimensions.dtype)
        self.kv_dtype: torch.dtype = self.dtype if scenario.kv_dtype == "auto" else getattr(torch, scenario.kv_dtype)
        self.layer = _layer(scenario, dimensions)
        self._generator = torch.Generator().manual_seed(1000 + scenario.seed)
        self.keys, self.values = self._make_keys_and_values()
        num_rows = sum(scenario.query_lens) + scenario.num_padding_tokens
        self.query = self._random(num_rows, scenario.num_heads, dimensions.head_dim, scale=scenario.magnitude).to(self.dtype).to(device)
        self.sinks = self._random(scenario.num_heads, scale=2.0).float().to(device) if scenario.has_sinks else None
        slopes = torch.tensor([2.0 ** -(1 + head % 8) for head in range(scenario.num_heads)])
        self.alibi_slopes = slopes.to(device) if scenario.has_alibi else None
        self.masks = [
            make_mask(scenario.mask, query_len, seq_len, self._generator)
            for query_len, seq_len in zip(scenario.query_lens, scenario.seq_lens, strict=True)
        ]
        self.block_table, self.num_blocks = self._make_block_table()
        self.common = self._make_common()

    def held_positions(self, row: int) -> torch.Tensor:
        """Key positions of the row that lie in the cache, ascending; those before its first query's window are gone."""
        scenario = self.scenario
        positions = torch.arange(scenario.key_lens[row])[scenario.rank :: scenario.num_ranks]
        return positions[positions >= self._num_gone(row)]

    def slots(self, row: int, positions: torch.Tensor) -> torch.Tensor:
        """[len(positions)] slots of key positions of the row, -1 for those another rank holds."""
        scenario, block_size = self.scenario, self.dimensions.block_size
        held = positions // scenario.num_ranks
        slots = self.block_table[row, held // block_size].long() * block_size + held % block_size
        return torch.where(positions % scenario.num_ranks == scenario.rank, slots, -1)

    def step_keys(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`key` and `value` of this step's tokens, flat; padding holds infinity, which no cache may get and no result may show."""
        padding = self.scenario.num_padding_tokens

        def flat(rows: list[torch.Tensor]) -> torch.Tensor:
            new = [row[row.shape[0] - query_len :] for row, query_len in zip(rows, self.scenario.query_lens, strict=True)]
            return torch.cat([*new, torch.full((padding, *rows[0].shape[1:]), math.inf, dtype=self.dtype)]).to(self.device)

        return flat(self.keys), None if self.layer.is_mla else flat(self.values)

    def truth(self) -> Answer:
        """Answers of all rows one after the other, padding excluded."""
        answers, start = [], 0
        for row, query_len in enumerate(self.scenario.query_lens):
            answers.append(self._answer(row, slice(start, start + query_len)))
            start += query_len
        return Answer(
            output=torch.cat([each.output for each in answers]),
            lse=torch.cat([each.lse for each in answers]),
            output_error=torch.cat([each.output_error for each in answers]),
            lse_error=torch.cat([each.lse_error for each in answers]),
        )

    def _answer(self, row: int, rows: slice) -> Answer:
        scenario, positions = self.scenario, self._query_positions(row)
        keys = torch.arange(scenario.key_lens[row])
        is_stored = not scenario.is_encoder
        key = stored(self.keys[row], scenario.k_scale, self.kv_dtype).double() * scenario.k_scale if is_stored else self.keys[row].double()
        if self.layer.is_mla:
            value = key[..., : self.layer.value_dim]
        else:
            v = self.values[row]
            value = stored(v, scenario.v_scale, self.kv_dtype).double() * scenario.v_scale if is_stored else v.double()
        question = Question(
            layer=self.layer,
            query=self.query[rows].cpu(),
            key=key,
            value=value,
            visible=self._visible(row, positions, keys),
            distance=(positions[:, None] - keys[None, :]).abs(),
            sinks=None if self.sinks is None or scenario.rank else self.sinks.cpu(),
            alibi_slopes=None if self.alibi_slopes is None else self.alibi_slopes.cpu(),
        )
        return answer(question, is_stored_in_other_dtype=self.kv_dtype != self.dtype)

    def _visible(self, row: int, positions: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """[num_rows, num_keys]: the contract's rules, each in a line."""
        scenario = self.scenario
        visible = torch.ones(positions.numel(), keys.numel(), dtype=torch.bool)
        if scenario.encoder_seq_lens is not None:
            return visible
        queries, keys = positions[:, None], keys[None, :]
        mask = self.masks[row]
        is_causal = scenario.is_layer_causal and (scenario.causal if isinstance(scenario.causal, bool) else scenario.causal[row])
        if mask is not None:
            visible &= mask
        elif is_causal:
            visible &= keys <= queries
        if scenario.sliding_window is not None:
            visible &= (queries - keys).abs() < scenario.sliding_window
        if scenario.chunk_len is not None:
            visible &= queries // scenario.chunk_len == keys // scenario.chunk_len
        return visible & (keys % scenario.num_ranks == scenario.rank)

    def _query_positions(self, row: int) -> torch.Tensor:
        return torch.arange(self.scenario.seq_lens[row] - self.scenario.query_lens[row], self.scenario.seq_lens[row])

    def _num_gone(self, row: int) -> int:
        """Positions before the first that any query of the row sees; whole blocks of them are no longer the row's."""
        scenario = self.scenario
        if scenario.is_encoder or scenario.encoder_seq_lens is not None:
            return 0
        first = scenario.seq_lens[row] - scenario.query_lens[row]
        gone = 0
        if scenario.sliding_window is not None:
            gone = max(gone, first - scenario.sliding_window + 1)
        if scenario.chunk_len is not None:
            gone = max(gone, first // scenario.chunk_len * scenario.chunk_len)
        return gone

    def _random(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64) * scale

    def _make_keys_and_values(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Numbers that a quantised cache holds without loss, since its scales are powers of two: rounding has a case of its own."""
        scenario, dimensions = self.scenario, self.dimensions
        is_quantised = self.kv_dtype.itemsize == 1

        def rows(num_keys: int, scale: float, magnitude: float) -> torch.Tensor:
            drawn = self._random(num_keys, self.layer.num_kv_heads, dimensions.head_dim, scale=magnitude)
            kept = stored(drawn.float(), scale, self.kv_dtype).double() * scale if is_quantised else drawn
            return kept.to(self.dtype)

        keys = [rows(num_keys, scenario.k_scale, scenario.magnitude) for num_keys in scenario.key_lens]
        values = [rows(num_keys, scenario.v_scale, 1.0) for num_keys in scenario.key_lens]
        for tensors in (keys, values):
            for tensor in tensors[1:]:
                tensor[: scenario.common_prefix_len] = tensors[0][: scenario.common_prefix_len]
        return keys, values

    def _make_block_table(self) -> tuple[torch.Tensor, int]:
        scenario, block_size = self.scenario, self.dimensions.block_size
        held = [math.ceil(len(range(scenario.rank, key_len, scenario.num_ranks)) / block_size) for key_len in scenario.key_lens]
        num_blocks = NUM_SPARE_BLOCKS + sum(held)
        order = (torch.randperm(sum(held), generator=self._generator) + NUM_SPARE_BLOCKS).tolist()
        table = torch.full((len(held), max([*held, 1]) + 2), NULL_BLOCK, dtype=torch.int32)
        for row, count in enumerate(held):
            table[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
            table[row, : self._num_gone(row) // scenario.num_ranks // block_size] = POISON_BLOCK
        num_shared = scenario.common_prefix_len // block_size
        table[1:, :num_shared] = table[:1, :num_shared]
        return table, num_blocks

    def _make_common(self) -> CommonAttentionMetadata:
        scenario, device = self.scenario, self.device
        starts = torch.tensor([0, *torch.tensor(scenario.query_lens).cumsum(0).tolist()], dtype=torch.int32)
        seq_lens = torch.tensor(scenario.seq_lens, dtype=torch.int32)
        positions = [self._query_positions(row) for row in range(len(scenario.query_lens))]
        has_slots = not scenario.is_encoder and scenario.encoder_seq_lens is None
        slots = [self.slots(row, each) if has_slots else torch.full_like(each, -1) for row, each in enumerate(positions)]
        padding = torch.full((scenario.num_padding_tokens,), -1)
        flat_masks = [mask.flatten() for mask in self.masks if mask is not None]
        held = [len(range(scenario.rank, seq_len, scenario.num_ranks)) for seq_len in scenario.seq_lens]
        return CommonAttentionMetadata(
            num_reqs=len(scenario.query_lens),
            num_tokens=sum(scenario.query_lens),
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=seq_lens.to(device),
            seq_lens_cpu=seq_lens,
            block_table=self.block_table.to(device),
            slot_mapping=torch.cat([*slots, padding]).to(device),
            positions=torch.cat([*positions, torch.zeros_like(padding)]).to(device),
            max_query_len=max(scenario.query_lens),
            max_seq_len=max(scenario.seq_lens),
            is_prefilling=torch.tensor([query_len > 1 for query_len in scenario.query_lens]),
            causal=scenario.causal if isinstance(scenario.causal, bool) else torch.tensor(scenario.causal).to(device),
            custom_mask=torch.cat(flat_masks).to(device) if flat_masks else None,
            encoder_seq_lens=None
            if scenario.encoder_seq_lens is None
            else torch.tensor(scenario.encoder_seq_lens, dtype=torch.int32).to(device),
            context_parallel_seq_lens=torch.tensor(held, dtype=torch.int32).to(device) if scenario.num_ranks > 1 else None,
            context_parallel_size=scenario.num_ranks,
            context_parallel_rank=scenario.rank,
        )


def _layer(scenario: Scenario, dimensions: Dimensions) -> AttentionLayer:
    return AttentionLayer(
        name="layer",
        index=0,
        num_heads=scenario.num_heads,
        num_kv_heads=1 if scenario.latent_value_dim is not None else scenario.num_kv_heads,
        head_dim=dimensions.head_dim,
        scale=dimensions.head_dim**-0.5 if scenario.scale is None else scenario.scale,
        kind=scenario.kind,
        sliding_window=scenario.sliding_window,
        chunk_len=scenario.chunk_len,
        logits_soft_cap=scenario.logits_soft_cap,
        has_alibi=scenario.has_alibi,
        has_sinks=scenario.has_sinks,
        attention_type=scenario.attention_type,
        causal=scenario.is_layer_causal,
        latent_value_dim=scenario.latent_value_dim,
    )
