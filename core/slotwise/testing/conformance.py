"""`ComponentConformance`: which component is examined, with which options, and how hard.

A slot's own class adds the cases: methods `test_*` without arguments, each documented by one line. pytest collects them from a subclass
called `Test...`; `slotwise conform` runs the same ones.

What this file does not know: any slot, pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from slotwise.plugin.contract import base_class, import_implementation
from slotwise.plugin.options import validate_options
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.states import LoadedComponent


class ComponentConformance:
    """Base of the kits. A subclass sets `component`; everything else has a default."""

    slot: ClassVar[str]
    """The slot whose contract is tested."""
    component: ClassVar[str | type[Any] | None] = None
    """The component's registered name, or its class where it has none yet."""
    options: ClassVar[Any] = None
    """With a name: a mapping, validated as `[slot.options]` of a file is. With a class: what it expects as `setup.options`."""
    max_examples: ClassVar[int] = 60
    """Random runs per case that uses them."""
    seed: ClassVar[int] = 0
    """Start of the random runs: one seed always tries the same."""
    shrink: ClassVar[bool] = True
    """Look for the smallest failing run, which may take a minute."""

    def implementation(self) -> tuple[type[Any], Any]:
        """The examined class, and the options for its setup. Raises PluginError or ConfigError."""
        if isinstance(self.component, str):
            loaded = load_component(self.slot, self.component)
            options = validate_options(loaded, self.options or {}, prefix=f"{self.slot}.options")
            return import_implementation(loaded), options
        base = base_class(self.slot)
        if not (isinstance(self.component, type) and issubclass(self.component, base)):
            raise TypeError(
                f"{type(self).__name__}.component is {self.component!r}; "
                f"set it to the name of a component of the slot {self.slot}, or to a subclass of {base.__qualname__}."
            )
        return self.component, self.options

    def require_runnable(self) -> None:
        """Raises PluginError or ConfigError for a component that cannot be examined on this machine at all."""
        self.implementation()

    @property
    def measurements(self) -> Mapping[str, float]:
        """What the case that ran on this object measured, by name; a slot's kit may have something to tell."""
        return {}

    def run_machine(self, factory: Callable[[], RuleBasedStateMachine], *, num_steps: int) -> None:
        """Random runs of a state machine, the same ones each time. Raises what a run raised; the steps that led there are its notes."""

        def seeded() -> RuleBasedStateMachine:
            return factory()

        hypothesis.seed(self.seed)(seeded)
        run_state_machine_as_test(seeded, settings=self.settings(stateful_step_count=num_steps))  # type: ignore[arg-type]

    def settings(self, **changes: Any) -> settings:
        """Settings for hypothesis: no deadline, nothing written to disk."""
        phases = [Phase.generate, Phase.shrink] if self.shrink else [Phase.generate]
        fields: Mapping[str, Any] = {
            "max_examples": self.max_examples,
            "phases": phases,
            "deadline": None,
            "database": None,
            "print_blob": False,
            "report_multiple_bugs": False,
            "suppress_health_check": list(HealthCheck),
        }
        return settings(**{**fields, **changes})


@lru_cache(maxsize=32)
def load_component(slot: str, name: str) -> LoadedComponent:
    """The installed component's record. Raises PluginError."""
    return ComponentRegistry().get(slot, name)
