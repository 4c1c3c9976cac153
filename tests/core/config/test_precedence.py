from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.config.engine_config import EngineConfig
from slotwise.config.layers import Layer, Setting, merge
from slotwise.config.loading import load_config
from slotwise.config.origins import Origin
from slotwise.errors import ConfigError

Write = Callable[[str, str], Path]
SOURCES = ["file", "environment", "command_line", "keyword"]
"""Weakest first."""


def load_from(sources: tuple[str, ...], path: Path) -> Any:
    return load_config(
        path if "file" in sources else None,
        environ={"SLOTWISE_SEED": "2"} if "environment" in sources else {},
        set_values=["seed=3"] if "command_line" in sources else [],
        overrides={"seed": 4} if "keyword" in sources else {},
    )


@pytest.mark.parametrize("sources", [chosen for size in range(5) for chosen in combinations(SOURCES, size)])
def test_strongest_source_wins_and_is_named(sources: tuple[str, ...], write: Write) -> None:
    loaded = load_from(sources, write("a.toml", "seed = 1\n"))
    assert loaded.config.seed == (SOURCES.index(sources[-1]) + 1 if sources else 0)
    assert loaded.origins["seed"].kind == (sources[-1] if sources else "default")


def test_every_value_has_an_origin_and_no_other_key_has(write: Write) -> None:
    loaded = load_config(write("a.yaml", "attention: {use: x, options: {a: {b: 1}}, per_kind: {full: y}}\n"), environ={})
    keys = set(loaded.origins)
    assert {"attention.options.a.b", "attention.per_kind.full.use", "attention.per_phase", "seed", "observers.options"} <= keys
    assert not {"attention", "attention.options", "attention.per_kind"} & keys
    assert {key for key, origin in loaded.origins.items() if origin.kind == "file"} == {
        "attention.use",
        "attention.options.a.b",
        "attention.per_kind.full.use",
    }


def test_sources_complement_each_other_inside_a_section(write: Write) -> None:
    path = write("a.toml", "[attention]\nuse = 'x'\n[attention.options]\na = 1\nb = 2\n")
    loaded = load_config(path, environ={"SLOTWISE_ATTENTION__OPTIONS__B": "3"}, set_values=["attention.options.c=4"])
    assert loaded.config.attention.options == {"a": 1, "b": 3, "c": 4}
    assert loaded.origins["attention.options.b"].where == "SLOTWISE_ATTENTION__OPTIONS__B"


def test_lists_are_replaced_whole(write: Write) -> None:
    assert load_config(
        write("a.toml", "plugins.block = ['a', 'b']\n"), set_values=["plugins.block=c"], environ={}
    ).config.plugins.block == ["c"]


def test_null_of_a_stronger_source_brings_back_the_default(write: Write) -> None:
    path = write("a.toml", "[kv_cache]\nnum_blocks = 9\nblock_size = 4\n")
    loaded = load_config(path, set_values=["kv_cache.num_blocks=null"], environ={})
    assert (loaded.config.kv_cache.num_blocks, loaded.config.kv_cache.block_size) == (None, 4)
    assert loaded.origins["kv_cache.num_blocks"] == Origin(kind="default", where="unset by --set kv_cache.num_blocks")
    whole = load_config(path, overrides={"kv_cache": None}, environ={})
    assert whole.config == EngineConfig()
    assert whole.origins["kv_cache.block_size"].where == "unset by kv_cache="


def test_wrong_value_is_an_error_even_where_a_stronger_source_hides_it(write: Write) -> None:
    with pytest.raises(ConfigError, match="given text 'x'"):
        load_config(write("a.toml", "seed = 'x'\n"), set_values=["seed=1"], environ={})


def test_later_flag_wins() -> None:
    assert load_config(set_values=["seed=1", "seed=2"], environ={}).config.seed == 2
    assert load_config(set_values=["attention.options.a=1", "attention.options=null"], environ={}).config.attention.options == {}
    assert load_config(set_values=["attention.options=null", "attention.options.a=1"], environ={}).config.attention.options == {"a": 1}


FLEX = "[attention]\nuse = 'flex'\n[attention.options]\nwindow = 1\n[attention.per_phase.decode]\nuse = 'flex'\noptions.window = 2\n"


