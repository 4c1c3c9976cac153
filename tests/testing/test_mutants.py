"""The kit catches each of many faulty components, and raises no false alarm on correct ones."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch

from slotwise.interfaces.attention import AttentionBackend
from slotwise.interfaces.kv_cache import KVCacheManager
from slotwise.plugin.registry import ComponentRegistry
from slotwise.testing.cases import Outcome, case_names, kit_for, run_case
from slotwise_backends.cpu_attention.capabilities import missing_library

from .mutants import allocation_mutants, attention_memory_mutants, attention_rule_mutants, lookup_mutants, policy_mutants
from .mutants.plain_attention import PlainAttention, PlainFusedAttention
from .mutants.plain_manager import PlainKVCacheManager
from .mutants.plain_policy import PlainPolicy

SEEDS = (0, 1)
EXAMPLES = 8
BLIND_SPOTS = (
    "FindsTheWholePrompt",
    "ForgetsToEvictHashes",
    "ForgetsTheSaltAfterOneBlock",
    "IgnoresKeys",
    "IgnoresTheTokensBefore",
    "KeepsAFailedStep",
    "KeepsAnUndoneStep",
    "RegistersLookahead",
    "RegistersTheWholePrompt",
    "SharesAPartlyFilledBlock",
)
"""Lookup mutants whose fault shows in what is read, whether or not events tell of it."""


def mutants_in(module: ModuleType, base: type) -> list[type]:
    return [found for found in vars(module).values() if isinstance(found, type) and issubclass(found, base) and found is not base]


MANAGERS = [*mutants_in(lookup_mutants, PlainKVCacheManager), *mutants_in(allocation_mutants, PlainKVCacheManager)]
POLICIES = mutants_in(policy_mutants, PlainPolicy)
ATTENTION = [
    found
    for module in (attention_rule_mutants, attention_memory_mutants)
    for found in mutants_in(module, AttentionBackend)
    if found not in (PlainAttention, PlainFusedAttention)
]


def test_there_are_mutants_of_every_slot():
    assert len(ATTENTION) >= 60
    assert len(MANAGERS) >= 15
    assert len(POLICIES) >= 10


@pytest.mark.parametrize("mutant", MANAGERS, ids=lambda mutant: mutant.__name__)
def test_each_faulty_manager_is_caught_by_the_case_of_the_broken_rule(mutant):
    kit = kit_for("kv_cache", mutant, shrink=False)
    assert run_case(kit, mutant.caught_by).outcome is Outcome.FAILED


@pytest.mark.parametrize("mutant", POLICIES, ids=lambda mutant: mutant.__name__)
def test_each_faulty_policy_is_caught_by_the_case_of_the_broken_rule(mutant):
    kit = kit_for("scheduler", mutant, shrink=False, max_overtakes=0)
    assert run_case(kit, mutant.caught_by).outcome is Outcome.FAILED


@pytest.mark.parametrize("mutant", ATTENTION, ids=lambda mutant: mutant.__name__)
def test_each_faulty_attention_backend_is_caught_by_the_case_of_the_broken_rule(mutant):
    assert run_case(kit_for("attention", mutant), mutant.caught_by).outcome is Outcome.FAILED


@pytest.mark.parametrize("name", BLIND_SPOTS)
def test_wrong_hits_are_caught_though_the_manager_tells_no_events(name):
    silent = type(name, (getattr(lookup_mutants, name),), {"take_events": KVCacheManager.take_events})
    result = run_case(kit_for("kv_cache", silent, shrink=False), "random_traffic")
    assert result.outcome is Outcome.FAILED
    assert "listener" not in result.message


def failures(slot, component, case, seed):
    result = run_case(kit_for(slot, component, shrink=False, seed=seed, max_examples=EXAMPLES), case)
    return (result.message, *result.steps) if result.outcome is Outcome.FAILED else ()


@pytest.mark.parametrize("case", case_names(kit_for("kv_cache", PlainKVCacheManager)))
def test_a_correct_manager_raises_no_alarm(case):
    assert failures("kv_cache", PlainKVCacheManager, case, seed=0) == ()


@pytest.mark.parametrize("case", case_names(kit_for("scheduler", PlainPolicy)))
def test_a_correct_policy_raises_no_alarm(case):
    assert failures("scheduler", PlainPolicy, case, seed=0) == ()


ATTENTION_CASES = case_names(kit_for("attention", PlainAttention))


@pytest.mark.parametrize("case", ATTENTION_CASES)
@pytest.mark.parametrize("backend", [PlainAttention, PlainFusedAttention])
def test_a_correct_attention_backend_raises_no_alarm(backend, case):
    assert failures("attention", backend, case, seed=0) == ()


@pytest.mark.parametrize("seed", range(1, 20))
def test_a_correct_attention_backend_raises_no_alarm_whatever_the_seed(seed):
    random_cases = ("random_shapes", "features_together")
    assert {case: found for case in random_cases if (found := failures("attention", PlainAttention, case, seed))} == {}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["reference", "torch_sdpa", *([] if missing_library() else ["cpu"])])
def test_built_in_attention_backends_raise_no_alarm_whatever_the_seed(name, seed):
    random_cases = ("random_shapes", "features_together")
    assert {case: found for case in random_cases if (found := failures("attention", name, case, seed))} == {}


def test_rounding_of_the_last_bit_raises_no_alarm():
    class LastBit(PlainAttention):
        def merge(self, call, step, parts):
            output, lse = super().merge(call, step, parts)
            return torch.nextafter(output, torch.full_like(output, math.inf)), lse

    assert {case: found for case in ("decodes", "mixed_batches", "sinks") if (found := failures("attention", LastBit, case, seed=0))} == {}


BUILT_IN = [(slot, name) for slot in ("kv_cache", "scheduler") for name in ComponentRegistry().names(slot)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("slot", "name"), BUILT_IN)
def test_built_in_components_conform_whatever_the_seed(slot, name, seed):
    cases = case_names(kit_for(slot, name))
    chosen = cases if seed == SEEDS[0] else [case for case in cases if case.startswith("random")]
    assert {case: found for case in chosen if (found := failures(slot, name, case, seed))} == {}
