"""Cases of the `attention` slot about steps: prompts cut into chunks, one instance over many steps, batches, replayed graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from slotwise.interfaces.attention import AttentionBackend, AttentionCall, GraphSupport
from slotwise.testing.attention_batch import AttentionBatch
from slotwise.testing.attention_kit import AttentionKit
from slotwise.testing.attention_scenario import DECODES, MIXED, Scenario
from slotwise.testing.verdicts import NotClaimedError, require

PROMPT_LEN: Final = 23
ROWS_PER_KEY: Final = ((1, 1), (4, 2), (9, 3), (4, 1), (6, 1), (8, 1))
"""(heads, KV heads): kernels often treat few query heads per key otherwise than many."""
CHUNKINGS: Final = ((23,), (7, 16), (16, 7), (5, 1, 1, 9, 7), (1,) * 23)


class AttentionStepCases(AttentionKit):
    """One rule each."""

    def test_chunks_of_a_prompt_give_the_whole(self) -> None:
        """A prompt computed at once, in chunks and token by token: each position's result is right."""
        scenarios = [Scenario(query_lens=(PROMPT_LEN,), seq_lens=(PROMPT_LEN,))]
        if "sliding_window" in self.claims.layer_kinds:
            scenarios.append(replace(scenarios[0], sliding_window=6))
        for scenario in scenarios:
            for chunking in CHUNKINGS:
                self._compute_in_chunks(self.batch(scenario), chunking)

    def test_one_instance_serves_many_steps(self) -> None:
        """Metadata of earlier steps, of the same and of other shapes, leaves no trace."""
        scenarios = [
            Scenario(**MIXED, seed=1),
            Scenario(**MIXED, seed=2),
            Scenario(query_lens=(1, 5, 1, 3, 1, 7), seq_lens=(12, 6, 3, 20, 2, 7), seed=3),
            Scenario(**DECODES, seed=4),
            Scenario(query_lens=(1, 1, 1, 1), seq_lens=(3, 17, 5, 60), seed=5),
            Scenario(query_lens=(30,), seq_lens=(33,), seed=6),
        ]
        batches = [self.batch(scenario) for scenario in scenarios]
        backend = self.make_backend(*batches)
        for batch in batches:
            self.compare(batch, self.run(batch, backend), "many steps")

    def test_tensors_refilled_in_place_are_read_anew(self) -> None:
        """The engine may put the next step's numbers into the same tensors: nothing is remembered by identity."""
        first, second = self.batch(Scenario(**DECODES, seed=1)), self.batch(Scenario(**DECODES, seed=2))
        backend = self.make_backend(first, second)
        self.compare(first, self.run(first, backend), "refilled tensors")
        width = first.common.block_table.shape[1]
        for name in ("query_start_loc", "query_start_loc_cpu", "seq_lens", "seq_lens_cpu", "slot_mapping", "positions"):
            getattr(first.common, name).copy_(getattr(second.common, name))
        first.common.block_table.copy_(second.common.block_table[:, :width])
        second.common = first.common
        self.compare(second, self.run(second, backend), "refilled tensors")

    def test_layers_of_one_group_differ(self) -> None:
        """One step's metadata serves layers of other windows, soft caps and scales."""
        variations: list[dict[str, Any]] = [{}, {"scale": 0.7}]
        if "sliding_window" in self.claims.layer_kinds:
            variations += [{"sliding_window": 3}, {"sliding_window": 9}]
        if self.claims.logits_soft_cap:
            variations.append({"logits_soft_cap": 1.5})
        batches = [self.batch(Scenario(**MIXED, **changes)) for changes in variations]
        for index, batch in enumerate(batches):
            batch.layer = replace(batch.layer, name=f"layer{index}", index=index)
        backend = self.make_backend(*batches)
        caches = [self.make_cache(backend, batch) for batch in batches]
        metadata = backend.build_metadata(self.request(batches[0]))
        for batch, cache in zip(batches, caches, strict=True):
            self.write_step(backend, batch, cache)
            call = self.call(batch, cache, metadata)
            backend.forward(call)
            self.compare(batch, call, "layers of one group")

    def test_block_table_of_another_group(self) -> None:
        """`update_block_table` gives what building anew gives, and leaves the metadata it started from alone."""
        first, second = self.batch(Scenario(**MIXED, seed=1)), self.batch(Scenario(**MIXED, seed=2))
        backend = self.make_backend(first, second)
        metadata = backend.build_metadata(self.request(first))
        updated = backend.update_block_table(metadata, second.common.block_table, second.common.slot_mapping)
        if updated is None:
            raise NotClaimedError("builds metadata anew for each group")
        for batch, its_metadata in ((second, updated), (first, metadata)):
            cache = self.make_cache(backend, batch)
            self.write_step(backend, batch, cache)
            call = self.call(batch, cache, its_metadata)
            backend.forward(call)
            self.compare(batch, call, "updated block table")

    def test_results_do_not_depend_on_the_batch(self) -> None:
        """Under `batch_invariant` a row's result is bit-equal alone, beside others, in another place, and run again."""
        self.require_claim(self.claims.batch_invariant, "batch-invariant results")
        for dtype in self.dtypes():
            alone = Scenario(query_lens=(1,), seq_lens=(333,), batch_invariant=True, dtype=dtype)
            chunk = Scenario(query_lens=(9,), seq_lens=(70,), batch_invariant=True, dtype=dtype)
            for scenario in (alone, chunk):
                self._compare_in_crowds(scenario)

    def test_chunks_are_bit_equal(self) -> None:
        """Under `batch_invariant` a position's result is bit-equal however its prompt was cut into chunks."""
        self.require_claim(self.claims.batch_invariant, "batch-invariant results")
        wide = next((dim for dim in self.head_dims() if dim in (64, 128)), None)
        for dtype in self.dtypes():
            shapes = [(4, 2, None, CHUNKINGS), *((heads, kv, wide, (CHUNKINGS[0], CHUNKINGS[-1])) for heads, kv in ROWS_PER_KEY)]
            for num_heads, num_kv_heads, head_dim, chunkings in shapes:
                scenario = Scenario(
                    query_lens=(PROMPT_LEN,), seq_lens=(PROMPT_LEN,), batch_invariant=True, dtype=dtype,
                    num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
                )  # fmt: skip
                if self.refused_combination(scenario) is None:
                    self._check_chunks_are_bit_equal(scenario, chunkings)

    def _check_chunks_are_bit_equal(self, scenario: Scenario, chunkings: Sequence[tuple[int, ...]]) -> None:
        results = [self._compute_in_chunks(self.batch(scenario), chunking) for chunking in chunkings]
        for chunking, result in zip(chunkings[1:], results[1:], strict=True):
            require(torch.equal(result, results[0]), f"computed in chunks of {chunking} the prompt's results differ from those at once")

    def test_graphs_replay_later_steps(self) -> None:
        """A captured forward computes the later step after `build_metadata(for_graph_capture=True)` refreshed its buffers."""
        support = self.claims.graph_support
        self.require_claim(support > GraphSupport.NEVER, "graph capture")
        self._replay(Scenario(query_lens=(1, 1, 1), seq_lens=(4, 30, 9)), Scenario(query_lens=(1, 1, 1), seq_lens=(61, 2, 17), seed=1))
        if support >= GraphSupport.UNIFORM_BATCH:
            self._replay(Scenario(query_lens=(3, 3), seq_lens=(8, 30)), Scenario(query_lens=(3, 3), seq_lens=(41, 3), seed=1))
        if support >= GraphSupport.ALWAYS:
            self._replay(Scenario(query_lens=(1, 6, 2), seq_lens=(8, 30, 2)), Scenario(query_lens=(5, 1, 3), seq_lens=(41, 3, 19), seed=1))

    def _compute_in_chunks(self, batch: AttentionBatch, chunking: tuple[int, ...]) -> torch.Tensor:
        """The prompt's results, computed chunk by chunk over one growing cache, each compared with the truth."""
        scenario, done, outputs, cache = batch.scenario, 0, [], None
        parts = []
        for query_len in chunking:
            done += query_len
            part = self.batch(replace(scenario, query_lens=(query_len,), seq_lens=(done,)))
            rows = slice(done - query_len, done)
            part.query = batch.query[rows]
            part.keys, part.values = [batch.keys[0][:done]], [batch.values[0][:done]]
            parts.append(part)
        backend = self.make_backend(batch, *parts)
        for part in parts:
            self._take_blocks(part, batch)
            cache = self.make_cache(backend, batch) if cache is None else cache
            self.write_step(backend, part, cache)
            call = self.call(part, cache, backend.build_metadata(self.request(part)))
            backend.forward(call)
            self.compare(part, call, "chunks")
            outputs.append(call.output)
        return torch.cat(outputs)

    @staticmethod
    def _take_blocks(part: AttentionBatch, whole: AttentionBatch) -> None:
        """Give the part the blocks of the whole prompt's row, in the same order."""
        part.block_table, part.num_blocks = whole.block_table, whole.num_blocks
        positions = part.common.positions
        part.common = replace(
            part.common,
            block_table=whole.block_table.to(part.device),
            slot_mapping=part.slots(0, positions.cpu()).to(part.device),
        )

    def _compare_in_crowds(self, scenario: Scenario) -> None:
        alone = self.batch(scenario)
        expected = self.run(alone).output
        query_len, seq_len = scenario.query_lens[0], scenario.seq_lens[0]
        for before, after in (((), ()), ((), ((1, 500),)), (((1, 5), (4, 40)), ((1, 1),)), (((1, 120),) * 3, ((17, 17),))):
            rows = (*before, (query_len, seq_len), *after)
            crowd = self.batch(replace(scenario, query_lens=tuple(row[0] for row in rows), seq_lens=tuple(row[1] for row in rows), seed=3))
            place, start = len(before), sum(row[0] for row in before)
            crowd.keys[place], crowd.values[place] = alone.keys[0], alone.values[0]
            crowd.query[start : start + query_len] = alone.query
            found = self.run(crowd).output[start : start + query_len]
            require(
                torch.equal(found, expected),
                f"the row (query_len {query_len}, seq_len {seq_len}) differs in the last bits beside rows {before} and {after}",
            )

    def _replay(self, captured: Scenario, later: Scenario) -> None:
        self.require_combination(captured)
        first, second = self.batch(captured), self.batch(later)
        self._unify(first, second)
        backend = self.make_backend(first, second)
        cache = self.make_cache(backend, first)
        self.write_step(backend, first, cache)
        metadata = backend.build_metadata(self.request(first, for_graph_capture=True))
        call = self.call(first, cache, metadata)
        replay = _Recorded(backend, call)
        self.compare(first, call, "graph capture")
        call.query.copy_(second.query)
        for captured_rows, rows in zip((call.key, call.value), second.step_keys(), strict=True):
            if captured_rows is not None and rows is not None:
                captured_rows.copy_(rows)
        cache.copy_(self.make_cache(backend, second))
        self.write_step(backend, second, cache)
        backend.build_metadata(self.request(second, for_graph_capture=True))
        replay.run()
        self.compare(second, call, "graph replay")

    @staticmethod
    def _unify(first: AttentionBatch, second: AttentionBatch) -> None:
        """Both with block tables of one width and pools of one size, as the engine has them."""
        width = max(first.block_table.shape[1], second.block_table.shape[1])
        num_blocks = max(first.num_blocks, second.num_blocks)
        for batch in (first, second):
            table = torch.zeros(batch.block_table.shape[0], width, dtype=torch.int32)
            table[:, : batch.block_table.shape[1]] = batch.block_table
            batch.block_table, batch.num_blocks = table, num_blocks
            batch.common = replace(batch.common, block_table=table.to(batch.device))


class _Recorded:
    """One forward, run once and to be run again: as a CUDA graph on a GPU, by the same Python call elsewhere."""

    def __init__(self, backend: AttentionBackend, call: AttentionCall) -> None:
        self.backend, self.call = backend, call
        self.graph: torch.cuda.CUDAGraph | None = None
        backend.forward(call)
        if call.query.is_cuda:
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                backend.forward(call)

    def run(self) -> None:
        """Compute again, from what the captured tensors hold now."""
        if self.graph is None:
            self.backend.forward(self.call)
        else:
            self.graph.replay()
            torch.cuda.synchronize()
