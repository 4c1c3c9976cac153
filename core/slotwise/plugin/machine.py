"""`MachineDescription`: what the resolver may know of the machine. Only `describe_machine` imports torch, and only when called."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slotwise.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineDescription:
    """One device and the host around it."""

    device_type: str
    """`cpu`, `cuda`, ...: torch's word."""
    device_name: str
    device: str = "cpu"
    """The device itself, as torch writes it: `cpu`, `cuda:1`."""
    compute_capability: tuple[int, int] | None = None
    """(major, minor) of a CUDA device."""
    cpu_flags: tuple[str, ...] = ()
    """Instruction sets as the kernel names them (`avx2`, `amx_tile`), sorted; empty where the system does not tell."""
    num_cpus: int = 1
    """Cores this process may use."""
    memory_bytes: int = 0
    """Of the device; of the host for `cpu`. 0 = unknown."""
    torch_version: str = ""


def describe_machine(device: str = "auto") -> MachineDescription:
    """The machine as seen from `device`: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, ...

    Raises ConfigError if torch does not know the device or it is not there.
    """
    import torch

    chosen = _torch_device(device)
    is_cuda = chosen.type == "cuda"
    properties = torch.cuda.get_device_properties(chosen) if is_cuda else None
    return MachineDescription(
        device_type=chosen.type,
        device=str(chosen),
        device_name=_cpu_name() if chosen.type == "cpu" else properties.name if properties is not None else str(chosen),
        compute_capability=(properties.major, properties.minor) if properties is not None else None,
        cpu_flags=_cpu_flags(),
        num_cpus=_num_cpus(),
        memory_bytes=properties.total_memory if properties is not None else _host_memory_bytes() if chosen.type == "cpu" else 0,
        torch_version=torch.__version__,
    )


def _torch_device(device: str) -> torch.device:
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    possible = ", ".join(["auto", "cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))])
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f'device = "{device}" is no device that torch knows. Possible here: {possible}.', key="device") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f'device = "{device}" is not there: torch sees {torch.cuda.device_count()} GPUs. Possible here: {possible}.', key="device"
        )
    return chosen


def _cpu_info(field: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.partition(":")[0].strip() == field), "")


def _cpu_name() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_flags() -> tuple[str, ...]:
    return tuple(sorted((_cpu_info("flags") or _cpu_info("Features")).split()))


def _num_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _host_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
