"""What goes through a KV cache manager under test: prompts, keys, sizes, and a request that has the pool to itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

from slotwise.interfaces.kv_cache import ExtraKey
from slotwise.testing.kv_simulation import KVSimulation
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import require

MAX_MODEL_LEN: Final = 40
MAX_STEP_TOKENS: Final = 12
BLOCK_SIZES: Final = (1, 2, 3, 4)
EVENTS: Final = ("nothing",) * 8 + ("abort", "evict", "reset", "drain", "fail", "fail_and_forget")
EXTRA_KEYS: Final[Sequence[tuple[ExtraKey, ...]]] = (
    (),
    (),
    (),
    (ExtraKey(source="cache_salt", value="x", num_tokens=1),),
    (ExtraKey(source="adapter", value="x"),),
    (ExtraKey(source="adapter", value="x"), ExtraKey(source="cache_salt", value="x", num_tokens=1)),
    (ExtraKey(source="multimodal", value="x", first_token=2, num_tokens=3),),
)
Prompt = tuple[int, list[int], tuple[ExtraKey, ...], bool]
PROMPTS: Final = st.tuples(
    st.integers(1, 20), st.lists(st.integers(0, 1), max_size=4), st.sampled_from(EXTRA_KEYS), st.sampled_from([False, False, False, True])
)

ARRIVALS: Final = st.lists(PROMPTS, max_size=2)


def make_probes(longest: int) -> list[SimulatedRequest]:
    """Requests that only look."""
    tokens = [[0] * 16, [0] * 5 + [1], [0, 1, 1, 0, 1]]
    return [SimulatedRequest(f"probe{index}", ids[:longest]) for index, ids in enumerate(tokens)]


def compute_alone(simulation: KVSimulation, request: SimulatedRequest) -> None:
    """Compute all tokens of a request while nothing else runs, in steps of `MAX_STEP_TOKENS`."""
    prefix = simulation.find(request)
    num_tokens = min(MAX_STEP_TOKENS, request.num_tokens - prefix.num_tokens)
    fits = simulation.start(request, num_tokens, prefix)
    require(fits, f"{request} of {request.num_tokens} tokens, alone in the pool, cannot start")
    simulation.run_step()
    while request.num_missing_tokens:
        num_tokens = min(MAX_STEP_TOKENS, request.num_missing_tokens)
        require(
            simulation.grow(request, num_tokens),
            f"{request}, alone in the pool, cannot go beyond {request.num_computed_tokens} of the {request.num_tokens} tokens "
            "that max_request_tokens promises",
        )
        simulation.run_step()
