"""Every hook of Slotwise, and the two markers that plug-ins use: `hookimpl` on implementations, `hookspec` here.

Hooks find and observe; they never compute. No hook is called per layer or per token, and the observer hooks are not called at
all while no observer is configured. What this file does not know: who implements the hooks, and how they are isolated
(`loading.py`, `observers.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pluggy

if TYPE_CHECKING:
    from slotwise.interfaces.observer import EngineInfo, RequestFinished, StepEvent
    from slotwise.plugin.component import Component

PROJECT_NAME: Final = "slotwise"
hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec(firstresult=True)
def slotwise_component() -> Component | None:
    """Describe the one component behind an entry point.

    When: after the object named by an entry point of a group `slotwise.<slot>` was imported, which happens only when the component is
    asked for by name, or when `auto`, `explain` or strict mode must weigh its slot.
    How often: once per registry; the record is kept.
    Returns: a `Component` whose `slot` and `name` equal the entry point's group and name. Building it must import neither torch nor
    a kernel library nor the implementation.
    Errors: whatever is raised (SystemExit included), None, or anything but a `Component` makes this component broken or invalid; its
    registration is rolled back and the others go on. KeyboardInterrupt passes.

    The implementation is a module-level function, or a static method of the class that the entry point names.
    """
    return None


@hookspec
def slotwise_engine_started(info: EngineInfo) -> None:
    """The engine is ready: model loaded, cache made, components chosen.

    When: before the first step.
    How often: once per engine.
    Returns: nothing; results are ignored.
    Errors: an observer that raises is reported once and told of nothing more; the engine goes on.
    """


@hookspec
def slotwise_step_finished(event: StepEvent) -> None:
    """One engine step is done and its outputs are on their way.

    When: at the end of `EngineCore.step`, in the engine's thread: what an observer spends here delays the next step.
    How often: once per step that scheduled something or had finished ids to deliver.
    Returns: nothing; results are ignored. The event and all it refers to are read only.
    Errors: an observer that raises is reported once and told of nothing more; the engine goes on.
    """


@hookspec
def slotwise_request_finished(event: RequestFinished) -> None:
    """A request left the engine, for whatever reason.

    When: after the step that ended it, or at once for an abort between steps.
    How often: once per request.
    Returns: nothing; results are ignored.
    Errors: an observer that raises is reported once and told of nothing more; the engine goes on.
    """


@hookspec
def slotwise_engine_stopped() -> None:
    """The engine shuts down; files and sockets should be closed now.

    When: after the last step, also when the engine ends with an error.
    How often: once per engine that was started.
    Returns: nothing; results are ignored.
    Errors: an observer that raises is reported; shutdown goes on.
    """
