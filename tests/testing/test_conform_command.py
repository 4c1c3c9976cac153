"""`slotwise conform`: the table, the JSON, the exit codes, what it says to mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slotwise.cli import main
from slotwise.testing import cases

from .mutants.policy_mutants import EmptyChunk

QUICK = ("--case", "victim_is_one_of_the_running", "--case", "chunk_is_within_bounds", "--case", "own_queue_keeps_everybody")


@pytest.fixture
def conform(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["conform", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_table_has_a_row_per_case_and_a_sum(conform):
    code, out, _ = conform("scheduler", "fcfs", *QUICK)
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert " pass " in rows["victim_is_one_of_the_running"]
    assert " not claimed " in rows["own_queue_keeps_everybody"]
    assert rows["own_queue_keeps_everybody"].rstrip().endswith("orders by order_key alone")
    assert out.rstrip().endswith("scheduler:fcfs: 2 pass, 1 not claimed")


@pytest.mark.parametrize(("slot", "name", "num_cases"), [("scheduler", "fcfs", 15), ("kv_cache", "no_prefix", 26)])
def test_all_cases_run_by_default(conform, slot, name, num_cases):
    code, out, _ = conform(slot, name, "--examples", "2", "--json")
    answer = json.loads(out)
    assert (code, answer["component"], answer["ok"]) == (0, f"{slot}:{name}", True)
    assert [case["case"] for case in answer["cases"]] == list(cases.case_names(cases.kit_for(slot, name)))
    assert len(answer["cases"]) >= num_cases
    assert {case["outcome"] for case in answer["cases"]} == {"pass", "not claimed"}


def test_failure_is_told_and_exits_with_1(conform, monkeypatch):
    def faulty_kit(slot: str, name: str, **attributes: Any) -> Any:
        return real_kit(slot, EmptyChunk, **attributes | {"options": None})

    real_kit = cases.kit_for
    monkeypatch.setattr(cases, "kit_for", faulty_kit)
    code, out, _ = conform("scheduler", "fcfs", *QUICK)
    assert code == 1
    assert "chunk_is_within_bounds: choose_chunk was asked about 2 tokens and answered 0; 1 .. 2 are possible" in out
    assert "1 fail" in out
    code, out, _ = conform("scheduler", "fcfs", *QUICK, "--json")
    answer = json.loads(out)
    assert (code, answer["ok"]) == (1, False)
    assert [case["outcome"] for case in answer["cases"]] == ["pass", "fail", "not claimed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("schedulers", "fcfs"), 'Did you mean "scheduler"'),
        (("scheduler", "fcsf"), 'Did you mean "fcfs"'),
        (("scheduler", "priority", "--option", "displce=true"), 'Did you mean "displace"'),
        (("scheduler", "priority", "--option", "displace"), "KEY=VALUE"),
        (("scheduler", "fcfs", "--case", "order_is_totl"), "order_is_total"),
    ],
)
def test_mistakes_are_named_and_exit_with_2(conform, arguments, message):
    code, out, err = conform(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_seed_and_options_reach_the_kit(conform):
    code, out, _ = conform(
        "scheduler", "priority", "--options", "displace=true", "--seed", "3", "--case", "displacement_is_for_the_more_urgent_only"
    )
    assert code == 0
    assert "1 pass" in out


ATTENTION_CASES = ("decodes", "sinks", "cascade", "sliding_window", "fused_write_stores_each_token_in_its_slot")
ATTENTION = tuple(word for case in ATTENTION_CASES for word in ("--case", case))


def test_attention_reports_capabilities_and_errors(conform):
    code, out, _ = conform("attention", "reference", *ATTENTION, "--json")
    record = json.loads(out)
    assert code == 0
    outcomes = {row["capability"]: row["outcome"] for row in record["capabilities"]}
    assert outcomes["dtypes"] == outcomes["sinks"] == outcomes["sliding_window"] == "pass"
    assert outcomes["cascade"] == outcomes["fused_kv_write"] == "not claimed"
    assert set(record["errors_ulps"]) >= {"decode, float32", "sinks", "sliding window"}
    assert record["timings"] == []


def test_a_false_claim_is_a_failed_capability(conform, monkeypatch):
    from .mutants.attention_rule_mutants import SinkIgnored

    real_kit = cases.kit_for
    monkeypatch.setattr(cases, "kit_for", lambda slot, name, **facts: real_kit(slot, SinkIgnored, **facts | {"options": None}))
    code, out, _ = conform("attention", "reference", *ATTENTION, "--json")
    record = json.loads(out)
    assert (code, record["ok"]) == (1, False)
    assert {row["capability"] for row in record["capabilities"] if row["outcome"] == "fail"} == {"sinks"}


def test_the_page_holds_everything_and_loads_nothing(conform, tmp_path):
    page = tmp_path / "report.html"
    code, _, _ = conform("attention", "torch_sdpa", *ATTENTION, "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert code == 0
    assert "attention:torch_sdpa" in text
    assert all(case in text for case in ATTENTION_CASES)
    assert "src=" not in text
    assert "<script" not in text
    assert "href=" not in text


def test_times_stand_beside_the_reference(monkeypatch):
    from slotwise.testing import attention_timing
    from slotwise.testing.cases import kit_for

    monkeypatch.setattr(attention_timing, "SHAPES", {"small": ((1, 1), (5, 9))})
    timings = attention_timing.time_beside_reference(kit_for("attention", "torch_sdpa"), kit_for("attention", "reference"))
    assert [timing.shape for timing in timings] == ["small"]
    assert timings[0].ratio == pytest.approx(timings[0].reference_us / timings[0].backend_us)


def test_a_backend_that_cannot_run_here_is_refused_with_the_way_out(conform, monkeypatch):
    import dataclasses

    from slotwise.testing.attention_kit import AttentionKit

    claims = AttentionKit.claims.fget
    monkeypatch.setattr(AttentionKit, "claims", property(lambda self: dataclasses.replace(claims(self), devices=("cuda",))))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = conform("attention", "reference")
    assert code == 2
    assert "cuda" in err
    assert "--device" in err
