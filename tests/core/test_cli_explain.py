from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from slotwise.cli import main
from slotwise.cli.deviation import LayerChoice
from slotwise.cli.explanation import NEEDS_MODEL, Explanation, complete
from slotwise.cli.explanation_view import candidate_rows, choice_row, explanation_record, layer_rows, render_explanation
from slotwise.config.engine_config import EngineConfig
from slotwise.config.loading import load_config
from slotwise.engine.plan import LayerPlan
from slotwise.errors import ResolutionError
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import ModelDescription
from slotwise.plugin.machine import MachineDescription
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.resolution import Candidate, Refusal, Resolution


def candidate(name: str, *refusals: Refusal, chosen: bool = False, preference: int | None = 5) -> Candidate:
    return Candidate(
        name=name, distribution=f"{name}-dist", version="1.0", state="loaded", preference=preference, refusals=refusals, chosen=chosen
    )


DEVICE = Refusal(predicate="device", wanted="cpu", offered="cuda", change="device = [cuda]")
DTYPE = Refusal(predicate="dtype", wanted="float32", offered="float16", change="model.dtype = float16")
ATTENTION = Resolution(
    slot="attention",
    part="decode",
    asked="auto",
    chosen="sdpa",
    reason="the only candidate that fits",
    candidates=(candidate("sdpa", chosen=True), candidate("triton", DEVICE, DTYPE), candidate("slow", preference=1)),
)
FAILED = Resolution(slot="sampler", part="", asked="fast", chosen=None, reason="no candidate fits", candidates=(candidate("fast", DEVICE),))
LAYER = AttentionLayer(name="l0", index=0, num_heads=2, num_kv_heads=1, head_dim=8, scale=1.0)
FULL = Explanation(
    resolutions=(ATTENTION,),
    layers=(LayerChoice("l0", "full", "sdpa", "sdpa"), LayerChoice("l1", "full", "sdpa", "sdpa"), LayerChoice("l2", "sliding", "a", "b")),
    machine=MachineDescription(device_type="cpu", device_name="A processor"),
    model=ModelDescription(architecture="Tiny", dtype="float32", vocab_size=8, max_model_len=16, layers=(LAYER,)),
)


def rendered(explanation: Explanation) -> str:
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as capture:
        for renderable in render_explanation(explanation):
            console.print(renderable)
    return capture.get()


def test_every_refusal_has_its_row_with_wanted_offered_and_change() -> None:
    assert candidate_rows(ATTENTION.candidates[1], ATTENTION) == [
        ("", "triton", "triton-dist 1.0", "refused: device", "cpu", "cuda", "device = [cuda]"),
        ("", "", "", "refused: dtype", "float32", "float16", "model.dtype = float16"),
    ]


def test_candidates_say_how_they_stand() -> None:
    verdicts = [candidate_rows(ATTENTION.candidates[index], ATTENTION)[0] for index in (0, 2)]
    assert [(row[0], row[3]) for row in verdicts] == [("*", "chosen"), ("", "fits, preference 1")]
    open_slot = Resolution(slot="model", part="", asked="auto", chosen=None, reason=NEEDS_MODEL, candidates=(candidate("x"),))
    assert candidate_rows(open_slot.candidates[0], open_slot)[0][3] == "not weighed"
    assert choice_row(open_slot) == ("model", "auto", "-", NEEDS_MODEL)


def test_layers_served_alike_share_a_row() -> None:
    rows = [row[:4] for row in layer_rows(FULL.layers, ())]
    assert rows == [("l0 .. l1 (2)", "full", "sdpa", "sdpa"), ("l2", "sliding", "a", "b")]


def test_a_layer_row_names_what_decided_and_what_kept_each_other_candidate() -> None:
    whole = Resolution(
        slot="attention", part="", asked="slow", chosen="slow", reason="", candidates=(candidate("slow", chosen=True), candidate("sdpa"))
    )
    layers = [LayerChoice("l0", "full", "slow", "sdpa", "attention", "attention.decode")]
    assert layer_rows(layers, (whole, ATTENTION)) == [
        (
            "l0",
            "full",
            "slow",
            "sdpa",
            "attention, attention.decode",
            "attention: sdpa (not named); attention.decode: triton (device, dtype), slow (preference 1)",
        )
    ]
    alone = [LayerChoice("l0", "full", "sdpa", "sdpa", "attention.decode", "attention.decode")]
    assert layer_rows(alone, (ATTENTION,))[0][4:] == ("attention.decode", "triton (device, dtype), slow (preference 1)")


