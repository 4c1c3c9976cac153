"""The start-up ledger, paused collection, and how OpenMP is told to wait."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest

from slotwise.openmp import let_openmp_sleep
from slotwise.startup import collection_paused, keep_ledger, process_age, stage


def test_seconds_are_booked_on_the_innermost_stage():
    with keep_ledger() as ledger:
        with stage("outer"):
            time.sleep(0.02)
            with stage("inner"):
                time.sleep(0.05)
        with stage("inner"):
            time.sleep(0.03)
        ledger.add("told", 7.0)
    assert list(ledger.stages) == ["outer", "inner", "told"]
    assert ledger.stages["inner"] >= 0.08
    assert 0.02 <= ledger.stages["outer"] < 0.07
    assert ledger.total == pytest.approx(sum(ledger.stages.values()))


def test_a_stage_that_fails_is_booked_and_closed():
    with keep_ledger() as ledger, stage("outer"):
        with pytest.raises(RuntimeError, match="no"), stage("inner"):
            raise RuntimeError("no")
        time.sleep(0.01)
    assert ledger.stages["outer"] >= 0.01


def test_without_a_ledger_nothing_is_kept():
    with stage("alone"):
        pass
    with keep_ledger() as ledger:
        pass
    assert ledger.stages == {}


def test_collection_is_as_it_was_afterwards():
    assert gc.isenabled()
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_age_of_a_process_grows():
    first = process_age()
    if first is None:
        pytest.skip("this system does not tell")
    time.sleep(0.05)
    assert process_age() - first >= 0.04


def _policy_seen(code, **env):
    found = subprocess.run(
        [sys.executable, "-c", f"import os; {code}; print(os.environ.get('OMP_WAIT_POLICY'))"],
        env={**{key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}, **env},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found.stdout.strip()


def test_openmp_sleeps_where_the_engine_comes_before_torch():
    assert _policy_seen("import slotwise.engine") == "PASSIVE"
    assert _policy_seen("import slotwise.engine", OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"
    assert _policy_seen("import slotwise") == "None"


def test_nothing_is_changed_where_torch_was_first(monkeypatch):
    assert "torch" in sys.modules or __import__("torch")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    let_openmp_sleep()
    assert "OMP_WAIT_POLICY" not in os.environ