def test_options_of_a_replaced_component_do_not_leak(write: Write) -> None:
    path = write("a.toml", FLEX)
    loaded = load_config(path, overrides={"attention": "torch_sdpa"}, environ={})
    assert (loaded.config.attention.use, loaded.config.attention.options) == ("torch_sdpa", {})
    assert loaded.config.attention.per_phase["decode"].options == {"window": 2}
    assert loaded.origins["attention.options"].where == "options of another component dropped: attention="
    (dropped,) = loaded.origins.dropped
    assert (dropped.key, dropped.component, dropped.origin.where, dropped.by.where) == (
        "attention.options.window",
        "flex",
        f"{path}:4",
        "attention=",
    )


def test_options_of_a_replaced_part_do_not_leak(write: Write) -> None:
    loaded = load_config(write("a.toml", FLEX), set_values=["attention.per_phase.decode=triton"], environ={})
    assert loaded.config.attention.options == {"window": 1}
    assert loaded.config.attention.per_phase["decode"].options == {}


def test_options_given_together_with_the_replacement_are_kept(write: Write) -> None:
    overrides = {"attention": {"use": "torch_sdpa", "options": {"mode": "x"}}}
    assert load_config(write("a.toml", FLEX), overrides=overrides, environ={}).config.attention.options == {"mode": "x"}


def test_naming_the_same_component_again_keeps_its_options(write: Write) -> None:
    loaded = load_config(write("a.toml", FLEX), set_values=["attention=flex"], environ={})
    assert loaded.config.attention.options == {"window": 1}
    assert loaded.origins.dropped == ()


def test_options_beside_the_default_component_belong_to_it(write: Write) -> None:
    path = write("a.toml", "[scheduler.options]\nx = 1\n")
    assert load_config(path, set_values=["scheduler=fcfs"], environ={}).config.scheduler.options == {"x": 1}
    assert load_config(path, set_values=["scheduler=priority"], environ={}).config.scheduler.options == {}


def test_unsetting_use_drops_the_options_of_what_was_named(write: Write) -> None:
    path = write("a.toml", "[scheduler]\nuse = 'priority'\noptions.x = 1\n")
    config = load_config(path, set_values=["scheduler.use=null"], environ={}).config
    assert (config.scheduler.use, config.scheduler.options) == ("fcfs", {})


def test_other_settings_of_the_section_survive_a_replacement(write: Write) -> None:
    path = write("a.toml", "[scheduler]\nuse = 'priority'\nmax_num_seqs = 3\noptions.x = 1\n")
    config = load_config(path, set_values=["scheduler=fair"], environ={}).config
    assert (config.scheduler.max_num_seqs, config.scheduler.options) == (3, {})


def test_options_of_observers_left_out_are_dropped(write: Write) -> None:
    path = write("a.yaml", "observers: {use: [log, trace], options: {log: {n: 1}, trace: {m: 2}}}\n")
    loaded = load_config(path, set_values=["observers.use=trace"], environ={})
    assert loaded.config.observers.options == {"trace": {"m": 2}}
    assert [item.key for item in loaded.origins.dropped] == ["observers.options.log.n"]


def test_table_and_value_at_one_option_replace_each_other() -> None:
    file = Origin(kind="file", where="f")
    flag = Origin(kind="command_line", where="--set")
    deep: Layer = {("attention", "options", "a", "b"): Setting(1, file)}
    flat: Layer = {("attention", "options", "a"): Setting(2, flag)}
    assert list(merge([deep, flat]).settings) == [("attention", "options", "a")]
    assert list(merge([flat, deep]).settings) == [("attention", "options", "a", "b")]


LAYERS = st.dictionaries(
    st.sampled_from([("seed",), ("kv_cache",), ("kv_cache", "num_blocks"), ("kv_cache", "block_size")]),
    st.none() | st.integers(2, 9),
    max_size=4,
).map(lambda layer: {path: Setting(None if path == ("kv_cache",) else value, Origin(kind="file")) for path, value in layer.items()})


@given(st.lists(LAYERS, max_size=4))
def test_merging_layers_one_by_one_is_merging_them_at_once(layers: list[Layer]) -> None:
    values = {path: setting.value for path, setting in merge(layers).settings.items()}
    expected: dict[tuple[str, ...], Any] = {}
    for layer in layers:
        for path, setting in layer.items():
            expected = {other: value for other, value in expected.items() if other[: len(path)] != path}
            if setting.value is not None:
                expected[path] = setting.value
    assert values == expected


def test_nearest_origin_of_a_section_or_an_item(write: Write) -> None:
    path = write("a.toml", "[plugins]\nallow = ['x']\n")
    origins = load_config(path, environ={}).origins
    assert origins.nearest("plugins.allow.0").where == f"{path}:2"
    assert origins.nearest("plugins").where == f"{path}:2"
    assert origins.nearest("server").kind == "default"
