from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator

from slotwise.config.engine_config import ComponentOptions
from slotwise.errors import ConfigError
from slotwise.plugin.options import describe_options, validate_options
from slotwise.plugin.states import LoadedComponent

MakeLoaded = Callable[..., LoadedComponent]


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Tiles(ComponentOptions):
    rows: int = Field(4, ge=1)
    columns: int = 4


class Options(ComponentOptions):
    block: int = Field(16, ge=1, le=256, multiple_of=2, description="Rows per tile.")
    mode: Literal["fast", "exact"] = "fast"
    colour: Colour = Colour.RED
    tiles: Tiles = Tiles()
    names: list[str] = Field(default_factory=list)
    limit: float | None = None

    @field_validator("names")
    @classmethod
    def _no_bomb(cls, value: list[str]) -> list[str]:
        if "bomb" in value:
            raise RuntimeError("bomb")
        return value


class Required(ComponentOptions):
    path: str


@pytest.fixture
def loaded(make_loaded: MakeLoaded) -> LoadedComponent:
    return make_loaded("attention:x", options=Options)


def test_valid_options_come_back_as_the_components_model(loaded: LoadedComponent) -> None:
    assert validate_options(loaded, {"block": 32, "tiles": {"rows": 2}}) == Options(block=32, tiles=Tiles(rows=2))


def test_no_options_mean_the_defaults(loaded: LoadedComponent) -> None:
    assert validate_options(loaded, {}) == Options()


@pytest.mark.parametrize(
    ("options", "key", "texts"),
    [
        ({"blok": 1}, "attention.options.blok", ['Did you mean "block"?', "block, mode, colour"]),
        ({"tiles": {"row": 1}}, "attention.options.tiles.row", ['Did you mean "rows"?', "Known options: rows, columns"]),
        ({"block": "many"}, "attention.options.block", ["'many'", "Accepted: integer, at least 1, at most 256, a multiple of 2"]),
        ({"block": 0}, "attention.options.block", ["= 0", "at least 1"]),
        ({"mode": "slow"}, "attention.options.mode", ["'slow'", "Accepted: 'fast' or 'exact'"]),
        ({"colour": "green"}, "attention.options.colour", ["'green'", "'red' or 'blue'"]),
        ({"tiles": {"rows": 0}}, "attention.options.tiles.rows", ["= 0", "integer, at least 1"]),
        ({"names": 3}, "attention.options.names", ["= 3", "list of string"]),
        ({"names": ["a", 3]}, "attention.options.names.1", ["= 3"]),
        ({"limit": "x"}, "attention.options.limit", ["number or none"]),
    ],
)
def test_an_error_names_the_dotted_key_what_was_given_and_what_is_accepted(
    loaded: LoadedComponent, options: dict[str, Any], key: str, texts: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_options(loaded, options)
    assert raised.value.key == key
    for text in [*texts, key]:
        assert text in str(raised.value)


def test_every_problem_is_listed_at_once(loaded: LoadedComponent) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_options(loaded, {"blok": 1, "mode": "slow"})
    assert "attention.options.blok" in str(raised.value)
    assert "attention.options.mode" in str(raised.value)


def test_the_prefix_can_be_that_of_a_part(loaded: LoadedComponent) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_options(loaded, {"blok": 1}, prefix="attention.per_kind.full.options")
    assert raised.value.key == "attention.per_kind.full.options.blok"


def test_a_missing_required_option_says_so(make_loaded: MakeLoaded) -> None:
    with pytest.raises(ConfigError, match=r"path is required\. Accepted: string") as raised:
        validate_options(make_loaded(options=Required), {})
    assert raised.value.key == "scheduler.options.path"


def test_a_component_without_options_refuses_any_and_accepts_none(make_loaded: MakeLoaded) -> None:
    assert validate_options(make_loaded(), {}) is None
    with pytest.raises(ConfigError, match="takes no options") as raised:
        validate_options(make_loaded(), {"a": 1})
    assert raised.value.key == "scheduler.options.a"


def test_a_validator_that_fails_otherwise_is_a_config_error_too(loaded: LoadedComponent) -> None:
    with pytest.raises(ConfigError, match="RuntimeError: bomb") as raised:
        validate_options(loaded, {"names": ["bomb"]})
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_options_must_be_a_table(loaded: LoadedComponent) -> None:
    with pytest.raises(ConfigError, match="must be a table"):
        validate_options(loaded, ["block"])  # type: ignore[arg-type]


def test_descriptions_carry_type_default_and_text() -> None:
    block, mode, colour, *_ = describe_options(Options)
    assert (block.name, block.type, block.default, block.required, block.description) == (
        "block",
        "integer, at least 1, at most 256, a multiple of 2",
        16,
        False,
        "Rows per tile.",
    )
    assert mode.type == "'fast' or 'exact'"
    assert colour.default == "red"
    assert describe_options(Required)[0].required
    assert describe_options(None) == ()


@given(st.dictionaries(st.text(max_size=8), st.integers(), max_size=3))
def test_an_unknown_key_never_passes(options: dict[str, int]) -> None:
    component = _component()
    unknown = options.keys() - Tiles.model_fields.keys()
    if unknown or options.get("rows", 1) < 1:
        with pytest.raises(ConfigError):
            validate_options(component, options)
    else:
        assert validate_options(component, options) == Tiles(**options)


def _component() -> LoadedComponent:
    from slotwise.plugin.component import Component
    from slotwise.plugin.discovery import EntryPointInfo

    return LoadedComponent(
        component=Component(slot="scheduler", name="x", implementation="m:C", api="", summary="", options=Tiles),
        info=EntryPointInfo(slot="scheduler", name="x", value="m", distribution="d", version="1"),
    )
