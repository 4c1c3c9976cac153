"""The samplers for GPUs, on the CPU: `triton` in Triton's interpreter, `flashinfer` on a stand-in of its library."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slotwise.errors import ResolutionError
from slotwise.interfaces.sampler import SamplerSetup
from slotwise.plugin.machine import MachineDescription
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.resolver import resolve_slot
from slotwise.testing.cases import Outcome, case_names, kit_for, run_case
from slotwise_samplers.flashinfer_sampler import FlashInferSampler
from slotwise_samplers.torch_sampler import TorchSampler
from slotwise_samplers.triton_sampler import TritonSampler

SAMPLERS = {"triton": TritonSampler, "flashinfer": FlashInferSampler}
SLOW = {"draws_follow_the_softmax_of_a_large_vocabulary"}
"""Not for an interpreter."""


@pytest.fixture(autouse=True)
def library(monkeypatch):
    spec = importlib.util.spec_from_file_location("flashinfer_sampling_standin", Path(__file__).with_name("flashinfer_sampling_standin.py"))
    standin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(standin)
    for name, module in standin.as_modules().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(params=SAMPLERS)
def sampler_class(request):
    return SAMPLERS[request.param]


def make(sampler_class, vocab_size, **setup):
    return sampler_class(SamplerSetup(vocab_size=vocab_size, max_num_reqs=512, device="cpu", **setup))


@pytest.mark.parametrize("case", [case for case in case_names(kit_for("sampler", "torch")) if case not in SLOW])
def test_conforms(sampler_class, case, monkeypatch):
    monkeypatch.setattr("slotwise.testing.sampler_draft_cases.ROUNDS", 6)
    kit = kit_for("sampler", sampler_class, device="cpu")
    draws = kit.draws
    kit.draws = lambda self, logits, rules, num_draws=8192, **more: draws(self, logits, rules, min(num_draws, 8192), **more)
    result = run_case(kit, case)
    assert result.outcome is Outcome.PASSED, result.message


@pytest.mark.parametrize("vocab_size", [1, 2, 33, 257, 5000])
@pytest.mark.parametrize("rows", [1, 7])
def test_sets_and_ids_are_those_of_torch(sampler_class, vocab_size, rows, tools):
    generator = torch.Generator().manual_seed(vocab_size + rows)
    for ties in (False, True):
        logits = torch.randn(rows, vocab_size, generator=generator) * 3
        logits = logits.round() if ties else logits
        logits[torch.rand(rows, vocab_size, generator=generator) < 0.1] = -torch.inf
        logits[:, 0] = 1.0
        for params in (
            {},
            {"top_k": 5},
            {"top_p": 0.6},
            {"min_p": 0.1},
            {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
            {"temperature": 0.2, "top_p": 0.99},
        ):
            metadata = tools.make_metadata(rows, **{"temperature": 0.9, **params})
            request = tools.make_request(logits.clone(), metadata, positions=3)
            best_logit = logits.amax(dim=1)
            uniforms = torch.rand(rows, dtype=torch.float64, generator=generator)
            ours, theirs = (
                make(kind, vocab_size).draw(logits.clone(), best_logit, metadata, None, uniforms, needs_processed=True)
                for kind in (sampler_class, TorchSampler)
            )
            assert torch.equal(ours[1] > -torch.inf, theirs[1] > -torch.inf), (params, ties)
            assert torch.equal(ours[0], theirs[0]), (params, ties)
            assert request.positions == [3] * rows


def test_seeded_ids_are_those_of_torch(sampler_class, tools):
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(1)) * 2
    metadata = tools.make_metadata(40, temperature=1.1, top_p=0.95, seeds={row: row * 7 for row in range(40)})
    found = [tools.run(make(kind, 300), logits, metadata, positions=5) for kind in (sampler_class, TorchSampler)]
    assert found[0] == found[1]


def test_auto_takes_torch_on_the_cpu_and_triton_on_a_card():
    states = ComponentRegistry().load_slot("sampler")
    chosen = {
        device: resolve_slot(
            "sampler", use="auto", states=states, machine=MachineDescription(device_type=device, device_name="test")
        ).chosen
        for device in ("cpu", "cuda")
    }
    assert chosen == {"cpu": "torch", "cuda": "triton"}


def test_a_library_that_is_not_there_is_named_with_its_cure():
    states = ComponentRegistry().load_slot("sampler")
    machine = MachineDescription(device_type="cuda", device_name="test")
    with pytest.raises(ResolutionError, match="flashinfer-python"):
        resolve_slot("sampler", use="flashinfer", states=states, machine=machine)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slotwise_samplers.triton_draw_kernel import draw_kernel
signature = {name: "*fp32" for name in ("logits", "best_logits", "divisors", "top_p", "min_p", "processed")}
signature |= {"top_k": "*i32", "uniforms": "*fp64", "token_ids": "*i64", "num_rows": "i32", "vocab_size": "i32", "stride": "i32"}
for capability in (80, 90, 100):
    for is_on in (False, True):
        constants = {name: is_on for name in ("HAS_TOP_K", "HAS_TOP_P", "HAS_MIN_P", "WRITES_PROCESSED")} | {"ROWS": 1, "BLOCK": 4096}
        names = draw_kernel.arg_names
        source = ASTSource(
            fn=draw_kernel, signature={name: signature.get(name, "constexpr") for name in names},
            constexprs={(names.index(name),): value for name, value in constants.items()},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
        print(capability, is_on, compiled.metadata.shared, "ptx" in compiled.asm)
"""


@pytest.mark.slow
def test_the_kernel_compiles_for_cards_that_are_not_here():
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environ, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 6
    assert all(has_code == "True" and int(shared) < 64 * 1024 for _, _, shared, has_code in lines)
