"""The records of the grammar components: light, and honest about what is missing."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from slotwise.errors import SlotwiseError
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.registry import ComponentRegistry


def test_records_import_no_grammar_engine() -> None:
    code = (
        "import sys; from slotwise.plugin.registry import ComponentRegistry; "
        "[ComponentRegistry().get('grammar', name) for name in ('llguidance', 'xgrammar')]; "
        "print(sorted({'llguidance', 'xgrammar', 'torch', 'transformers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_record_and_implementation_claim_the_same(name: str) -> None:
    loaded = ComponentRegistry().get("grammar", name)
    assert import_implementation(loaded).capabilities == loaded.component.capabilities


@pytest.mark.parametrize(("installed", "words"), [(None, "not installed"), ("0.1.25", "0.1.25")])
def test_a_missing_or_old_engine_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch, installed: str | None, words: str) -> None:
    version = metadata.version

    def pretended(name: str) -> str:
        if name != "xgrammar":
            return version(name)
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", pretended)
    with pytest.raises(SlotwiseError) as caught:
        ComponentRegistry().get("grammar", "xgrammar")
    assert words in str(caught.value)
    assert 'pip install "xgrammar>=' in str(caught.value)
