"""Which layers `slotwise explain --strict` fails over."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.cli.deviation import LayerChoice, find_deviations
from slotwise.config.engine_config import AttentionConfig
from slotwise.plugin.resolution import Candidate, Refusal, Resolution


def config(use: str = "auto", *, kinds: dict[str, str] | None = None, phases: dict[str, str] | None = None) -> AttentionConfig:
    return AttentionConfig.model_validate({"use": use, "per_kind": kinds or {}, "per_phase": phases or {}})


LAYERS = [LayerChoice("l0", "sliding_window", "a", "a"), LayerChoice("l1", "full", "b", "c")]

NAMED: list[tuple[AttentionConfig, list[tuple[tuple[str, ...], str, str]]]] = [
    (config("a", kinds={"full": "b"}), [(("l1",), "decode", "b")]),
    (config("a"), [(("l1",), "prefill", "a"), (("l1",), "decode", "a")]),
    (config("b", kinds={"sliding_window": "a"}, phases={"decode": "c"}), []),
    (config("auto", kinds={"sliding_window": "x"}), [(("l0",), "prefill", "x"), (("l0",), "decode", "x")]),
    (config("auto", phases={"decode": "x"}), [(("l0",), "decode", "x"), (("l1",), "decode", "x")]),
    (config("auto"), []),
]


@pytest.mark.parametrize(("section", "expected"), NAMED)
def test_a_named_component_must_serve_and_the_kind_wins_over_the_phase(section: AttentionConfig, expected: list[Any]) -> None:
    found = find_deviations(section, LAYERS, ())
    assert [(item.layers, item.phase, item.expected) for item in found] == expected


def trace(asked: str, **preferences: int | None) -> Resolution:
    """`a` is chosen with preference 10; the others are refused."""
    refusal = Refusal(predicate="state", wanted="loaded", offered="unavailable", change="install it")
    others = [
        Candidate(name=name, distribution="d", version="1", state="loaded", preference=rank, refusals=(refusal,))
        for name, rank in preferences.items()
    ]
    chosen = Candidate(name="a", distribution="d", version="1", state="loaded", preference=10, chosen=True)
    return Resolution(slot="attention", part="", asked=asked, chosen="a", reason="", candidates=(chosen, *others))


@pytest.mark.parametrize(
    ("asked", "preferences", "expected"),
    [("auto", {"better": 11}, ["better", "better"]), ("auto", {"worse": 10, "never": None}, []), ("a", {"better": 11}, [])],
)
def test_auto_deviates_where_a_component_of_higher_preference_was_kept_out(
    asked: str, preferences: dict[str, int | None], expected: list[str]
) -> None:
    found = find_deviations(config(asked), LAYERS[:1], [trace(asked, **preferences)])
    assert [item.expected for item in found] == expected
    assert all("install it" in str(item) for item in found)
