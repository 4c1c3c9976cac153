from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slotwise.config.engine_config import EngineConfig
from slotwise.config.loading import load_config
from slotwise.config.shape import Leaf, engine_shape, values_below
from slotwise.config.template import FORMATS, render_template

Write = Callable[[str, str], Path]
LEAVES = [(path, shape) for path, shape in values_below(engine_shape()) if isinstance(shape, Leaf)]


@pytest.mark.parametrize("file_format", FORMATS)
def test_new_file_is_the_defaults(file_format: str, write: Write) -> None:
    loaded = load_config(write(f"a.{file_format}", render_template(file_format)), environ={})
    assert loaded.config == EngineConfig()
    assert loaded.origins["kv_cache.block_size"].kind == "file"


@pytest.mark.parametrize("file_format", ["toml", "yaml"])
def test_every_setting_stands_below_its_description(file_format: str) -> None:
    lines = [line.strip() for line in render_template(file_format).splitlines()]
    for path, leaf in LEAVES:
        comment = f"# {leaf.field.description} ({leaf.accepted()})"
        following = {lines[number + 1].removeprefix("# ").split(" ")[0].rstrip(":") for number, line in enumerate(lines) if line == comment}
        if "per_" not in ".".join(path):
            assert following & {path[-1], ".".join(path[1:])}


def test_commented_out_settings_of_toml_are_right_once_filled_in(write: Write) -> None:
    text = render_template("toml").replace("# num_threads =", "num_threads = 3").replace('# per_kind.full = "auto"', 'per_kind.full = "x"')
    text = text.replace("# [scheduler.options]", "[scheduler.options]\nx = 1")
    config = load_config(write("a.toml", text), environ={}).config
    assert (config.num_threads, config.attention.per_kind["full"].use, config.scheduler.options) == (3, "x", {"x": 1})


def test_every_setting_is_described() -> None:
    assert [path for path, leaf in LEAVES if not leaf.field.description] == []