def test_text_shows_model_machine_choice_refusals_layers_and_no_markup() -> None:
    text = rendered(FULL)
    for part in (
        "Tiny, float32, 1 attention layers",
        "cpu: A processor",
        "attention.decode: 3 candidates",
        "device = [cuda]",
        "l0 .. l1 (2)",
    ):
        assert part in text


def test_record_is_json_and_carries_every_candidate() -> None:
    record: dict[str, Any] = json.loads(json.dumps(explanation_record(FULL)))
    assert record["slots"][0]["candidates"][1]["refusals"][1]["change"] == "model.dtype = float16"
    assert record["layers"][2] == {
        "name": "l2", "kind": "sliding", "prefill": "a", "decode": "b", "prefill_by": "attention", "decode_by": "attention",
    }  # fmt: skip
    assert record["deviations"] == []
    assert (record["model"]["architecture"], record["model"]["num_layers"], record["machine"]["device_type"]) == ("Tiny", 1, "cpu")
    assert record["error"] is None


def test_record_of_a_failure_keeps_trace_and_error() -> None:
    explanation = Explanation(resolutions=(FAILED,), failure=ResolutionError("no sampler fits", resolution=FAILED))
    record = explanation_record(explanation)
    assert record["error"] == {"type": "ResolutionError", "message": "no sampler fits"}
    assert record["slots"][0]["candidates"][0]["refusals"][0]["offered"] == "cuda"
    assert explanation.has_open_slots
    assert "refused: device" in rendered(explanation)


def test_slots_that_a_name_decides_are_decided_without_a_model_and_the_others_stay_open() -> None:
    config = load_config(set_values=["scheduler=priority", "attention.per_phase.decode=reference"], environ={}).config
    found = {resolution.where: resolution for resolution in complete((), config, ComponentRegistry(), NEEDS_MODEL)}
    assert (found["scheduler"].chosen, found["kv_cache"].chosen) == ("priority", "paged")
    for where in ("attention", "attention.decode", "model", "weights"):
        assert (found[where].chosen, found[where].reason) == (None, NEEDS_MODEL)
        assert found[where].candidates
    assert list(found)[:2] == ["attention", "attention.decode"]


def test_what_is_decided_is_kept_and_not_repeated() -> None:
    config = load_config(environ={}).config
    found = complete((FAILED,), config, ComponentRegistry(), "open")
    assert [resolution for resolution in found if resolution.slot == "sampler"] == [FAILED]


