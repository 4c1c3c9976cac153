"""Writes the section tables of docs/configuration.md from `EngineConfig`; `--check` writes nothing and fails if they are stale.

Imports the settings tree, hence pydantic, and nothing else of Slotwise.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slotwise.config.engine_config import EngineConfig

PAGE = Path(__file__).resolve().parent / "configuration.md"
MARK = "<!-- sections: written by docs/generate_settings.py (`make docs-contracts`) from EngineConfig -->\n"


def section_tables() -> Iterator[str]:
    """A heading and a table for the top level and for each section, those inside another section after it."""
    yield from _table("Top level", {name: field for name, field in EngineConfig.model_fields.items() if not _is_section(field)})
    yield from _tables_below(EngineConfig, "")


def _tables_below(outer: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in outer.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            plain = {key: inner for key, inner in section.model_fields.items() if not _is_section(inner)}
            yield from _table(f"`[{prefix}{name}]`", plain, (section.__doc__ or "").strip())
            yield from _tables_below(section, f"{prefix}{name}.")


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _table(title: str, fields: dict[str, FieldInfo], doc: str = "") -> Iterator[str]:
    yield f"\n### {title}\n\n" + (f"{doc}\n\n" if doc else "") + "| key | type | default | meaning |\n|---|---|---|---|\n"
    for name, field in fields.items():
        default = json.dumps(field.get_default(call_default_factory=True))
        shown = "unset" if default == "null" else f"`{default}`"
        yield f"| `{name}` | {type_words(field.annotation)} | {shown} | {(field.description or '').replace('|', chr(92) + '|')} |\n"


def type_words(annotation: Any) -> str:
    """A type as readers of the page say it; None, which means unset, is left out."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in arguments)
    if isinstance(annotation, UnionType):
        return " or ".join(type_words(argument) for argument in arguments if argument is not type(None))
    if origin is list:
        return f"list of {type_words(arguments[0])}"
    if origin is dict:
        return "table"
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}
    return plain.get(annotation, getattr(annotation, "__name__", str(annotation)))


def written(page: str) -> str:
    """The page with its tables as they should be now."""
    head = re.split(r"<!-- sections.*?-->\n", page)[0]
    return head + MARK + "".join(section_tables())


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the tables are stale")
    page = PAGE.read_text(encoding="utf-8")
    if parser.parse_args().check:
        if written(page) != page:
            print("docs/configuration.md is stale: run `make docs-contracts`")
        return int(written(page) != page)
    PAGE.write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
