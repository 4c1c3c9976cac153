"""`slotwise bench sampler`: what it measures and how it tells it; never how fast."""

from __future__ import annotations

import json

import pytest
import torch

from slotwise.cli import main
from slotwise.plugin.registry import ComponentRegistry
from slotwise_contrib.bench.sampler import SETTINGS, SamplerCase, peaked_logits, slotwise_step, transformers_step

SMALL = ("--batches", "1,3", "--vocabularies", "300", "--rounds", "2")


def test_the_table_has_a_row_per_case(capsys):
    assert main(["bench", "sampler", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split()[1:3] in (["1", "300"], ["3", "300"]) for line in lines if line.split()) == 2 * len(SETTINGS)


def test_json_has_times_and_ratios(capsys):
    assert main(["bench", "sampler", *SMALL, "--settings", "top_p", "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert len(cases) == 2
    for case in cases:
        assert set(case["times"]) == {"torch", "transformers"}
        assert case["times"]["torch"]["num_samples"] == 2
        ratio = case["times"]["transformers"]["median"] / case["times"]["torch"]["median"]
        assert case["ratios"] == {"torch": pytest.approx(ratio)}


def test_an_unknown_setting_is_refused(capsys):
    assert main(["bench", "sampler", "--settings", "top_q"]) == 2
    assert "top_k+top_p" in capsys.readouterr().err


@pytest.mark.parametrize("setting", SETTINGS)
def test_both_sides_draw_from_the_same_ids(setting):
    case = SamplerCase(batch=5, vocab_size=40, setting=setting)
    logits = peaked_logits(5, 40, "cpu")
    ours, theirs = slotwise_step(ComponentRegistry(), "torch", case, logits), transformers_step(case, logits)
    seen = [set(), set()]
    for _ in range(400):
        for kind, step in zip(seen, (ours, theirs), strict=True):
            kind.update(enumerate(step().flatten().tolist()))
    common = seen[0] & seen[1]
    assert len(common) > 0.8 * max(map(len, seen))
    assert torch.equal(logits, peaked_logits(5, 40, "cpu"))
