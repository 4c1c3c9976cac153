"""One step of a model without a model: K and V of the scheduled tokens are written, and what they see is read and compared.

What this file does not know: the manager, but for the tables it gave; how a step came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, BlockCopy, KVCacheSetup
from slotwise.testing.runner_tables import RunnerTables
from slotwise.testing.simulated_memory import GARBAGE, ContentIds, SimulatedMemory, first_visible
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import ConformanceError, require


@dataclass(slots=True)
class Scheduled:
    """One request's part of the step."""

    request: SimulatedRequest
    num_tokens: int
    """Known tokens to compute."""
    num_drafts: int
    """Guessed tokens to compute after them."""
    num_lookahead: int
    has_started: bool
    """Admitted in this very step."""
    copies: tuple[BlockCopy, ...]
    new_token_ids: Sequence[int] = ()
    """What the step yields: accepted drafts, then one more."""

    @property
    def num_valid_tokens(self) -> int:
        """Tokens computed after the step, rejected drafts not counted."""
        return self.request.num_computed_tokens + self.num_tokens + max(0, len(self.new_token_ids) - 1)

    @property
    def num_written_tokens(self) -> int:
        """Tokens with K and V after the step, worthless ones of drafts and lookahead included."""
        return self.request.num_computed_tokens + self.num_tokens + self.num_drafts + self.num_lookahead


class SimulatedStep:
    """Memory and tables together: who may write where, who reads what."""

    def __init__(self, setup: KVCacheSetup, tables: RunnerTables) -> None:
        self._setup = setup
        self._tables = tables
        self._memory = SimulatedMemory()
        self._contents = ContentIds()

    def run(self, scheduled: Mapping[str, Scheduled]) -> None:
        """Copies, then writes, then reads, as attention does. Accepted drafts are among the requests' tokens already."""
        parts = list(scheduled.values())
        self._copy(scheduled)
        for part in parts:
            self._write(part, part.num_valid_tokens, scheduled)
        for part in parts:
            for position in {part.request.num_computed_tokens, part.num_valid_tokens - 1}:
                self._read(part.request, position)

    def fail(self, scheduled: Mapping[str, Scheduled]) -> None:
        """No copy was carried out, and nobody knows what was written."""
        for part in scheduled.values():
            for copy in part.copies:
                self._memory.spoil(copy.target_block, copy.num_tokens)
            self._write(part, 0, scheduled)

    def _copy(self, scheduled: Mapping[str, Scheduled]) -> None:
        copies = [(part, copy) for part in scheduled.values() for copy in part.copies]
        for part, copy in copies:
            self._check_writable(part, copy.target_block, scheduled, is_known=True)
        self._memory.copy([(copy.source_block, copy.target_block, copy.num_tokens) for _, copy in copies])

    def _write(self, part: Scheduled, num_valid: int, scheduled: Mapping[str, Scheduled]) -> None:
        request, end = part.request, part.request.num_computed_tokens + part.num_tokens
        last = min(part.num_written_tokens, self._setup.max_model_len)
        for group, table in zip(self._setup.groups, self._tables.held_by(request.request_id), strict=True):
            for position in range(request.num_computed_tokens, last):
                block_id = table[position // group.block_size]
                self._check_writable(part, block_id, scheduled, is_known=position < end)
                content = self._contents.at(request, position) if position < num_valid else GARBAGE
                self._memory.write(group, block_id, position, content)

    def _check_writable(self, writer: Scheduled, block_id: int, scheduled: Mapping[str, Scheduled], *, is_known: bool) -> None:
        """Held by the writer, and otherwise only by requests that started with it after it was promised in this very step."""
        require(block_id != NULL_BLOCK_ID, f"{writer.request} would write into the null block")
        order = list(scheduled)
        for request_id, tables in self._tables.held().items():
            if request_id == writer.request.request_id or not any(block_id in table for table in tables):
                continue
            reader = scheduled.get(request_id)
            is_later = reader is not None and reader.has_started and order.index(request_id) > order.index(writer.request.request_id)
            if not (is_known and is_later):
                raise ConformanceError(f"{writer.request} would write into block {block_id}, which {request_id} shares")

    def _read(self, request: SimulatedRequest, position: int) -> None:
        for group, table in zip(self._setup.groups, self._tables.held_by(request.request_id), strict=True):
            for seen in range(first_visible(group, position), position + 1):
                block_id = table[seen // group.block_size]
                require(block_id != NULL_BLOCK_ID, f"position {position} of {request} sees position {seen}, whose block was given back")
                require(
                    self._memory.read(group, block_id, seen) == self._contents.at(request, seen),
                    f"block {block_id} of group {group.index} does not hold K and V of position {seen} of {request}",
                )
