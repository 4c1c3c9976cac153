"""`slotwise conform sampler NAME` and `slotwise conform logits_processor NAME`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from slotwise.cli import main
from slotwise.testing import cases
from slotwise.testing.device_choice import DeviceKit

from .mutants.plain_sampler import PlainSampler
from .mutants.sampler_mutants import GreedyTakesTheLast

QUICK = ("--case", "greedy_rows_take_the_argmax", "--case", "top_k_comes_before_top_p")


@pytest.fixture
def conform(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["conform", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def aim_at(monkeypatch, component):
    real_kit = cases.kit_for
    monkeypatch.setattr(cases, "kit_for", lambda slot, name, **facts: real_kit(slot, component, **facts | {"options": None}))


def test_a_sampler_is_examined_case_by_case(conform):
    code, out, _ = conform("sampler", "torch", *QUICK)
    assert code == 0
    assert out.rstrip().endswith("sampler:torch: 2 pass")


@pytest.mark.parametrize("name", ["allowed_token_ids", "bad_words", "logit_bias", "min_tokens", "penalties", "thinking_budget"])
def test_each_built_in_processor_passes_as_a_whole(conform, name):
    code, out, _ = conform("logits_processor", name, "--json")
    answer = json.loads(out)
    assert (code, answer["component"], answer["ok"]) == (0, f"logits_processor:{name}", True)
    assert [case["case"] for case in answer["cases"]] == list(cases.case_names(cases.kit_for("logits_processor", name)))


def test_a_faulty_sampler_exits_with_1_and_names_the_rule(conform, monkeypatch):
    aim_at(monkeypatch, GreedyTakesTheLast)
    code, out, _ = conform("sampler", "torch", "--case", "greedy_rows_take_the_argmax", "--case", "without_a_wish_there_are_none")
    assert code == 1
    assert "greedy_rows_take_the_argmax: vocabulary of 7: greedy rows gave [6, 6, 6, 6, 6, 6, 6, 6, 6]" in out
    assert out.rstrip().endswith("sampler:torch: 1 pass, 1 fail")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sampler", "troch"), 'Did you mean "torch"'),
        (("samplr", "torch"), 'Did you mean "sampler"'),
        (("logits_processor", "penaltis"), 'Did you mean "penalties"'),
        (("logits_procesor", "penalties"), 'Did you mean "logits_processor"'),
        (("sampler", "torch", "--case", "greedy_rows_take_the_argmin"), "greedy_rows_take_the_argmax"),
    ],
)
def test_mistakes_are_named_and_exit_with_2(conform, arguments, message):
    code, out, err = conform(*arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("kind", ["cuda", "tpu"])
def test_a_sampler_that_cannot_run_here_is_refused_with_the_way_out(conform, monkeypatch, kind):
    capabilities = dataclasses.replace(PlainSampler.capabilities, devices=(kind,))
    aim_at(monkeypatch, type("Elsewhere", (PlainSampler,), {"capabilities": capabilities}))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    case = ("--case", "without_a_wish_there_are_none")
    code, _, err = conform("sampler", "torch", *case)
    assert code == 2
    assert kind in err
    assert "--device" in err
    code, out, _ = conform("sampler", "torch", *case, "--device", "cpu")
    assert (code, out.rstrip()[-6:]) == (0, "1 pass")


def test_devices_are_taken_in_the_order_they_are_claimed(monkeypatch):
    class Kit(DeviceKit):
        slot = "sampler"
        component = type("Both", (PlainSampler,), {"capabilities": dataclasses.replace(PlainSampler.capabilities, devices=("cuda", "cpu"))})

    for has_gpu, expected in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        assert Kit().device_name == expected
