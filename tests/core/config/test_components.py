from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slotwise.config.components import check_components, named_components
from slotwise.config.engine_config import EngineConfig
from slotwise.config.loading import load_config
from slotwise.config.problems import Problem
from slotwise.plugin.registry import ComponentRegistry

MakeRegistry = Callable[..., ComponentRegistry]
ALWAYS = (
    "scheduler:fcfs",
    "kv_cache:paged",
    "eviction:lru",
    *(f"logits_processor:{name}" for name in EngineConfig().logits_processors.names),
)


def problems(registry: ComponentRegistry, *set_values: str, **overrides: Any) -> list[Problem]:
    loaded = load_config(set_values=set_values, overrides=overrides, environ={})
    return check_components(loaded.config, loaded.origins, registry)


def test_sound_configuration_has_no_problem(make_registry: MakeRegistry) -> None:
    registry = make_registry(*ALWAYS, "attention:mine", "observer:log")
    assert problems(registry) == []
    assert problems(registry, attention={"use": "mine", "options": {"window": 9}}, observers={"use": ["log"], "options": {"log": {}}}) == []


def test_unknown_component_is_named_with_its_origin_and_the_nearest(make_registry: MakeRegistry) -> None:
    (problem,) = problems(make_registry(*ALWAYS, "attention:mine"), "attention.per_phase.decode=mime")
    assert (problem.key, problem.where) == ("attention.per_phase.decode.use", "--set attention.per_phase.decode")
    assert 'Did you mean "mine"?' in problem.message


@pytest.mark.parametrize(
    ("option", "text"), [("windw=3", 'Did you mean "window"?'), ("window=wide", "attention.options.window"), ("is_eager=[]", "is_eager")]
)
def test_wrong_option_is_named_with_its_dotted_key(option: str, text: str, make_registry: MakeRegistry) -> None:
    (problem,) = problems(make_registry(*ALWAYS, "attention:mine"), "attention=mine", f"attention.options.{option}")
    assert problem.key == f"attention.options.{option.partition('=')[0]}"
    assert problem.where == f"--set {problem.key}"
    assert text in problem.message


def test_options_of_a_part_are_checked_under_its_own_key(make_registry: MakeRegistry) -> None:
    (problem,) = problems(make_registry(*ALWAYS, "attention:mine"), attention={"per_kind": {"full": {"use": "mine", "options": {"x": 1}}}})
    assert problem.key == "attention.per_kind.full.options.x"


def test_options_beside_auto_must_suit_some_component(make_registry: MakeRegistry) -> None:
    registry = make_registry(*ALWAYS, "attention:mine")
    assert problems(registry, "attention.options.window=3") == []
    (problem,) = problems(registry, "attention.options.windw=3")
    assert problem.key == "attention.options"
    assert "attention.use is auto, and no component of the slot attention takes these options" in problem.message
    assert 'Did you mean "window"?' in problem.message


def test_options_of_an_observer_that_is_not_used_are_a_problem(make_registry: MakeRegistry) -> None:
    (problem,) = problems(make_registry(*ALWAYS, "observer:log"), observers={"options": {"log": {"window": 1}}})
    assert problem.key == "observers.options.log"
    assert "observers.use does not name" in problem.message


def test_every_problem_is_listed(make_registry: MakeRegistry) -> None:
    found = problems(make_registry(*ALWAYS), "attention=a", "sampler=b", "scheduler.options.x=1", "observers=c")
    assert [problem.key for problem in found] == ["attention.use", "scheduler.options.x", "sampler.use", "observers.use"]


def test_blocked_component_is_a_problem() -> None:
    loaded = load_config(set_values=["plugins.block=fcfs"], environ={})
    (problem,) = check_components(loaded.config, loaded.origins)
    assert problem.key == "scheduler.use"
    assert "plugins.block" in problem.message


def test_named_components_lists_every_part() -> None:
    config = load_config(set_values=["attention.per_phase.decode=x", "observers=log,trace"], environ={}).config
    found = [(named.slot, named.part, named.name) for named in named_components(config)]
    assert ("attention", "", "auto") in found
    assert ("attention", "decode", "x") in found
    assert [each for each in found if each[0] == "observer"] == [("observer", "", "log"), ("observer", "", "trace")]
    assert [name for slot, _, name in found if slot == "logits_processor"] == list(config.logits_processors.names)
