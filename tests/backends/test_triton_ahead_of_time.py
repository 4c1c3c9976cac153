"""The Triton kernels compile for GPUs that are not here, without spilling registers where models are common."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

LINE = re.compile(r"sm_(\d+)\s+(.*?)\s+(\d+) registers\s+(\d+) bytes spilled\s+(\d+) bytes shared(.*)")
ALLOWED_SPILLS = {"prefill bf16 128, mask, ALiBi": 128, "prefill fp32 64, sinks, LSE": 64}
"""Bytes per thread: kernels with much beside the products, on the oldest card or with rare features."""


@pytest.fixture(scope="module")
def usages():
    """(capability, variant, registers, spilled, shared, complaint) of every kernel; the interpreter must be off in that process."""
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "slotwise_backends.triton_attention.ahead_of_time"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [match.groups() for match in map(LINE.match, done.stdout.splitlines()) if match]
    return [
        (int(sm), name, int(registers), int(spilled), int(shared), complaint) for sm, name, registers, spilled, shared, complaint in found
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "num_kernels"), [(80, 11), (90, 13), (100, 13)])
def test_every_kernel_compiles_for_the_card(usages, capability, num_kernels):
    assert len({name for sm, name, *_ in usages if sm == capability}) == num_kernels


@pytest.mark.slow
def test_no_kernel_needs_more_shared_memory_than_a_card_gives(usages):
    assert [usage for usage in usages if "TOO MUCH" in usage[-1]] == []


@pytest.mark.slow
def test_common_kernels_spill_no_registers(usages):
    assert [usage for usage in usages if usage[3] > ALLOWED_SPILLS.get(usage[1], 0)] == []
