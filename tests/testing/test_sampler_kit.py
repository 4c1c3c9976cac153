"""The kits of samplers and logits processors catch each of many faulty ones, and raise no false alarm."""

from __future__ import annotations

import pytest

from slotwise.plugin.registry import ComponentRegistry
from slotwise.testing.cases import Outcome, case_names, kit_for, run_case

from .mutants import processor_mutants, sampler_mutants
from .mutants.plain_sampler import PlainSampler
from .mutants.processor_mutants import PlainProcessor


def mutants_in(module, base):
    return [found for found in vars(module).values() if isinstance(found, type) and issubclass(found, base) and found is not base]


SAMPLERS = mutants_in(sampler_mutants, PlainSampler)
PROCESSORS = mutants_in(processor_mutants, PlainProcessor)
SLOW = {"draws_follow_the_softmax_of_a_large_vocabulary"}
"""Not for a sampler of Python loops."""


def small_kit(component, **attributes):
    """Fewer draws, for a sampler that takes one row after the other."""
    kit = kit_for("sampler", component, **attributes)
    draws = kit.draws
    kit.draws = lambda self, logits, rules, num_draws=6000, **more: draws(self, logits, rules, min(num_draws, 6000), **more)
    return kit


@pytest.fixture(autouse=True)
def fewer_rounds(monkeypatch):
    monkeypatch.setattr("slotwise.testing.sampler_draft_cases.ROUNDS", 5)
    monkeypatch.setattr("slotwise.testing.sampler_kit.MAX_ROWS", 2000)


def test_there_are_enough_mutants():
    assert len(SAMPLERS) >= 20
    assert len(PROCESSORS) >= 10


@pytest.mark.parametrize("mutant", SAMPLERS, ids=lambda mutant: mutant.__name__)
def test_each_faulty_sampler_is_caught_by_the_case_of_the_broken_rule(mutant):
    assert run_case(small_kit(mutant), mutant.caught_by).outcome is Outcome.FAILED


@pytest.mark.parametrize("case", [case for case in case_names(kit_for("sampler", PlainSampler)) if case not in SLOW])
def test_a_correct_sampler_raises_no_alarm(case):
    result = run_case(small_kit(PlainSampler), case)
    assert result.outcome is Outcome.PASSED, result.message


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", case_names(kit_for("sampler", "torch")))
def test_the_torch_sampler_conforms(case, seed):
    result = run_case(kit_for("sampler", "torch", seed=seed), case)
    assert result.outcome is Outcome.PASSED, result.message


class ClaimsLittle(PlainSampler):
    """Claims are what is examined."""

    capabilities = type(PlainSampler.capabilities)(devices=("cpu",), per_request_seeds=False, logprobs_modes=("raw_logits",))

    def uniform(self, seed, position, purpose):
        return super().uniform(None, position, purpose)

    def verify(self, *arguments):
        raise NotImplementedError


@pytest.mark.parametrize("case", ["a_seed_and_a_position_give_one_id", "sampled_drafts_keep_the_distribution"])
def test_what_is_not_claimed_is_not_examined(case):
    assert run_case(small_kit(ClaimsLittle), case).outcome is Outcome.NOT_CLAIMED


@pytest.mark.parametrize("case", ["logprobs_are_those_of_the_mode", "unusable_rows_give_no_id_and_harm_nobody"])
def test_the_rest_is_examined(case):
    result = run_case(small_kit(ClaimsLittle), case)
    assert result.outcome is (Outcome.PASSED if case.startswith("logprobs") else Outcome.FAILED), result.message


@pytest.mark.parametrize("mutant", PROCESSORS, ids=lambda mutant: mutant.__name__)
def test_each_faulty_processor_is_caught_by_the_case_of_the_broken_rule(mutant):
    assert run_case(kit_for("logits_processor", mutant), mutant.caught_by).outcome is Outcome.FAILED


@pytest.mark.parametrize("case", case_names(kit_for("logits_processor", PlainProcessor)))
def test_a_correct_processor_raises_no_alarm(case):
    result = run_case(kit_for("logits_processor", PlainProcessor), case)
    assert result.outcome is not Outcome.FAILED, result.message


@pytest.mark.parametrize("name", ComponentRegistry().names("logits_processor"))
def test_built_in_processors_conform(name):
    for seed in range(5):
        kit = kit_for("logits_processor", name, seed=seed)
        results = [run_case(kit, case) for case in case_names(kit)]
        assert [result.message for result in results if result.outcome is Outcome.FAILED] == []
        assert sum(result.outcome is Outcome.PASSED for result in results) >= 9


def test_a_processor_that_nothing_wakes_has_claimed_nothing():
    kit = kit_for("logits_processor", PlainProcessor, params=({"min_tokens": 3},))
    assert run_case(kit, "it_does_something").outcome is Outcome.NOT_CLAIMED
