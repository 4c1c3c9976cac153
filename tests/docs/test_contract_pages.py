"""docs/contracts is what the code says now, every public name of a contract is documented, and the generator would notice if not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

GENERATOR = Path(__file__).resolve().parents[2] / "docs" / "generate_contracts.py"

SOURCE = '''"""A slot.

More of it.
"""

class Asked:
    """What is asked."""

    width: int = 3
    """In tokens."""
    depth: int

    def call(self, width: int, *, depth: int = 2) -> bool:
        """Once a step."""

    def silent(self) -> None: ...

    def _private(self) -> None: ...

LIMIT = 4
'''


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_contracts", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def contract(generator, tmp_path, monkeypatch):
    """A contract module of three undocumented names."""
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    source = tmp_path / "slot.py"
    source.write_text(SOURCE)
    return source


def test_committed_pages_are_up_to_date_and_every_public_name_is_documented():
    result = subprocess.run([sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_undocumented_names_are_found_and_private_ones_left_alone(generator, contract):
    assert generator.undocumented(contract) == ["slot.Asked.depth", "slot.Asked.silent", "slot.LIMIT"]


def test_page_shows_signatures_defaults_and_documentation(generator, contract):
    page = generator.render(contract)
    assert "- `width: int = 3`  \n  In tokens." in page
    assert "### `call(self, width: int, *, depth: int=2) -> bool`\n\nOnce a step." in page
    assert "_private" not in page


def test_changed_source_makes_its_page_stale(generator, contract, monkeypatch):
    (contract.parent / "version.py").write_text('"""Versions."""\n\nCONTRACT_VERSIONS: dict = {"slot": "1.0"}\n"""Slot -> version."""\n')
    monkeypatch.setattr(generator, "INTERFACES", contract.parent)
    monkeypatch.setattr(generator, "PAGES", contract.parent / "pages")
    contract.write_text('"""A slot."""\n')
    generator.PAGES.mkdir()
    for path, text in generator.pages().items():
        path.write_text(text)
    assert generator.problems() == []
    contract.write_text('"""Another slot."""\n')
    (generator.PAGES / "gone.md").write_text("")
    stale = generator.problems()
    assert [line.split()[0] for line in stale] == ["pages/README.md", "pages/slot.md", "pages/gone.md"]
