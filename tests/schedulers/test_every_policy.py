"""What holds for each built-in policy, found as an engine finds it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.engine.request import Request
from slotwise.errors import ConfigError
from slotwise.interfaces.scheduler import SchedulerPolicy
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.options import validate_options
from slotwise.plugin.registry import ComponentRegistry
from slotwise_schedulers.options import BudgetOptions

if TYPE_CHECKING:
    from conftest import Simulation

CASES: list[tuple[str, dict[str, Any]]] = [
    ("fcfs", {}),
    ("fcfs", {"share_budget": True, "max_chunk_tokens": 3}),
    ("priority", {}),
    ("priority", {"displace": True, "aging_seconds": 3.0}),
    ("shortest_first", {}),
    ("shortest_first", {"aging_tokens_per_second": None, "output_weight": 0.0}),
    ("longest_prefix", {}),
    ("longest_prefix", {"window": 2, "max_passes": 1, "max_wait_seconds": 4.0}),
    ("fair", {}),
    ("fair", {"client_weights": {"0": 5.0}, "share_budget": False}),
    ("deadline", {}),
    ("deadline", {"ttft_ms": 5.0, "itl_ms": 2000.0, "ttft_ms_by_priority": {"1": 9000.0}}),
]
"""Defaults, and the options of each policy at work."""


def build(name: str, options: Mapping[str, Any]) -> tuple[type[SchedulerPolicy], BudgetOptions]:
    loaded = ComponentRegistry().get("scheduler", name)
    validated = validate_options(loaded, options)
    assert isinstance(validated, BudgetOptions)
    return import_implementation(loaded), validated


ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 25),
            "prompt": st.integers(1, 30),
            "max_tokens": st.integers(1, 8),
            "priority": st.integers(0, 2),
            "client_id": st.sampled_from([None, "0", "1"]),
            "shares_prefix": st.booleans(),
            "lives_for": st.none() | st.integers(0, 12),
        }
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), ARRIVALS, st.integers(10, 24), st.integers(4, 40), st.integers(1, 4))
def test_everything_that_is_not_aborted_gets_all_its_tokens_and_reasons_are_short(
    make_simulation: type[Simulation],
    case: tuple[str, dict[str, Any]],
    arrivals: list[dict[str, Any]],
    num_blocks: int,
    budget: int,
    max_num_seqs: int,
) -> None:
    simulation = make_simulation(*build(*case), num_blocks=num_blocks, budget=budget, max_num_seqs=max_num_seqs)
    kept: list[Request] = []
    aborts: list[tuple[int, Request]] = []
    for arrival in sorted(arrivals, key=lambda arrival: arrival["at"]):
        while simulation.now < arrival["at"]:
            for request in [request for at, request in aborts if at == simulation.now]:
                simulation.abort(request)
            simulation.step()
        prompt: Any = [7] * arrival["prompt"] if arrival["shares_prefix"] else arrival["prompt"]
        fields = {key: arrival[key] for key in ("max_tokens", "priority", "client_id")}
        request = simulation.add(prompt, **fields)
        if arrival["lives_for"] is None:
            kept.append(request)
        else:
            aborts.append((arrival["at"] + arrival["lives_for"], request))
    for _, request in aborts:
        simulation.abort(request)
    simulation.finish()
    assert all(map(simulation.has_all_tokens, kept))
    assert simulation.reasons or not kept
    assert all(0 < len(part) <= 100 for reason in simulation.reasons for part in reason.split("; "))


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_waiting_requests_are_not_looked_at_again_while_nothing_starts(
    make_simulation: type[Simulation], name: str, options: dict[str, Any]
) -> None:
    policy, validated = build(name, options)
    num_calls = 0

    class Counted(policy):  # type: ignore[valid-type, misc]
        def order_key(self, request: Any, now: float) -> Any:
            nonlocal num_calls
            num_calls += 1
            return super().order_key(request, now)

    simulation = make_simulation(Counted, validated, max_num_seqs=2)
    for _ in range(2):
        simulation.add(4, max_tokens=60)
    simulation.step()
    for _ in range(300):
        simulation.add(4, max_tokens=1)
    num_calls = 0
    for _ in range(20):
        simulation.step()
    assert num_calls <= 20 * 10, "a few per step at most, whatever waits"


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_a_mistyped_option_is_refused_with_the_nearest_known_one(name: str) -> None:
    with pytest.raises(ConfigError, match='Did you mean "max_chunk_tokens"'):
        build(name, {"max_chunk_token": 3})


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("priority", {"aging_seconds": 0}, "aging_seconds"),
        ("shortest_first", {"output_weight": -1}, "output_weight"),
        ("longest_prefix", {"window": 0}, "window"),
        ("fair", {"client_weights": {"a": 0}}, "client_weights.a"),
        ("deadline", {"ttft_ms_by_priority": {"urgent": 3}}, "ttft_ms_by_priority.urgent"),
        ("fcfs", {"max_chunk_tokens": 0}, "max_chunk_tokens"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(name: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"scheduler\.options\.{key}"):
        build(name, options)


def test_records_and_options_import_neither_torch_nor_a_policy() -> None:
    policies = ["fcfs", "priority", "shortest_first", "longest_prefix", "fair", "deadline"]
    modules = ["torch", *(f"slotwise_schedulers.{name}" for name in policies)]
    code = (
        "import sys, slotwise_plugins.registrations.scheduler as r\n"
        "[getattr(r, name).slotwise_component().options() for name in dir(r) if hasattr(getattr(r, name), 'slotwise_component')]\n"
        f"assert not set({modules!r}) & set(sys.modules), set({modules!r}) & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
