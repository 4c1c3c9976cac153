"""Makes the example package importable from its folder; it is not part of the development environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def stranger_on_path():
    folder = str(Path(__file__).resolve().parents[3] / "contrib" / "stranger_example")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)
