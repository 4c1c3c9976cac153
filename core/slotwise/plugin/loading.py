"""One plug-in at a time: import the object behind an entry point, register it, ask its hook, check the answer.

Whatever goes wrong stays with that plug-in: its registration is taken back and the failure becomes a `PluginState`. Only
KeyboardInterrupt and its like pass. What this file does not know: which plug-ins are wanted, and in which order.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any, Final

import pluggy

from slotwise.plugin import hookspecs
from slotwise.plugin.discovery import GROUP_PREFIX, EntryPointInfo
from slotwise.plugin.record_check import check_record
from slotwise.plugin.states import PluginState, PluginStatus, RecordFault

_FAILURES: Final = (Exception, SystemExit)
"""What a plug-in may raise without hurting the others."""
_VALUE: Final = re.compile(r"[\w.]+(:[\w.]+)?\s*(\[.*\])?")


def new_plugin_manager() -> pluggy.PluginManager:
    """A manager that knows every hook of Slotwise and no plug-in."""
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    return manager


def load_record(info: EntryPointInfo, manager: pluggy.PluginManager) -> PluginState:
    """Load one component's record. Raises nothing that the plug-in raised; after a failure `manager` is as it was before."""
    try:
        plugin = _import_plugin(info)
        is_new = not manager.is_registered(plugin)
        try:
            component = check_record(_ask(plugin, info, manager), info)
        except BaseException:
            if is_new and manager.is_registered(plugin):
                manager.unregister(plugin)
            raise
    except RecordFault as fault:
        return PluginState(
            info=info, status=fault.status, component=fault.component, cause=fault.cause, cure=fault.cure, error=fault.__cause__
        )
    return PluginState(info=info, status=PluginStatus.LOADED, component=component)


def _import_plugin(info: EntryPointInfo) -> Any:
    if _VALUE.fullmatch(info.value) is None:
        raise RecordFault(PluginStatus.INVALID, f'its entry point "{info.value}" is no address.', 'write "module" or "module:object".')
    try:
        return metadata.EntryPoint(name=info.name, value=info.value, group=GROUP_PREFIX + info.slot).load()
    except _FAILURES as error:
        raise _broken(f"importing {info.value}", error, info) from error


def _ask(plugin: Any, info: EntryPointInfo, manager: pluggy.PluginManager) -> Any:
    try:
        if not manager.is_registered(plugin):
            manager.register(plugin, name=f"{info.key} of {info.origin}")
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise RecordFault(PluginStatus.INVALID, f"its hook implementations are wrong: {error}.", _hook_cure()) from error
    except _FAILURES as error:
        raise _broken("registering it", error, info) from error
    if not any(caller.name == "slotwise_component" for caller in manager.get_hookcallers(plugin) or ()):
        raise RecordFault(PluginStatus.INVALID, f"{info.value} has no implementation of the hook slotwise_component.", _hook_cure())
    others = [other for other in manager.get_plugins() if other is not plugin]
    try:
        return manager.subset_hook_caller("slotwise_component", others)()
    except _FAILURES as error:
        raise _broken("its hook slotwise_component", error, info) from error


def _broken(what: str, error: BaseException, info: EntryPointInfo) -> RecordFault:
    return RecordFault(PluginStatus.BROKEN, f"{what} raised {type(error).__name__}: {error}.", _cure(error, info))


def _cure(error: BaseException, info: EntryPointInfo) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != info.value.partition(".")[0]:
        return f'install the distribution that provides the module "{error.name}", or block it: plugins.block = ["{info.key}"].'
    return f'reinstall or upgrade {info.distribution}, or block it: plugins.block = ["{info.key}"].'


def _hook_cure() -> str:
    return "mark a module-level function or a static method slotwise_component() with slotwise.plugin.hookspecs.hookimpl."
