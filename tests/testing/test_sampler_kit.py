"""The kit of samplers catches each of many faulty ones, and raises no false alarm."""

from __future__ import annotations

import re

import pytest

from slotwise.interfaces.sampler import SamplerCapabilities
from slotwise.testing.cases import Outcome, case_names, kit_for, run_case

from .mutants import sampler_draft_mutants, sampler_mutants, sampler_output_mutants
from .mutants.plain_sampler import PlainSampler

MUTANTS = [
    found
    for module in (sampler_mutants, sampler_draft_mutants, sampler_output_mutants)
    for found in vars(module).values()
    if isinstance(found, type) and found.__base__ is PlainSampler
]
CASES = case_names(kit_for("sampler", PlainSampler))
SLOW = {"draws_follow_the_softmax_of_a_large_vocabulary"}
"""Not for a sampler of Python loops."""
PLAIN_CASES = [case for case in CASES if case not in SLOW]


def small_kit(component, num_draws=1000, **attributes):
    """Fewer draws, for a sampler that takes one row after the other."""
    kit = kit_for("sampler", component, **attributes)
    draws = kit.draws
    kit.draws = lambda self, logits, rules, wanted=num_draws, **more: draws(self, logits, rules, min(wanted, num_draws), **more)
    return kit


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr("slotwise.testing.sampler_draft_cases.NUM_REQUESTS", 240)
    monkeypatch.setattr("slotwise.testing.sampler_draft_cases.ROUNDS", 3)
    monkeypatch.setattr("slotwise.testing.sampler_kit.MAX_ROWS", 500)
    monkeypatch.setattr("slotwise.testing.sampler_rule_cases.NUM_MIXED_STEPS", 1)
    monkeypatch.setattr("slotwise.testing.sampler_seed_cases.NUM_POSITIONS", 600)


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 60
    assert {mutant.caught_by for mutant in MUTANTS} == set(PLAIN_CASES)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_faulty_sampler_is_caught_by_the_case_of_the_broken_rule(mutant):
    result = run_case(small_kit(mutant, mutant.num_draws_needed), mutant.caught_by)
    assert result.outcome is Outcome.FAILED
    exception = re.match(r"(\w+Error): ", result.message)
    assert (exception and exception[1]) == mutant.raises, result.message


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("case", PLAIN_CASES)
def test_a_correct_sampler_raises_no_alarm(case):
    result = run_case(small_kit(PlainSampler), case)
    assert result.outcome is Outcome.PASSED, result.message


@pytest.mark.parametrize("case", CASES)
def test_the_torch_sampler_conforms(case):
    result = run_case(kit_for("sampler", "torch"), case)
    assert result.outcome is Outcome.PASSED, result.message


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("seed", [1])
def test_the_torch_sampler_conforms_whatever_the_seed(seed):
    kit = small_kit("torch", seed=seed)
    results = [run_case(kit, case) for case in PLAIN_CASES]
    assert [result.message for result in results if result.outcome is not Outcome.PASSED] == []


class ClaimsLittle(PlainSampler):
    """Has neither seeds of requests nor drafts, and one mode."""

    capabilities = SamplerCapabilities(devices=("cpu",), per_request_seeds=False, logprobs_modes=("raw_logits",))

    def rules(self, metadata, owner):
        if metadata.seeds:
            raise NotImplementedError
        return super().rules(metadata, owner)

    def verify(self, *arguments):
        raise NotImplementedError


@pytest.mark.usefixtures("few_draws")
def test_what_is_not_claimed_is_not_examined_and_the_rest_is():
    outcomes = {case: run_case(small_kit(ClaimsLittle, 200), case).outcome for case in PLAIN_CASES}
    assert Outcome.FAILED not in outcomes.values()
    not_claimed = {case for case, outcome in outcomes.items() if outcome is Outcome.NOT_CLAIMED}
    assert not_claimed == {case for case in PLAIN_CASES if "draft" in case or "edits_see" in case or "temperature_see" in case} | {
        "a_seed_and_a_position_give_one_id",
        "positions_and_seeds_draw_apart",
        "seeds_of_64_bits_are_told_apart",
        "without_drafts_verification_is_plain_sampling",
        "second_tokens_and_bonus_tokens_follow_their_own_rows",
    }


def test_a_false_claim_is_a_failure():
    class ClaimsSeeds(PlainSampler):
        def uniform(self, seed, position, purpose):
            return super().uniform(None, position, purpose)

    assert run_case(small_kit(ClaimsSeeds), "a_seed_and_a_position_give_one_id").outcome is Outcome.FAILED
