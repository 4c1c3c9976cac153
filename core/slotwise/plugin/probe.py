"""Run in a process of its own by `doctor.py`: load one component's record and implementation and say what happened.

Standard input: JSON with `path` (the import path to use) and `entry_point` (fields of `EntryPointInfo`). Standard output: one JSON object;
whatever the plug-in prints goes to standard error. What this file does not know: time limits, other components.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Final

HEAVY_MODULES: Final = ("torch", "transformers", "triton", "flash_attn", "flashinfer")
"""Modules that no record may pull in: they cost seconds."""


def probe(entry_point: dict[str, Any]) -> dict[str, Any]:
    """State, import times and heavy modules of one component."""
    from slotwise.errors import PluginError
    from slotwise.plugin.contract import import_implementation
    from slotwise.plugin.discovery import EntryPointInfo
    from slotwise.plugin.loading import load_record, new_plugin_manager
    from slotwise.plugin.states import LoadedComponent

    info = EntryPointInfo(**entry_point)
    manager = new_plugin_manager()
    before = set(sys.modules)
    started = time.perf_counter()
    state = load_record(info, manager)
    result = {
        "status": str(state.status),
        "cause": state.cause,
        "cure": state.cure,
        "record_ms": _since_ms(started),
        "implementation_ms": None,
        "heavy_modules": [name for name in HEAVY_MODULES if name in sys.modules and name not in before],
    }
    if state.status != "loaded" or state.component is None:
        return result
    started = time.perf_counter()
    try:
        import_implementation(LoadedComponent(component=state.component, info=info))
    except PluginError as error:
        cure = f"reinstall or upgrade {info.distribution}; its authors can run this check too."
        result |= {"status": "broken" if error.__cause__ is not None else "invalid", "cause": str(error), "cure": cure}
    return result | {"implementation_ms": _since_ms(started)}


def _since_ms(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 1)


def main() -> None:
    """Entry of the child process."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    with answer:
        json.dump(probe(request["entry_point"]), answer)


if __name__ == "__main__":
    main()
