"""The kit of logits processors catches each of many faulty ones, and raises no false alarm."""

from __future__ import annotations

import re

import pytest

from slotwise.interfaces.logits_processor import LogitsProcessorCapabilities
from slotwise.plugin.registry import ComponentRegistry
from slotwise.testing.cases import Outcome, case_names, kit_for, run_case

from .mutants import processor_mutants
from .mutants.processor_mutants import PlainProcessor

MUTANTS = [found for found in vars(processor_mutants).values() if isinstance(found, type) and found.__base__ is PlainProcessor]
CASES = case_names(kit_for("logits_processor", PlainProcessor))


def test_every_case_has_a_mutant():
    assert len(MUTANTS) >= 20
    assert {mutant.caught_by for mutant in MUTANTS} == set(CASES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_faulty_processor_is_caught_by_the_case_of_the_broken_rule(mutant):
    result = run_case(kit_for("logits_processor", mutant), mutant.caught_by)
    assert result.outcome is Outcome.FAILED
    exception = re.match(r"(\w+Error): ", result.message)
    assert (exception and exception[1]) == mutant.raises, result.message


@pytest.mark.parametrize("case", CASES)
def test_a_correct_processor_raises_no_alarm(case):
    result = run_case(kit_for("logits_processor", PlainProcessor), case)
    expected = Outcome.NOT_CLAIMED if case == "the_claim_about_the_argmax_is_true" else Outcome.PASSED
    assert result.outcome is expected, result.message


def test_a_true_claim_about_the_argmax_passes():
    class LowersTheWorst(PlainProcessor):
        capabilities = LogitsProcessorCapabilities(changes_argmax=False)

        def apply(self, logits, rows):
            for row, _, _ in self.active_rows(rows):
                logits[row, logits[row].argmin()] -= 1.0
            return True

    assert run_case(kit_for("logits_processor", LowersTheWorst), "the_claim_about_the_argmax_is_true").outcome is Outcome.PASSED


@pytest.mark.parametrize("name", ComponentRegistry().names("logits_processor"))
def test_built_in_processors_conform(name):
    for seed in range(2):
        kit = kit_for("logits_processor", name, seed=seed)
        results = [run_case(kit, case) for case in CASES]
        assert [result.message for result in results if result.outcome is Outcome.FAILED] == []
        assert sum(result.outcome is Outcome.PASSED for result in results) >= len(CASES) - 1


def test_a_processor_that_nothing_wakes_has_claimed_nothing():
    kit = kit_for("logits_processor", PlainProcessor, params=({"min_tokens": 3},))
    assert run_case(kit, "it_does_something").outcome is Outcome.NOT_CLAIMED


def test_params_of_a_subclass_wake_a_processor_of_its_own():
    class HeedsAKey(PlainProcessor):
        def make_state(self, request):
            bias = (request.sampling_params.extra_args or {}).get("my_key")
            return None if bias is None else (bias, request.output_token_ids)

    quiet, told = (kit_for("logits_processor", HeedsAKey, **more) for more in ({}, {"params": ({"extra_args": {"my_key": 3}},)}))
    assert run_case(quiet, "it_does_something").outcome is Outcome.NOT_CLAIMED
    assert [result.message for case in CASES if (result := run_case(told, case)).outcome is Outcome.FAILED] == []
