from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slotwise.config.files import MAX_FILE_BYTES, parse_file
from slotwise.config.json_file import parse_json
from slotwise.config.loading import load_config
from slotwise.config.toml_file import parse_toml
from slotwise.config.yaml_file import parse_yaml
from slotwise.errors import ConfigError

Write = Callable[[str, str], Path]

SAME = {
    "a.toml": 'seed = 7\n\n[kv_cache]\nblock-size = 32\nenable_prefix_caching = false\n\n[attention]\nper_phase.decode = "triton"\n',
    "a.yaml": "seed: 7\nkv_cache:\n  block-size: 32\n  enable_prefix_caching: false\nattention:\n  per_phase: {decode: triton}\n",
    "a.yml": "seed: 7\nkv-cache:\n  block_size: 32\n  enable-prefix-caching: false\nattention:\n  per_phase:\n    decode: {use: triton}\n",
    "a.json": '{"seed": 7,\n "kv_cache": {"block_size": 32,\n"enable-prefix-caching": false},\n'
    '"attention": {"per-phase": {"decode": "triton"}}}',
}


@pytest.mark.parametrize("name", SAME)
def test_every_format_gives_the_same_configuration(name: str, write: Write) -> None:
    loaded = load_config(write(name, SAME[name]), environ={})
    assert (loaded.config.seed, loaded.config.kv_cache.block_size, loaded.config.kv_cache.enable_prefix_caching) == (7, 32, False)
    assert loaded.config.attention.per_phase["decode"].use == "triton"


@pytest.mark.parametrize(("name", "line"), [("a.toml", 4), ("a.yaml", 3), ("a.yml", 3), ("a.json", 2)])
def test_origin_names_file_and_line(name: str, line: int, write: Write) -> None:
    path = write(name, SAME[name])
    origin = load_config(path, environ={}).origins["kv_cache.block_size"]
    assert (origin.kind, origin.where) == ("file", f"{path}:{line}")


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        ("a.toml", "seed = 1\nseed = 2\n", 2, "Cannot overwrite"),
        ("a.toml", "[kv_cache]\nblock_size = = 3\n", 2, "Invalid value"),
        ("a.yaml", "kv_cache:\n  block_size: 1\n  block_size: 2\n", 3, "given twice"),
        ("a.yaml", "seed: [1\n", 2, "expected ',' or ']'"),
        ("a.yaml", "seed: 1\n---\nseed: 2\n", 2, "document"),
        ("a.yaml", "a: &a {use: x}\nattention:\n  <<: *a\n", 3, "merges are not supported"),
        ("a.yaml", "a: !!python/object:os.system x\n", 1, "could not determine a constructor"),
        ("a.json", '{"seed": 1,\n "seed": 2}', 2, "given twice"),
        ("a.json", '{"seed": 1,\n}', 2, "double quotes"),
    ],
)
def test_syntax_error_names_file_line_and_fault(name: str, text: str, line: int, reason: str, write: Write) -> None:
    path = write(name, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert reason in str(caught.value)


def test_numbers_that_json_lacks_are_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="not valid JSON: NaN is not JSON"):
        load_config(write("a.json", '{"seed": NaN}'), environ={})


@pytest.mark.parametrize("name", ["a.toml", "a.yaml", "a.json"])
def test_nesting_without_end_is_refused(name: str, write: Write) -> None:
    text = "[" * 20_000 if name != "a.toml" else "seed = " + "[" * 20_000
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(write(name, text), environ={})


def test_aliases_that_unfold_without_end_are_refused(write: Write) -> None:
    doubling = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    for text in (doubling, "a: &a\n  b: *a\n"):
        with pytest.raises(ConfigError, match="aliases unfold"):
            load_config(write("a.yaml", text), environ={})


@pytest.mark.parametrize("name", ["a.toml", "a.yaml", "a.json"])
def test_empty_file_is_the_defaults(name: str, write: Write) -> None:
    assert load_config(write(name, ""), environ={}).config == load_config(environ={}).config


@pytest.mark.parametrize(
    ("name", "text", "given"), [("a.yaml", "- 1\n", "a list"), ("a.json", "3", "a whole number"), ("a.yml", "x", "text")]
)
def test_file_without_a_table_says_what_it_holds(name: str, text: str, given: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=given):
        load_config(write(name, text), environ={})


def test_missing_file_suggests_the_nearest_name(write: Write) -> None:
    path = write("prod.toml", "")
    with pytest.raises(ConfigError, match=r'no such file\. Did you mean "prod\.toml"\?'):
        parse_file(path.with_name("prodd.toml"))
    with pytest.raises(ConfigError, match="directory does not exist"):
        parse_file(path.parent / "x" / "prod.toml")


def test_unusable_files_are_config_errors(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\.ini' is none of \.toml"):
        parse_file(write("a.ini", ""))
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_file(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        parse_file(tmp_path / "latin.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        parse_file(tmp_path / "big.toml")


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"seed": 5}')
    assert load_config(tmp_path / "a.json", environ={}).config.seed == 5


def test_toml_lines_survive_multi_line_strings_comments_and_quoted_keys() -> None:
    text = '# seed = 1\nmodel.source = """\nseed = 3\n"""\n"seed" = 4\n[ kv_cache ] # [x]\n\'block_size\'=5\n'
    document = parse_toml(text)
    assert document.lines[("model", "source")] == 2
    assert document.lines[("seed",)] == 5
    assert document.lines[("kv_cache", "block_size")] == 7


def test_line_of_a_nested_key_falls_back_to_the_table_around_it() -> None:
    document = parse_toml("seed = 1\nattention = { use = 'x', options = { a = 1 } }\n")
    assert document.line_of(("attention", "options", "a")) == 2
    assert document.line_of(("nowhere",)) is None


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=4), TREES, max_size=4), st.sampled_from([None, 1, "\t"]))
def test_json_is_read_as_written_and_every_key_has_its_line(tree: dict[str, Any], indent: Any) -> None:
    text = json.dumps(tree, indent=indent)
    document = parse_json(text)
    assert document.tree == tree
    lines = text.splitlines() or [""]
    for path, line in document.lines.items():
        assert json.dumps(path[-1]) in lines[line - 1]


@given(st.dictionaries(st.text("abc-_", min_size=1, max_size=4), TREES, max_size=4))
def test_yaml_is_read_as_a_safe_loader_reads_it(tree: dict[str, Any]) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True)
    assert parse_yaml(text).tree == yaml.safe_load(text)
