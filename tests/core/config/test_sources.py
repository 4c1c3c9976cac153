"""Keys, types and spellings, source by source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.config.engine_config import EngineConfig, SchedulerConfig
from slotwise.config.environment import variable_name
from slotwise.config.loading import load_config
from slotwise.config.problems import InvalidConfigError
from slotwise.config.shape import Leaf, engine_shape, values_below
from slotwise.config.values import flat_values
from slotwise.errors import ConfigError

Write = Callable[[str, str], Path]


def from_environment(**variables: str) -> EngineConfig:
    return load_config(environ=variables).config


def from_flags(*values: str) -> EngineConfig:
    return load_config(set_values=values, environ={}).config


def from_keywords(**overrides: Any) -> EngineConfig:
    return load_config(overrides=overrides, environ={}).config


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("YES", True), ("on", True), ("False", False), ("0", False), ("no", False), ("off", False)],
)
def test_text_of_a_switch(text: str, value: bool) -> None:
    assert from_environment(SLOTWISE_KV_CACHE__ENABLE_PREFIX_CACHING=text).kv_cache.enable_prefix_caching is value
    assert from_flags(f"kv-cache.enable-prefix-caching={text}").kv_cache.enable_prefix_caching is value


@pytest.mark.parametrize("text", ["t", "n", "2", "nope", "[]"])
def test_other_text_is_no_switch(text: str) -> None:
    with pytest.raises(ConfigError, match=r"given text .*; accepted: true or false \(true, 1, yes, on, false"):
        from_flags(f"kv_cache.enable_prefix_caching={text}")


def test_text_becomes_what_the_setting_is() -> None:
    config = from_flags(
        "kv_cache.block_size=32", "server.api_key=123", "plugins.block=a,b", 'plugins.allow=["c"]', "model=smollm2", "observers=log"
    )
    assert (config.kv_cache.block_size, config.server.api_key, config.plugins.block, config.plugins.allow) == (32, "123", ["a", "b"], ["c"])
    assert (config.model.source, config.observers.use) == ("smollm2", ["log"])


def test_options_as_text_are_json_where_they_can_be() -> None:
    config = from_flags("attention=x", "attention.options.size-max=3", "attention.options.name=fast", 'attention.options.text="3"')
    assert config.attention.options == {"size_max": 3, "name": "fast", "text": "3"}
    assert from_environment(SLOTWISE_ATTENTION__OPTIONS__DEEP__X="[1]").attention.options == {"deep": {"x": [1]}}
    assert from_environment(SLOTWISE_ATTENTION__OPTIONS='{"a": false}').attention.options == {"a": False}


def test_whole_section_as_json_text() -> None:
    config = from_environment(SLOTWISE_SCHEDULER='{"use": "priority", "max-num-seqs": 3}')
    assert (config.scheduler.use, config.scheduler.max_num_seqs) == ("priority", 3)
    with pytest.raises(ConfigError, match="accepted: a whole number"):
        from_environment(SLOTWISE_SCHEDULER='{"max_num_seqs": "3"}')


def test_plain_text_for_a_slot_names_its_component() -> None:
    for config in (
        from_keywords(attention="torch_sdpa"),
        from_flags("attention=torch_sdpa"),
        from_environment(SLOTWISE_ATTENTION="torch_sdpa"),
        EngineConfig.model_validate({"attention": "torch_sdpa"}),
    ):
        assert config.attention.use == "torch_sdpa"
    assert from_keywords(attention={"per_kind": {"sliding-window": "x"}}).attention.per_kind["sliding_window"].use == "x"
    assert from_flags("attention.per_phase.decode=x").attention.per_phase["decode"].use == "x"
    assert from_environment(SLOTWISE_ATTENTION__PER_PHASE__PREFILL="x").attention.per_phase["prefill"].use == "x"
    assert from_keywords(model="smollm2").model.source == "smollm2"
    assert from_keywords(observers=["log", "trace"]).observers.use == ["log", "trace"]
    assert EngineConfig.model_validate({"observers": "log", "model": "m"}).observers.use == ["log"]


def test_section_that_is_no_slot_takes_no_plain_value() -> None:
    for fault in (lambda: from_flags("server=8000"), lambda: from_keywords(server=8000), lambda: from_keywords(server="x")):
        with pytest.raises(ConfigError, match=r"\[server\] is a section; given .*; accepted: a table with the keys host, port, api_key"):
            fault()


def test_python_callers_may_pass_paths_tuples_models_and_dotted_keys() -> None:
    config = from_keywords(
        **{"kv_cache.block_size": 8, "kv_cache.num_blocks": 9}, model=Path("a/b"), scheduler=SchedulerConfig(max_num_seqs=2)
    )
    assert (config.kv_cache.block_size, config.kv_cache.num_blocks, config.model.source) == (8, 9, "a/b")
    assert (config.scheduler.max_num_seqs, config.scheduler.use) == (2, "fcfs")
    assert from_keywords(plugins={"block": ("a", "b")}).plugins.block == ["a", "b"]
    mixed = from_keywords(**{"attention": "x", "attention.options.a": 1}).attention
    assert (mixed.use, mixed.options) == ("x", {"a": 1})


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("kv_cache.blocksize=3", 'Did you mean "block_size"? Keys of [kv_cache]: use, options, block_size'),
        ("scheduller=x", 'Did you mean "scheduler"? Keys of the top level: model, weights'),
        ("block_size=3", "Did you mean 'kv_cache.block_size'?"),
        ("scheduler.device=x", "Did you mean 'device'?"),
        ("attention.per_phase.decoding=x", 'Did you mean "decode"?'),
        ("seed.x=3", "seed is a single value"),
        ("seed", "accepted: SECTION.KEY=VALUE"),
        ("=3", "accepted: SECTION.KEY=VALUE"),
    ],
)
def test_unknown_key_gets_the_nearest_known_one(flag: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_flags(flag)
    assert hint in str(caught.value)


def test_unknown_key_in_a_file_names_line_and_dotted_key(write: Write) -> None:
    path = write("a.toml", "[kv_cache]\nuse = 'paged'\nenable-prefix-cache = false\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    assert str(caught.value).startswith(f"{path}:3: unknown key 'kv_cache.enable_prefix_cache'. Did you mean \"enable_prefix_caching\"?")
    assert caught.value.key == "kv_cache.enable_prefix_cache"


def test_all_faults_of_a_file_are_listed_at_once(write: Write) -> None:
    path = write("a.toml", "sede = 1\nseed = 'x'\n[kv_cache]\nblock_size = 0\n")
    with pytest.raises(InvalidConfigError) as caught:
        load_config(path, environ={})
    assert [problem.key for problem in caught.value.problems] == ["sede", "seed", "kv_cache.block_size"]
    assert [problem.where for problem in caught.value.problems] == [f"{path}:{line}" for line in (1, 2, 4)]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SLOTWISE_KV_CACHE_BLOCK_SIZE", 'Did you mean "SLOTWISE_KV_CACHE__BLOCK_SIZE"?'),
        ("SLOTWISE_SEDE", 'Did you mean "SLOTWISE_SEED"?'),
        ("SLOTWISE_ATENTION", 'Did you mean "SLOTWISE_ATTENTION"?'),
        ("SLOTWISE_", "two underscores between section and key"),
        ("SLOTWISE_ATTENTION__OPTIONS__", "two underscores"),
        ("SLOTWISE_SEED__X", "names no setting"),
    ],
)
def test_variable_that_names_nothing_is_an_error(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ={name: "1"})
    assert str(caught.value).startswith(f"{name}: ")
    assert hint in str(caught.value)


def test_other_variables_are_left_alone() -> None:
    untouched = {"SLOTWISE": "x", "PATH": "/bin", "MY_SLOTWISE_SEED": "3", "SLOTWISE_CACHE": "/tmp", "SLOTWISE_SEED": ""}
    assert load_config(environ=untouched).config == EngineConfig()


def test_two_variables_for_one_value_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"SLOTWISE_ATTENTION__USE: SLOTWISE_ATTENTION sets 'attention\.use' too"):
        load_config(environ={"SLOTWISE_ATTENTION": "a", "SLOTWISE_ATTENTION__USE": "b"})
    with pytest.raises(ConfigError, match="too: keep one"):
        load_config(environ={"SLOTWISE_SEED": "1", "SLOTWISE_seed": "2"})


def test_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_SEED", "41")
    assert load_config().config.seed == 41


def test_a_secret_is_in_no_message(write: Write) -> None:
    for fault in (
        lambda: load_config(write("a.toml", "server.api_key = 12345\n"), environ={}),
        lambda: from_keywords(server={"api_key": 12345}),
    ):
        with pytest.raises(ConfigError) as caught:
            fault()
        assert "12345" not in str(caught.value)
    loaded = load_config(set_values=["server.api_key=hunter2"], environ={})
    assert "hunter2" not in str(loaded.origins["server.api_key"])
    assert "hunter2" not in repr(loaded.config)


# Settings whose range excludes all the numbers tried.
SMALL = {("proposer", "num_drafts")}
INTEGERS = [
    path for path, shape in values_below(engine_shape()) if isinstance(shape, Leaf) and shape.value_type is int and path not in SMALL
]


@given(st.sampled_from(INTEGERS), st.integers(64, 2048))  # between the defaults of max_num_seqs and max_num_batched_tokens, which must fit
def test_every_integer_setting_is_reachable_from_every_source(path: tuple[str, ...], value: int) -> None:
    key = ".".join(path)
    loaded = [
        load_config(environ={variable_name(path): str(value)}),
        load_config(set_values=[f"{key}={value}"], environ={}),
        load_config(overrides={key: value}, environ={}),
    ]
    assert [flat_values(one.config)[path] for one in loaded] == [value] * 3
    assert [one.origins[key].kind for one in loaded] == ["environment", "command_line", "keyword"]
