"""`slotwise plugins doctor`: import each component's record and implementation in a process of its own, and judge.

A crash, a hang or an exit of a plug-in thus becomes one line of the report. What this file does not know: how the report is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from slotwise.plugin.states import DEFECTS, PluginState, PluginStatus

DEFAULT_TIMEOUT_S: Final = 60.0
_TAIL = 400
"""Characters of standard error quoted when a process dies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What a check of one component found."""

    slot: str
    name: str
    distribution: str
    version: str
    status: str
    cause: str = ""
    cure: str = ""
    record_ms: float | None = None
    """Import time of the record; None where it was not imported."""
    implementation_ms: float | None = None
    """Import time of the implementation, kernel libraries included."""

    @property
    def is_problem(self) -> bool:
        """Whether somebody must act: defects and slow or heavy records, not what is blocked or merely unavailable here."""
        return self.status in DEFECTS or (self.status == PluginStatus.LOADED and bool(self.cause))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self) | {"is_problem": self.is_problem}


def examine(
    states: Sequence[PluginState],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    on_done: Callable[[Diagnosis], None] | None = None,
) -> tuple[Diagnosis, ...]:
    """Check every component that is neither blocked nor in conflict; the others are reported as they are. In the order given."""
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return tuple(_announced(pool.map(lambda state: _examine_one(state, timeout_s), states), on_done))


def _announced(diagnoses: Iterator[Diagnosis], on_done: Callable[[Diagnosis], None] | None) -> Iterator[Diagnosis]:
    for diagnosis in diagnoses:
        if on_done is not None:
            on_done(diagnosis)
        yield diagnosis


def _examine_one(state: PluginState, timeout_s: float) -> Diagnosis:
    info = state.info
    known = Diagnosis(
        slot=info.slot,
        name=info.name,
        distribution=info.distribution,
        version=info.version,
        status=str(state.status),
        cause=state.cause,
        cure=state.cure,
    )
    if state.status in (PluginStatus.BLOCKED, PluginStatus.CONFLICT):
        return known
    try:
        found = _run_probe(json.dumps({"path": sys.path, "entry_point": asdict(info)}), timeout_s)
    except _ProbeFailure as failure:
        cure = f'upgrade {info.distribution}, or block it: plugins.block = ["{info.key}"].'
        return replace(known, status=str(PluginStatus.BROKEN), cause=str(failure), cure=cure)
    heavy = found.pop("heavy_modules")
    if heavy and found["status"] == PluginStatus.LOADED:
        found["cause"] = f"Making its record imports {', '.join(heavy)}, which every listing of its slot then pays for."
        found["cure"] = "import kernel libraries in the implementation's module only."
    return replace(known, **found)


class _ProbeFailure(Exception):  # noqa: N818 - never leaves this file
    """The process gave no answer."""


def _run_probe(request: str, timeout_s: float) -> dict[str, Any]:
    command = [sys.executable, "-c", "from slotwise.plugin.probe import main; main()"]
    pipe = subprocess.PIPE
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment) as process:
        try:
            output, errors = process.communicate(request, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            raise _ProbeFailure(f"importing it took longer than {timeout_s:g} s.") from None
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        raise _ProbeFailure(f"the process that imported it ended with {how}. {errors.strip()[-_TAIL:]}".strip()) from None
    return answer


def _kill_group(process: subprocess.Popen[str]) -> None:
    """The process and what it started; a survivor would keep the pipes open."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
