from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from slotwise.errors import ConfigError
from slotwise.plugin.machine import describe_machine


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Fake GPU", major=9, minor=0, total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_cpu_where_there_is_no_gpu() -> None:
    machine = describe_machine("auto")
    assert machine == describe_machine("cpu")
    assert machine.device_type == "cpu"
    assert machine.device_name
    assert machine.compute_capability is None
    assert 1 <= machine.num_cpus <= (os.cpu_count() or 1)
    assert machine.memory_bytes > 1 << 20
    assert machine.torch_version == torch.__version__
    assert list(machine.cpu_flags) == sorted(machine.cpu_flags)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_a_gpu_is_described_by_its_own_properties(device: str) -> None:
    machine = describe_machine(device)
    assert (machine.device_type, machine.device_name, machine.compute_capability) == ("cuda", "Fake GPU", (9, 0))
    assert machine.memory_bytes == 80 << 30


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("device", ["cuda:2", "gpu", "", "cuda:x"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(ConfigError, match=r"Possible here: auto, cpu, cuda:0, cuda:1\.") as raised:
        describe_machine(device)
    assert raised.value.key == "device"


@pytest.mark.usefixtures("no_gpu")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 GPUs"):
        describe_machine("cuda")


def test_the_record_can_be_made_without_torch() -> None:
    code = (
        "import sys\nfrom slotwise.plugin.machine import MachineDescription\n"
        "MachineDescription(device_type='cpu', device_name='x')\nassert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
