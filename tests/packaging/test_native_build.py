"""The native kernels: built where a compiler is, left out with a reason where none is, and then replaced in `auto` by what is there."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest

from slotwise.errors import ResolutionError
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import ModelDescription
from slotwise.plugin.machine import MachineDescription
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.resolver import resolve_attention
from slotwise.plugin.states import PluginStatus
from slotwise_backends.cpu_attention import capabilities, native
from slotwise_plugins.native import library as dense_library

ROOT = Path(__file__).parents[2]


needs_compiler = pytest.mark.skipif(capabilities.missing_library() is not None, reason="no C compiler was there at install")


@pytest.fixture
def build_native():
    spec = importlib.util.spec_from_file_location("build_native", ROOT / "backends" / "build_native.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_compiler
def test_the_library_builds_and_says_what_it_runs(build_native, tmp_path):
    assert build_native.build(build_native.ATTENTION, tmp_path / "kernels.so")
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.so"]
    library = ctypes.CDLL(str(tmp_path / "kernels.so"))
    library.slotwise_variant.restype = ctypes.c_char_p
    assert library.slotwise_abi_version() == native.ABI_VERSION
    assert library.slotwise_variant().decode() in ("avx512", "avx2", "baseline")


@needs_compiler
def test_the_dense_kernels_build_and_say_what_they_run(build_native, tmp_path):
    assert build_native.build(build_native.DENSE, tmp_path / "dense.so")
    library = ctypes.CDLL(str(tmp_path / "dense.so"))
    library.slotwise_dense_current.restype = ctypes.c_char_p
    assert library.slotwise_dense_abi_version() == dense_library.ABI_VERSION
    assert library.slotwise_dense_current().decode() in ("avx512dot", "avx512", "avx2", "baseline")


@pytest.mark.parametrize("compiler", ["/bin/false", "no-such-compiler"])
def test_a_compiler_that_fails_leaves_the_kernels_out(build_native, tmp_path, monkeypatch, capsys, compiler):
    monkeypatch.setenv("CC", compiler)
    for library in build_native.LIBRARIES:
        assert not build_native.build(library, tmp_path / "kernels.so")
        assert not (tmp_path / "kernels.so").exists()
        assert f"{library.purpose} will be unavailable" in capsys.readouterr().err


def test_records_are_those_of_the_header():
    """The records in Python have the fields of the C header, in its order."""
    from slotwise_backends.cpu_attention.native import AttendArgs, KVView, WriteArgs
    from slotwise_plugins.native.library import GateArgs, LinearArgs, NormArgs, RopeArgs

    attention = (ROOT / "backends/slotwise_backends/cpu_attention/kernels/attention.h").read_text(encoding="utf-8")
    dense = (ROOT / "plugins/slotwise_plugins/native/kernels/dense.h").read_text(encoding="utf-8")
    records = [(attention, KVView, "kv_view"), (attention, AttendArgs, "attend_args"), (attention, WriteArgs, "write_args")]
    records += [
        (dense, LinearArgs, "linear_args"),
        (dense, NormArgs, "norm_args"),
        (dense, RopeArgs, "rope_args"),
        (dense, GateArgs, "gate_args"),
    ]
    for header, record, name in records:
        body = header.split(f"struct {name} {{")[1].split("};")[0]
        fields = [word for line in body.splitlines() for word in fields_of(line)]
        assert fields == [field for field, _ in record._fields_]


def fields_of(line):
    declaration = line.split("/*")[0].strip().rstrip(";")
    if not declaration:
        return []
    return [part.split()[-1].lstrip("*") for part in declaration.split(",")]


@pytest.fixture
def without_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(capabilities, "LIBRARY", tmp_path / "_kernels.native.so")
    return ComponentRegistry()


MACHINE = MachineDescription(device_type="cpu", device_name="test")
LAYER = AttentionLayer(name="layer", index=0, num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
MODEL = ModelDescription(architecture="Any", dtype="float32", vocab_size=8, max_model_len=64, layers=(LAYER,))


def test_without_the_library_the_component_is_unavailable_with_cause_and_cure(without_kernels):
    state = next(state for state in without_kernels.load_slot("attention") if state.name == "cpu")
    assert state.status is PluginStatus.UNAVAILABLE
    assert "no C compiler" in state.cause
    assert "gcc or clang" in state.cure


def test_without_the_library_auto_takes_the_next_and_says_so(without_kernels):
    resolution = resolve_attention(use="auto", states=without_kernels.load_slot("attention"), machine=MACHINE, model=MODEL)
    assert resolution.chosen == "torch_sdpa"
    left_out = next(candidate for candidate in resolution.candidates if candidate.name == "cpu")
    assert "C kernels were not built" in left_out.refusals[0].offered


def test_without_the_library_naming_it_is_an_error_with_the_reason(without_kernels):
    with pytest.raises(ResolutionError, match="C kernels were not built"):
        resolve_attention(use="cpu", states=without_kernels.load_slot("attention"), machine=MACHINE, model=MODEL)


@needs_compiler
def test_with_the_library_auto_takes_it():
    resolution = resolve_attention(use="auto", states=ComponentRegistry().load_slot("attention"), machine=MACHINE, model=MODEL)
    assert resolution.chosen == "cpu"
