"""Pages written from code are up to date, blocks equal the files they show, and links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
EMBEDDED = re.compile(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```\n", re.DOTALL)


@pytest.mark.parametrize("script", ["embed_files.py", "generate_settings.py", "generate_attention_table.py"])
def test_generated_parts_are_up_to_date(script):
    result = subprocess.run([sys.executable, str(ROOT / "docs" / script), "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_writing_a_backend_shows_every_file_of_the_example_word_for_word():
    shown = dict(EMBEDDED.findall((ROOT / "docs" / "writing-a-backend.md").read_text()))
    example = ROOT / "contrib" / "stranger_example"
    files = [path for path in example.rglob("*") if path.suffix in (".py", ".toml") and path.name != "__init__.py"]
    assert shown == {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}


def test_embedding_replaces_a_block_that_differs(tmp_path, monkeypatch):
    scope: dict[str, object] = {"__name__": "embed_files", "__file__": str(tmp_path / "docs" / "embed_files.py")}
    exec((ROOT / "docs" / "embed_files.py").read_text(), scope)
    (tmp_path / "a.py").write_text("new\n")
    page = "before\n<!-- file: a.py -->\n```python\nold\n```\nafter\n"
    assert scope["embedded"](page) == page.replace("old", "new")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files(page):
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_every_decision_is_listed():
    decisions = ROOT / "docs" / "decisions"
    listed = set(LINK.findall((decisions / "README.md").read_text()))
    assert listed == {path.name for path in decisions.glob("0*.md")}
