from __future__ import annotations

import os
import select
from typing import Any

import pytest

from slotwise.plugin.doctor import Diagnosis, examine

FakeSite = Any
POLICY = """
    from slotwise.interfaces.scheduler import SchedulerPolicy
    {before}
    class Policy(SchedulerPolicy):
        def order_key(self, request, now): ...
        {body}
"""


def diagnose(site: FakeSite, *, timeout_s: float = 60.0, **settings: Any) -> dict[str, Diagnosis]:
    return {item.name: item for item in examine(site.registry(**settings).states(), timeout_s=timeout_s)}


def test_sound_components_report_both_import_times_whatever_they_print(site: FakeSite) -> None:
    site.plugin("x")
    body = "def choose_victim(self, running, blocked): ..."
    site.module("plugin_x_impl", POLICY.format(before="import os\n    print('noise'); os.write(1, b'more noise')", body=body))
    found = diagnose(site)["x"]
    assert (found.status, found.cause, found.is_problem) == ("loaded", "", False)
    assert found.record_ms is not None
    assert found.implementation_ms is not None


def test_record_and_implementation_faults_are_told_apart(site: FakeSite) -> None:
    site.plugin("broken_record", "raise ValueError('boom')")
    site.plugin("no_implementation")
    site.plugin("unfinished")
    site.module("plugin_unfinished_impl", POLICY.format(before="", body="pass"))
    found = diagnose(site)
    assert all(item.is_problem and item.cure for item in found.values())
    assert (found["broken_record"].status, found["broken_record"].implementation_ms) == ("broken", None)
    assert "ValueError: boom" in found["broken_record"].cause
    assert found["no_implementation"].status == "broken"
    assert "plugin_no_implementation_impl" in found["no_implementation"].cause
    assert found["unfinished"].status == "invalid"
    assert "choose_victim" in found["unfinished"].cause


def test_a_crash_and_a_silent_exit_become_lines_of_the_report(site: FakeSite) -> None:
    site.plugin("crashes", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    site.plugin("leaves", "import os, sys\nsys.stderr.write('last words'); sys.stderr.flush(); os._exit(5)")
    found = diagnose(site)
    assert "signal 9" in found["crashes"].cause
    assert "exit code 5" in found["leaves"].cause
    assert "last words" in found["leaves"].cause
    assert found["crashes"].status == found["leaves"].status == "broken"


def test_an_import_that_never_ends_is_stopped_with_the_processes_it_started(site: FakeSite) -> None:
    fifo = site.folder / "held_open_by_the_grandchild"
    os.mkfifo(fifo)
    grandchild = f"import threading; held = open({str(fifo)!r}, 'w'); threading.Event().wait()"
    site.plugin("hangs", f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {grandchild!r}])")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = diagnose(site, timeout_s=1.0)["hangs"]
        assert select.select([reader], [], [], 20.0)[0], "the grandchild lives on"
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert found.status == "broken"
    assert "longer than 1 s" in found.cause


def test_blocked_and_conflicting_components_are_not_imported(site: FakeSite) -> None:
    site.plugin("blocked", "import os; os._exit(5)")
    site.plugin("twice", "import os; os._exit(5)")
    site.distribution("aaa", {"slotwise.scheduler": {"twice": "m"}})
    states = site.registry(block=("blocked",)).states()
    blocked, *twice = examine(states)
    assert (blocked.status, blocked.is_problem, blocked.record_ms) == ("blocked", False, None)
    assert [(item.status, item.is_problem) for item in twice] == [("conflict", True)] * 2


def test_a_missing_distribution_is_named_with_its_cure_but_is_no_defect(site: FakeSite) -> None:
    source = """
        from slotwise.plugin.component import Component
        from slotwise.plugin.hookspecs import hookimpl

        @hookimpl
        def slotwise_component():
            return Component(slot="scheduler", name="x", implementation="m:C", api=">=1", summary="", requires=("no-such-distribution",))
    """
    site.plugin("x", source)
    found = diagnose(site)["x"]
    assert (found.status, found.is_problem) == ("unavailable", False)
    assert "pip install" in found.cure


def test_a_record_that_imports_a_heavy_library_is_a_problem(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.module("flashinfer", "")
    site.plugin("x")
    site.module("plugin_x_impl", POLICY.format(before="", body="def choose_victim(self, running, blocked): ..."))
    path = site.folder / "plugin_x.py"
    path.write_text("import flashinfer\n" + path.read_text())
    found = diagnose(site)["x"]
    assert found.status == "loaded"
    assert found.is_problem
    assert "flashinfer" in found.cause


def test_the_report_keeps_the_order_and_tells_progress(site: FakeSite) -> None:
    for name in ("a", "b", "c"):
        site.plugin(name, "raise ValueError")
    done: list[Diagnosis] = []
    diagnoses = examine(site.registry().states(), on_done=done.append)
    assert [item.name for item in diagnoses] == [item.name for item in done] == ["a", "b", "c"]
    assert done[0].to_dict()["is_problem"] is True