def test_explain_checks_the_configuration_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[scheduler]\nuse = 'fcsf'\n")
    assert main(["explain", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["key"] == "scheduler.use"


LAYER_PLANS = (
    LayerPlan(name="l0", kind="full", prefill="sdpa", decode="sdpa"),
    LayerPlan(name="l1", kind="full", prefill="sdpa", decode="sdpa", decode_part="decode"),
)


class Plan:
    """What `plan_engine` returns, as far as `explain` reads it."""

    def __init__(self, config: EngineConfig, *, weigh_all: bool = False) -> None:
        named = complete((), config, ComponentRegistry(), NEEDS_MODEL)
        self.resolutions = tuple(resolution for resolution in named if resolution.slot in ("scheduler", "kv_cache"))
        self.layers = LAYER_PLANS
        self.machine = FULL.machine
        self.model = FULL.model


def refuse(config: EngineConfig, *, weigh_all: bool = False) -> Plan:
    raise ResolutionError("no sampler fits", resolution=FAILED)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `explain` on a file with a made-up plan in place of the engine's own."""

    def run_explain(plan_engine: Callable[[EngineConfig], Plan], *arguments: str, text: str = "") -> tuple[int, str, str]:
        path = tmp_path / "a.toml"
        path.write_text(text)
        module = ModuleType("slotwise.engine.plan")
        module.__dict__["plan_engine"] = plan_engine
        monkeypatch.setitem(sys.modules, "slotwise.engine.plan", module)
        code = main(["explain", str(path), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_explain


def test_plan_is_shown_with_the_slots_it_left_open(run: Callable[..., tuple[int, str, str]]) -> None:
    code, output, error = run(Plan, "--json", "--set", "scheduler=priority")
    record = json.loads(output)
    assert (code, error) == (0, "")
    assert {slot["slot"]: slot["chosen"] for slot in record["slots"]} == {
        "attention": None,
        "scheduler": "priority",
        "kv_cache": "paged",
        "eviction": "lru",
        "sampler": None,
        "logits_processor": "penalties",
        "grammar": None,
        "linear": None,
        "model": None,
        "weights": None,
    }
    assert [(layer["prefill_by"], layer["decode_by"]) for layer in record["layers"]] == [
        ("attention", "attention"),
        ("attention", "attention.decode"),
    ]


class DecidedPlan(Plan):
    """Nothing is left open, and the attention slot was decided by `auto`."""

    def __init__(self, config: EngineConfig, *, weigh_all: bool = False) -> None:
        super().__init__(config)
        left_open = [replace(FAILED, slot=slot, chosen="fast") for slot in ("sampler", "grammar", "linear", "model", "weights")]
        whole = replace(ATTENTION, part="", asked=config.attention.use)
        self.resolutions = (*self.resolutions, *left_open, whole)


class DeviatingPlan(DecidedPlan):
    """A component of higher preference was refused."""

    def __init__(self, config: EngineConfig, *, weigh_all: bool = False) -> None:
        super().__init__(config)
        preferred = candidate("triton", DEVICE, preference=60)
        whole = replace(self.resolutions[-1], candidates=(candidate("sdpa", chosen=True), preferred))
        self.resolutions = (*self.resolutions[:-1], whole)


def test_strict_passes_where_every_layer_is_served_as_configured(run: Callable[..., tuple[int, str, str]]) -> None:
    assert run(DecidedPlan, "--strict")[0] == 0


def test_strict_fails_and_names_the_layers_where_auto_could_not_take_what_it_prefers(run: Callable[..., tuple[int, str, str]]) -> None:
    code, output, _ = run(DeviatingPlan, "--strict")
    assert code == 1
    assert "Deviates: l0 .. l1 (2), prefill: served by sdpa instead of triton" in output
    assert "preferred on this device (60), but device: wanted cpu, offered cuda" in output
    code, output, _ = run(DeviatingPlan, "--json")
    assert code == 0
    assert [(item["phase"], item["expected"]) for item in json.loads(output)["deviations"]] == [
        ("prefill", "triton"),
        ("decode", "triton"),
    ]


def test_strict_fails_where_a_layer_is_served_by_another_than_the_one_named(run: Callable[..., tuple[int, str, str]]) -> None:
    code, output, _ = run(DecidedPlan, "--strict", "--set", "attention.use=reference")
    assert code == 1
    assert "Deviates: l0 .. l1 (2), prefill: served by sdpa instead of reference: it is named in the configuration" in output


def test_strict_makes_an_open_slot_a_failure(run: Callable[..., tuple[int, str, str]]) -> None:
    assert run(Plan)[0] == 0
    assert run(Plan, "--strict")[0] == 1


def test_slot_that_cannot_be_filled_shows_its_trace_and_then_the_error(run: Callable[..., tuple[int, str, str]]) -> None:
    code, output, error = run(refuse)
    assert (code, error) == (2, "Error: no sampler fits\n")
    assert "refused: device" in output
    code, output, error = run(refuse, "--json")
    assert (code, json.loads(error)["error"]["type"]) == (2, "ResolutionError")
    assert json.loads(output)["error"]["message"] == "no sampler fits"


def test_dropped_options_are_noted(run: Callable[..., tuple[int, str, str]]) -> None:
    text = "[scheduler]\nuse = 'fcfs'\noptions.x = 1\n"
    assert "scheduler.options.x" in run(Plan, "--set", "scheduler=priority", text=text)[1]
