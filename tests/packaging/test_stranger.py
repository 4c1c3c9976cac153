"""A package from outside the repository, installed next to the built wheel: found, chosen by a file, given its options, and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

STRANGER = Path(__file__).resolve().parents[2] / "contrib" / "stranger_example"


def test_listing_names_components_and_their_distribution(run_clean):
    result = run_clean("slotwise", "plugins", "--json")
    assert result.returncode == 0, result.stderr
    mine = {(item["slot"], item["name"]) for item in json.loads(result.stdout) if item["distribution"] == "slotwise-stranger-example"}
    assert mine == {("attention", "loop"), ("scheduler", "shortest_prompt_first")}


def test_config_file_that_chooses_them_passes_the_check(run_clean):
    result = run_clean("slotwise", "config", "check", str(STRANGER / "stranger.toml"))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('[attention]\nuse = "loop"\n[attention.options]\nsoftmax_temprature = 2.0\n', "softmax_temperature"),
        ('[attention]\nuse = "loop"\n[attention.options]\nsoftmax_temperature = -1.0\n', "softmax_temperature"),
        ('[scheduler]\nuse = "shortest_prompt_first"\n[scheduler.options]\nbucket_tokens = 0\n', "bucket_tokens"),
    ],
    ids=["unknown key", "value out of range", "value out of range in another slot"],
)
def test_config_check_refuses_wrong_options(run_clean, tmp_path, text, wanted):
    (tmp_path / "wrong.toml").write_text(text)
    result = run_clean("slotwise", "config", "check", "wrong.toml")
    assert result.returncode == 2
    assert wanted in result.stderr


def test_file_chooses_the_components_that_run(run_clean):
    result = run_clean(
        "python",
        "-c",
        "import sys; from slotwise import LLM, SamplingParams\n"
        "outputs = LLM(config=sys.argv[1]).generate(['Water is'], SamplingParams(temperature=0, max_tokens=4))\n"
        "print('slotwise_stranger.loop_attention' in sys.modules, 'slotwise_stranger.shortest_prompt' in sys.modules)\n"
        "print(len(outputs[0].outputs[0].token_ids))",
        str(STRANGER / "stranger.toml"),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True", "True", "4"]


def test_the_strangers_own_tests_and_the_kit_pass_against_the_built_wheel(run_testing):
    result = run_testing("python", "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", str(STRANGER / "tests"))
    assert result.returncode == 0, result.stdout + result.stderr
