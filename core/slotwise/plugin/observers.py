"""`ObserverHub`: tells observers of events, and keeps a failing one from hurting the engine or the others.

What this file does not know: what observers do with what they are told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from slotwise.errors import ContractError
from slotwise.plugin.loading import new_plugin_manager

if TYPE_CHECKING:
    from slotwise.interfaces.observer import EngineInfo, Observer, RequestFinished, StepEvent

logger = logging.getLogger(__name__)

_HOOK_PREFIX = "slotwise_"


class ObserverHub:
    """The observers of one engine. Ask `active` before building an event: without observers nothing is to be called.

    Each observer has a plug-in manager of its own, so that a failure is known to be its failure. Raises ContractError if an observer's
    hooks do not fit their specification.
    """

    def __init__(self, observers: Mapping[str, Observer] | None = None) -> None:
        """`observers`: component name -> instance, told in this order."""
        self._managers = {name: _register(name, observer) for name, observer in (observers or {}).items()}

    @property
    def active(self) -> bool:
        """Whether anybody listens."""
        return bool(self._managers)

    @property
    def names(self) -> tuple[str, ...]:
        """Observers still told."""
        return tuple(self._managers)

    def engine_started(self, info: EngineInfo) -> None:
        """Once, before the first step."""
        self._tell("slotwise_engine_started", info=info)

    def step_finished(self, event: StepEvent) -> None:
        """Once a step."""
        self._tell("slotwise_step_finished", event=event)

    def request_finished(self, event: RequestFinished) -> None:
        """Once a request."""
        self._tell("slotwise_request_finished", event=event)

    def engine_stopped(self) -> None:
        """Once, at the end, also after an error of the engine."""
        self._tell("slotwise_engine_stopped")

    def _tell(self, hook: str, **arguments: Any) -> None:
        for name, manager in list(self._managers.items()):
            try:
                getattr(manager.hook, hook)(**arguments)
            except (Exception, SystemExit) as error:
                del self._managers[name]
                logger.warning(
                    'Observer "%s" raised %s in %s: %s. It is told of nothing more; the engine goes on.',
                    name,
                    type(error).__name__,
                    hook,
                    error,
                    exc_info=error,
                )


def hook_faults(observer: object) -> list[str]:
    """What is wrong with the hook implementations of an observer or its class: unknown hooks, wrong arguments, a missing mark."""
    known = {name for name in dir(new_plugin_manager().hook) if name.startswith(_HOOK_PREFIX)}
    unmarked = [
        f"{name} lacks the mark slotwise.plugin.hookspecs.hookimpl and would never be called"
        for name in dir(observer)
        if name in known and not hasattr(getattr(observer, name), "slotwise_impl")
    ]
    try:
        manager = new_plugin_manager()
        manager.register(observer)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        return [*unmarked, str(error)]
    return unmarked


def _register(name: str, observer: Observer) -> pluggy.PluginManager:
    faults = hook_faults(observer)
    if faults:
        raise ContractError(f'Observer "{name}" does not fulfil its contract: {"; ".join(faults)}.')
    manager = new_plugin_manager()
    manager.register(observer, name=name)
    return manager
