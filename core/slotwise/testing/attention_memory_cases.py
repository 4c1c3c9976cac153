"""Cases of the `attention` slot about memory: what is written where, what may be read, what must stay as it is."""

from __future__ import annotations

import math
from typing import Final

import torch

from slotwise.engine.kv_layout import allocate, stored
from slotwise.interfaces.attention import STANDARD_KV_LAYOUTS, AttentionBackend, KVLayoutRequest
from slotwise.testing.attention_batch import AttentionBatch
from slotwise.testing.attention_kit import AttentionKit, kv_write, poison
from slotwise.testing.attention_scenario import DECODES, MIXED, Scenario
from slotwise.testing.verdicts import NotClaimedError, require

ROUGH_SCALES: Final = (0.037, 0.11)
"""No powers of two: most numbers must be rounded."""


class AttentionMemoryCases(AttentionKit):
    """One rule each."""

    def test_tails_of_blocks_are_not_read(self) -> None:
        """Unwritten slots hold NaN or infinity, lengths end inside, at and after a block."""
        block_size = self.block_sizes()[0]
        seq_lens = (1, block_size - 1 or 1, block_size, block_size + 1, 4 * block_size + 1)
        for value in (math.nan, math.inf, -math.inf):
            self.check(Scenario(query_lens=(1,) * 5, seq_lens=seq_lens, poison=value), "poisoned tails")
            self.check(Scenario(query_lens=seq_lens, seq_lens=seq_lens, poison=value), "poisoned tails")

    def test_poison_in_keys_or_values_alone(self) -> None:
        """NaN in unwritten slots of K with clean V, and the reverse, beside a cache that was zeroed: three equal results."""
        batch = self.batch(Scenario(**MIXED))
        self._require_standard_layout(batch)
        results = []
        for poisoned in (None, 0, 1):
            backend = self.make_backend(batch)
            cache = self.make_cache(backend, batch)
            cache.nan_to_num_(nan=0.0)
            if poisoned is not None:
                cache[:, poisoned] = torch.where(self._is_written(batch, cache)[:, :, None, None], cache[:, poisoned], math.nan)
            self.write_step(backend, batch, cache)
            call = self.call(batch, cache, backend.build_metadata(self.request(batch)))
            backend.forward(call)
            self.compare(batch, call, "poisoned K or V")
            results.append(call.output)
        require(torch.equal(results[0], results[1]), "NaN in unwritten slots of K changes the result")
        require(torch.equal(results[0], results[2]), "NaN in unwritten slots of V changes the result")

    def test_stale_table_entries_are_not_read(self) -> None:
        """Entries past a row's blocks, and of blocks that left the window, point at NaN."""
        windows = (None, 5) if "sliding_window" in self.claims.layer_kinds else (None,)
        for window in windows:
            scenario = Scenario(query_lens=(1, 1, 9), seq_lens=(50, 2, 40), sliding_window=window)
            self.check(scenario, "stale entries")

    def test_write_stores_each_token_in_its_slot(self) -> None:
        """K and V arrive bit by bit where `slot_mapping` says, and nowhere else; -1 writes nothing."""
        for layout in self.claims.kv_layouts:
            for dtype in self.dtypes():
                self._check_write(Scenario(**MIXED, layout=layout, dtype=dtype, num_padding_tokens=3))
        if self.claims.mla:
            value_dim = (self.claims.mla_dims or ((48, 32),))[0][1]
            self._check_write(Scenario(**MIXED, latent_value_dim=value_dim, num_kv_heads=1, num_padding_tokens=2))

    def test_write_takes_strided_rows(self) -> None:
        """K and V may be views of a wider tensor."""
        self._check_write(Scenario(**MIXED), is_strided=True)

    def test_write_of_padding_alone(self) -> None:
        """A step of nothing but padding leaves the cache as it is."""
        batch = self.batch(Scenario(**DECODES))
        self._require_separate_write(batch)
        backend = self.make_backend(batch)
        cache = self.make_cache(backend, batch)
        before = cache.clone()
        key, value = batch.step_keys()
        slots = torch.full_like(batch.common.slot_mapping, -1)
        backend.write_kv(kv_write(batch, cache, slots, key, value))
        require(_same_bytes(cache, before), "write_kv changed the cache though every slot is -1")

    def test_quantised_write_rounds_to_nearest(self) -> None:
        """Quantised storage holds the nearest value of x / scale, clamped where the dtype ends."""
        kv_dtypes = [dtype for dtype in self.claims.kv_dtypes if dtype in ("int8", "float8_e4m3fn", "float8_e5m2")]
        self.require_claim(kv_dtypes, "quantised storage")
        for kv_dtype in kv_dtypes:
            scenario = Scenario(**MIXED, kv_dtype=kv_dtype, k_scale=ROUGH_SCALES[0], v_scale=ROUGH_SCALES[1])
            if self.refused_combination(scenario) is None:
                self._check_quantised_write(scenario)

    def test_fused_write_stores_each_token_in_its_slot(self) -> None:
        """A forward that writes the cache itself stores K and V bit by bit, and -1 writes nothing."""
        self.require_claim(self.claims.fused_kv_write, "fused KV writes")
        batch = self.batch(Scenario(**MIXED, num_padding_tokens=2))
        self._require_standard_layout(batch)
        backend = self.make_backend(batch)
        cache = self.make_cache(backend, batch)
        expected = self._expected_cache(batch, cache)
        backend.forward(self.call(batch, cache, backend.build_metadata(self.request(batch))))
        require(_same_bytes(cache, expected), "forward did not store exactly this step's K and V in their slots")

    def test_forward_changes_nothing_but_its_output(self) -> None:
        """Query, key, value, cache and metadata are as they were."""
        batch = self.batch(Scenario(**MIXED))
        self._require_separate_write(batch)
        backend = self.make_backend(batch)
        cache = self.make_cache(backend, batch)
        self.write_step(backend, batch, cache)
        call = self.call(batch, cache, backend.build_metadata(self.request(batch)))
        watched = {"query": call.query, "key": call.key, "value": call.value, "kv_cache": call.kv_cache}
        watched |= {
            name: getattr(batch.common, name) for name in ("query_start_loc", "seq_lens", "block_table", "slot_mapping", "positions")
        }
        before = {name: tensor.clone() for name, tensor in watched.items() if tensor is not None}
        backend.forward(call)
        for name, tensor in before.items():
            found = watched[name]
            assert found is not None
            require(_same_bytes(found, tensor), f"forward changed {name}")

    def test_measuring_memory_gives_zeros(self) -> None:
        """Without metadata, as while memory is measured, the output is zero."""
        batch = self.batch(Scenario(**MIXED))
        backend = self.make_backend(batch)
        call = self.call(batch, self.make_cache(backend, batch), None)
        backend.forward(call)
        require(bool((call.output == 0).all()), "with metadata None the output must be zeros")

    def _check_write(self, scenario: Scenario, *, is_strided: bool = False) -> None:
        batch = self.batch(scenario)
        self._require_separate_write(batch)
        backend = self.make_backend(batch)
        cache = self.make_cache(backend, batch)
        expected = self._expected_cache(batch, cache)
        key, value = batch.step_keys()
        if is_strided:
            assert value is not None
            wide = torch.cat([key, value], dim=1)
            key, value = wide[:, : key.shape[1]], wide[:, key.shape[1] :]
        backend.write_kv(kv_write(batch, cache, batch.common.slot_mapping, key, value))
        require(_same_bytes(cache, expected), f"write_kv did not store exactly this step's K and V in their slots ({scenario})")

    def _check_quantised_write(self, scenario: Scenario) -> None:
        batch = self.batch(scenario)
        self._require_standard_layout(batch)
        backend = self.make_backend(batch)
        generator = torch.Generator().manual_seed(7)
        shape = (batch.query.shape[0], batch.layer.num_kv_heads, batch.layer.head_dim)
        largest = torch.finfo(batch.kv_dtype).max if batch.kv_dtype.is_floating_point else 127
        rows = {}
        for which, scale in (("key", scenario.k_scale), ("value", scenario.v_scale)):
            drawn = torch.randn(shape, generator=generator) * scale * min(largest, 448) / 2
            rows[which] = drawn.to(batch.dtype)
        cache = self._empty_cache(backend, batch)
        key, value = rows["key"].to(batch.device), rows["value"].to(batch.device)
        backend.write_kv(kv_write(batch, cache, batch.common.slot_mapping, key, value))
        blocks, offsets = self._places(batch)
        for half, (which, scale) in enumerate((("key", scenario.k_scale), ("value", scenario.v_scale))):
            wanted = rows[which].double().cpu()
            found = cache[blocks, half, offsets].cpu().double() * scale
            best = stored(rows[which], scale, batch.kv_dtype).double() * scale
            slack = 4 * torch.finfo(torch.float32).eps * wanted.abs()
            is_nearest = (found - wanted).abs() <= (best - wanted).abs() + slack
            require(bool(is_nearest.all()), f"stored {which} in {scenario.kv_dtype}: {int((~is_nearest).sum())} values are not the nearest")

    def _expected_cache(self, batch: AttentionBatch, cache: torch.Tensor) -> torch.Tensor:
        expected = cache.clone()
        kept = batch.common.slot_mapping >= 0
        key, value = batch.step_keys()
        slots = batch.common.slot_mapping[kept]
        write = kv_write(batch, expected, slots, key[kept], None if value is None else value[kept])
        self.store(self.make_backend(batch), batch, write)
        return expected

    @staticmethod
    def _empty_cache(backend: AttentionBackend, batch: AttentionBatch) -> torch.Tensor:
        request = KVLayoutRequest(
            name=batch.dimensions.layout,
            num_blocks=batch.num_blocks,
            block_size=batch.dimensions.block_size,
            num_kv_heads=batch.layer.num_kv_heads,
            head_dim=batch.layer.head_dim,
            dtype=str(batch.kv_dtype).removeprefix("torch."),
        )
        cache = allocate(backend.kv_cache_layout(request), batch.device)
        poison(cache, math.nan)
        return cache

    @staticmethod
    def _places(batch: AttentionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        slots = batch.common.slot_mapping
        return slots // batch.dimensions.block_size, slots % batch.dimensions.block_size

    @staticmethod
    def _is_written(batch: AttentionBatch, cache: torch.Tensor) -> torch.Tensor:
        """[num_blocks, block_size] bool: slots of positions that exist."""
        written = torch.zeros(cache.shape[0] * batch.dimensions.block_size, dtype=torch.bool)
        for row in range(len(batch.scenario.query_lens)):
            written[batch.slots(row, batch.held_positions(row))] = True
        return written.view(cache.shape[0], batch.dimensions.block_size).to(cache.device)

    @staticmethod
    def _require_standard_layout(batch: AttentionBatch) -> None:
        if batch.dimensions.layout not in STANDARD_KV_LAYOUTS:
            raise NotClaimedError(f"has only a layout of its own, {batch.dimensions.layout}, in which the kit cannot look")

    def _require_separate_write(self, batch: AttentionBatch) -> None:
        self._require_standard_layout(batch)
        if self.claims.fused_kv_write:
            raise NotClaimedError("writes K and V inside forward")


def _same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Bit by bit, NaN equal to itself."""
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))
