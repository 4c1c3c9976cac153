"""Running cases outside pytest: outcomes, names, messages, repeatable runs."""

from __future__ import annotations

import pytest

from slotwise.errors import ComponentNotFoundError, ConfigError
from slotwise.testing import ConformanceError, KVCacheManagerConformance, NotClaimedError, SchedulerPolicyConformance
from slotwise.testing.cases import KITS, Outcome, case_names, kit_for, run_case, run_cases
from slotwise.testing.component_options import parse_options
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.verdicts import require

from .mutants.lookup_mutants import KeepsAFailedStep


class Kit(ComponentConformance):
    def test_second_by_name_first_by_place(self) -> None:
        """Is fine."""

    def test_breaks(self) -> None:
        """Breaks a rule."""
        require(1 > 2, "one is not more than two")

    def test_abstains(self) -> None:
        """Has nothing to say."""
        raise NotClaimedError("offers none")

    def test_crashes(self) -> None:
        """Raises what it likes."""
        {}["missing"]


def test_each_outcome_is_told_apart():
    results = list(run_cases(Kit))
    assert [(result.name, result.outcome, result.message) for result in results] == [
        ("second_by_name_first_by_place", Outcome.PASSED, ""),
        ("breaks", Outcome.FAILED, "one is not more than two"),
        ("abstains", Outcome.NOT_CLAIMED, "offers none"),
        ("crashes", Outcome.FAILED, "KeyError: 'missing'"),
    ]
    assert results[1].to_dict() == {
        "case": "breaks",
        "summary": "Breaks a rule.",
        "outcome": "fail",
        "message": "one is not more than two",
        "steps": [],
    }


def test_rules_are_checked_without_assert_statements():
    with pytest.raises(ConformanceError, match="must hold"):
        require([], "must hold")


@pytest.mark.parametrize("slot", KITS)
def test_every_case_of_every_kit_says_in_one_line_what_it_is_about(slot):
    kit = kit_for(slot, "any")
    for name in case_names(kit):
        first_line = getattr(kit, f"test_{name}").__doc__.splitlines()[0]
        assert first_line.endswith((".", ":")), name
        assert len(first_line) <= 120, name


def test_one_seed_always_tries_the_same_and_tells_its_steps():
    kit = kit_for("kv_cache", KeepsAFailedStep, seed=5, shrink=False)
    first, second = run_case(kit, "random_traffic"), run_case(kit, "random_traffic")
    assert first == second
    assert first.outcome is Outcome.FAILED
    assert any("state.step(" in line for line in first.steps)


def test_shrinking_finds_a_shorter_run():
    shown, shrunk = (
        len(run_case(kit_for("kv_cache", KeepsAFailedStep, seed=1, shrink=shrink), "random_traffic").steps) for shrink in (False, True)
    )
    assert 0 < shrunk < shown


def test_a_slot_without_kit_is_named():
    with pytest.raises(ComponentNotFoundError, match=r'slot "schedular".* Did you mean "scheduler"'):
        kit_for("schedular", "fcfs")


@pytest.mark.parametrize("component", [None, 3, dict, KVCacheManagerConformance])
def test_a_component_that_is_none_says_what_is_wanted(component):
    kit = type("Kit", (SchedulerPolicyConformance,), {"component": component})
    with pytest.raises(TypeError, match="the name of a component of the slot scheduler, or to a subclass of SchedulerPolicy"):
        kit().implementation()


def test_options_reach_the_component_and_are_validated():
    kit = kit_for("scheduler", "priority", options=parse_options(["displace=true", "aging_seconds=2.5"]))
    _, options = kit().implementation()
    assert (options.displace, options.aging_seconds) == (True, 2.5)
    assert run_case(kit, "displacement_is_for_the_more_urgent_only").outcome is Outcome.PASSED
    with pytest.raises(ConfigError, match="displace"):
        kit_for("scheduler", "priority", options={"displce": True})().implementation()


def test_option_texts_are_values_where_they_are_json_and_texts_elsewhere():
    assert parse_options(["a=1", "b=true", "c=x y", "d=[1, 2]", "e=u=v"]) == {"a": 1, "b": True, "c": "x y", "d": [1, 2], "e": "u=v"}
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_options(["displace"])
