"""`KVCacheManagerConformance`: the cases of the `kv_cache` slot.

First each rule by an example of its own, then all rules at once under random traffic. A manager that never finds a prefix, tells no
events or refuses a kind of group has not claimed those. What this file does not know: how blocks are kept or named.
"""

from __future__ import annotations

from typing import Any, Final

from slotwise.interfaces.attention import CHUNKED_LOCAL, FULL, SLIDING_WINDOW
from slotwise.testing.kv_allocation_cases import KVAllocationCases
from slotwise.testing.kv_kit import make_setup
from slotwise.testing.kv_lookup_cases import KVLookupCases
from slotwise.testing.kv_machine import KVCacheMachine
from slotwise.testing.kv_truth_cases import KVTruthCases
from slotwise.testing.verdicts import NotClaimedError

NUM_STEPS: Final = 30
FULL_KINDS: Final[tuple[dict[str, Any], ...]] = ({"kind": FULL},)
WINDOW_KINDS: Final = tuple({"kind": SLIDING_WINDOW, "sliding_window": window} for window in (1, 4, 6))
CHUNK_KINDS: Final = tuple({"kind": CHUNKED_LOCAL, "chunk_len": length} for length in (6, 8))


class KVCacheManagerConformance(KVTruthCases, KVLookupCases, KVAllocationCases):
    """Subclass it in a test module as `class TestMyManager(KVCacheManagerConformance): component = "my_manager"`."""

    def test_random_traffic(self) -> None:
        """Random requests, chunks, drafts, aborts, preemptions and failed steps, full attention."""
        self.run_machine(lambda: KVCacheMachine(self.make_manager, [FULL_KINDS]), num_steps=NUM_STEPS)

    def test_random_traffic_without_prefix_caching(self) -> None:
        """The same with `enable_prefix_caching` off: nothing is ever found."""
        self.run_machine(lambda: KVCacheMachine(self.make_manager, [FULL_KINDS], enable_prefix_caching=False), num_steps=NUM_STEPS)

    def test_random_traffic_with_a_sliding_window(self) -> None:
        """The same for one group of sliding-window layers."""
        self._run_kinds(WINDOW_KINDS)

    def test_random_traffic_with_chunked_local_attention(self) -> None:
        """The same for one group of chunked-local layers."""
        self._run_kinds(CHUNK_KINDS)

    def test_random_traffic_with_two_groups(self) -> None:
        """The same for a full group beside another, of other block sizes."""
        self._run_kinds(FULL_KINDS, (*FULL_KINDS, *WINDOW_KINDS, *CHUNK_KINDS))

    def _run_kinds(self, *group_kinds: tuple[dict[str, Any], ...]) -> None:
        try:
            self.make_manager(make_setup(*(kinds[-1] for kinds in group_kinds)))
        except ValueError as error:
            raise NotClaimedError(str(error)) from error
        self.run_machine(lambda: KVCacheMachine(self.make_manager, group_kinds), num_steps=NUM_STEPS)
