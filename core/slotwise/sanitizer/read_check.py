"""Does any row's result depend on a slot that the row may not see?

The layer's attention has run once, with every slot that may not be read at NaN. It now runs again into scratch memory, several times, each
time with only the slots of some rows left and all else at NaN: the results of those rows must stay free of NaN. When one does not,
the slot to blame is found by halving the set of suspects, one run per halving.

A slot shared by several requests may escape a wrong reader in batches of more than two rows, since rows are told apart in pairs.

What this file does not know: how blocks are held, what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from slotwise.engine.attention_dispatch import AttentionPart
from slotwise.sanitizer.layer_turn import LayerTurn, name_of
from slotwise.sanitizer.visibility import separating_subsets

Forward = Callable[[AttentionPart, torch.Tensor], None]
"""Computes one part of the layer's attention into its rows of an output [num_tokens, num_heads, head_dim]."""


class ReadCheck:
    """Of one layer's turn."""

    def __init__(self, turn: LayerTurn, parts: Iterable[AttentionPart], forward: Forward) -> None:
        self.turn = turn
        self.parts = tuple(parts)
        self.forward = forward
        self._excused: set[int] = set()
        """Rows with a NaN that no slot explains: it came with the model's query, key or value."""

    def run(self, output: torch.Tensor) -> None:
        """`output`: of the run that counts. Raises KVSanitizerError; the memory is as before in any case."""
        step, bound = self.turn.step, self.turn.bound
        nothing = torch.empty(0, dtype=torch.int64, device=output.device)
        self._scratch = torch.empty_like(output)
        try:
            self._judge(output, range(len(step.request_ids)), nothing)
            for rows in separating_subsets(len(step.request_ids)):
                hidden = torch.from_numpy(step.hidden_slots(rows, bound.group, bound.layer)).to(output.device)
                if len(hidden):
                    self._judge(self._run_with(poisoned=hidden, cleared=nothing), rows, hidden)
        finally:
            self.turn.slots.memory.restore()

    def _run_with(self, *, poisoned: torch.Tensor, cleared: torch.Tensor) -> torch.Tensor:
        """Run with some slots [num_slots] at NaN and some at zero, the others as they must be."""
        slots = self.turn.slots
        slots.memory.restore()
        slots.real[slots.place(cleared)] = 0
        slots.real[slots.place(poisoned)] = slots.memory.poison
        for part in self.parts:
            self.forward(part, self._scratch)
        return self._scratch

    def _judge(self, output: torch.Tensor, rows: Iterable[int], hidden: torch.Tensor) -> None:
        is_nan = output.isnan().flatten(1).any(dim=1)
        if not bool(is_nan.any()):
            return
        for row in rows:
            if row not in self._excused and self._has_nan(is_nan, row):
                self._accuse(row, hidden)

    def _has_nan(self, is_nan: torch.Tensor, row: int) -> bool:
        starts = self.turn.step.query_start_loc
        return bool(is_nan[starts[row] : starts[row + 1]].any())

    def _accuse(self, row: int, hidden: torch.Tensor) -> None:
        suspects = self._suspects(row, hidden)
        if self._is_touched(row, suspects[:0], suspects):
            self._excused.add(row)
            return
        guilty = suspects
        while len(guilty) > 1:
            first, second = guilty[: len(guilty) // 2], guilty[len(guilty) // 2 :]
            guilty = first if self._is_touched(row, first, suspects) else second
        self._report(row, int(guilty[0]))

    def _is_touched(self, row: int, poisoned: torch.Tensor, suspects: torch.Tensor) -> bool:
        """Does the row turn to NaN when, of all suspects, these are at NaN and the others at zero?"""
        output = self._run_with(poisoned=poisoned, cleared=suspects)
        return self._has_nan(output.isnan().flatten(1).any(dim=1), row)

    def _suspects(self, row: int, hidden: torch.Tensor) -> torch.Tensor:
        """Slots the row may not read, those of its own blocks first, so that the nearest cause is the one named."""
        step, slots, group = self.turn.step, self.turn.slots, self.turn.bound.group
        is_suspect = ~torch.from_numpy(step.filled_slots(group)).flatten().to(hidden.device)
        is_suspect[hidden] = True
        held = step.ownership.held[step.request_ids[row]].block_ids[group]
        is_own = torch.zeros_like(is_suspect).view(-1, slots.block_size)
        is_own[[block for block in held if block]] = True
        own = is_own.flatten() & is_suspect
        return torch.cat([own.nonzero().squeeze(1), (is_suspect & ~own).nonzero().squeeze(1)])

    def _report(self, row: int, slot: int) -> None:
        turn, step = self.turn, self.turn.step
        block, offset = divmod(slot, turn.slots.block_size)
        fault, cause = step.judge_read(row, block, offset, turn.bound.group, turn.bound.layer)
        token = step.query_start_loc[row]
        backend = next(part.backend for part in self.parts if part.tokens.start <= token < part.tokens.stop)
        turn.fail(
            f"{name_of(backend)} let slot {slot} of block {block} (offset {offset}) into the result of request "
            f"{step.request_ids[row]!r} in {turn.label}; that block {step.describe(block, offset, turn.bound.group)}. "
            f"Likely cause: {cause}.",
            fault=fault,
            request_id=step.request_ids[row],
            block_id=block,
            offset=offset,
        )
