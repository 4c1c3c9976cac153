"""A switch that is turned off in a file stays off, in every spelling, and the file is named as the source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slotwise.config.loading import load_config
from slotwise.errors import ConfigError

Write = Callable[[str, str], Path]
SPELLINGS = ["enable_prefix_caching", "enable-prefix-caching"]


@pytest.mark.parametrize("section", ["kv_cache", "kv-cache"])
@pytest.mark.parametrize("key", SPELLINGS)
@pytest.mark.parametrize(("text", "value"), [("false", False), ("true", True), ("0", False), ("1", True)])
def test_switch_in_yaml_means_what_it_says(section: str, key: str, text: str, value: bool, write: Write) -> None:
    path = write("a.yaml", f"{section}:\n  {key}: {text}\n")
    loaded = load_config(path, environ={})
    assert loaded.config.kv_cache.enable_prefix_caching is value
    assert loaded.origins["kv_cache.enable_prefix_caching"].to_dict() == {"kind": "file", "where": f"{path}:2"}


@pytest.mark.parametrize("key", SPELLINGS)
@pytest.mark.parametrize("text", ["'false'", "'true'", "'0'", '"off"', "2", "0.0", "[]"])
def test_what_is_no_switch_is_refused_with_key_line_and_choice(key: str, text: str, write: Write) -> None:
    path = write("a.yaml", f"kv_cache:\n  {key}: {text}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    assert caught.value.key == "kv_cache.enable_prefix_caching"
    assert str(caught.value).startswith(f"{path}:2: kv_cache.enable_prefix_caching: given ")
    assert "accepted: true or false" in str(caught.value)


@pytest.mark.parametrize("text", ["null", "~", ""])
def test_null_is_unset_and_the_default_holds(text: str, write: Write) -> None:
    path = write("a.yaml", f"kv_cache:\n  enable_prefix_caching: {text}\n  num_blocks: {text}\n")
    loaded = load_config(path, environ={})
    assert loaded.config.kv_cache.enable_prefix_caching is True
    assert loaded.config.kv_cache.num_blocks is None
    assert loaded.origins["kv_cache.enable_prefix_caching"].kind == "default"
    assert f"{path}:2" in loaded.origins["kv_cache.enable_prefix_caching"].where


def test_false_for_a_switch_with_another_default_is_kept_too(write: Write) -> None:
    text = "plugins: {strict: false}\nscheduler:\n  enable-chunked-prefill: false\n  reserve_whole_prompt: true\n"
    config = load_config(write("a.yaml", text), environ={}).config
    assert (config.plugins.strict, config.scheduler.enable_chunked_prefill, config.scheduler.reserve_whole_prompt) == (False, False, True)


def test_false_reaches_a_components_options_in_nested_tables(write: Write) -> None:
    text = "attention:\n  use: x\n  options:\n    use-graph: false\n    limits: {a-b: false, c: null, d: 0}\n"
    options = load_config(write("a.yaml", text), environ={}).config.attention.options
    assert options == {"use_graph": False, "limits": {"a-b": False, "d": 0}}


def test_both_spellings_of_one_key_in_one_file_are_an_error(write: Write) -> None:
    path = write("a.yaml", "kv_cache:\n  enable-prefix-caching: false\n  enable_prefix_caching: true\n")
    with pytest.raises(ConfigError, match="two spellings of one key") as caught:
        load_config(path, environ={})
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize("text", ["no", "off", "on", "NO"])
def test_yaml_switch_where_text_is_wanted_says_to_quote_it(text: str, write: Write) -> None:
    with pytest.raises(ConfigError, match="accepted: text; put it in quotes"):
        load_config(write("a.yaml", f"scheduler:\n  use: {text}\n"), environ={})


def test_yaml_key_that_is_no_text_says_to_quote_it(write: Write) -> None:
    with pytest.raises(ConfigError, match="keys are text"):
        load_config(write("a.yaml", "attention:\n  options:\n    on: 1\n"), environ={})


@pytest.mark.parametrize("text", ["true", "'16'", "16.5", "0", "-1"])
def test_number_must_be_a_number_in_range(text: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=r"a\.yaml:1: kv_cache\.block_size: given .*; accepted: a whole number >= 1"):
        load_config(write("a.yaml", f"kv_cache: {{block_size: {text}}}\n"), environ={})
