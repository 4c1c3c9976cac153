"""The error tree. Every message says what was asked, what is possible and what to do.

One class per kind of fault, so that callers (the server, the CLI, a test) decide by class, never by text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.plugin.resolution import Resolution
    from slotwise.sanitizer.faults import KVFault


class SlotwiseError(Exception):
    """Base of everything Slotwise raises on purpose."""


class InvalidRequestError(SlotwiseError, ValueError):
    """A request that can never be served as asked; only that request is refused.

    `param` names the offending field (`"prompt"`, `"temperature"`, ...) for an HTTP error body.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(InvalidRequestError):
    """The prompt does not fit the model's context or the KV cache."""


class QueueFullError(SlotwiseError):
    """The engine accepts no more waiting requests now; trying again later may succeed."""


class ConfigError(SlotwiseError, ValueError):
    """A configuration file, variable or flag that cannot be used; `key` is its dotted path."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class PluginError(SlotwiseError):
    """Base of everything that concerns components and their distributions."""


class ComponentNotFoundError(PluginError, LookupError):
    """No installed distribution registers that name in that slot."""


class ComponentConflictError(PluginError):
    """Two distributions register the same name in one slot."""


class ComponentUnavailableError(PluginError):
    """The component exists but cannot be used here: blocked, broken, invalid or lacking a distribution."""


class ContractError(PluginError):
    """The component was written for another contract version, or its class does not fulfil the contract."""


class ResolutionError(PluginError):
    """No candidate of a slot fits the model, the machine and the configuration.

    `resolution` is the trace of the attempt (`slotwise.plugin.resolution.Resolution`), nothing chosen; `decided` are those of the
    slots that were filled before.
    """

    def __init__(self, message: str, *, resolution: Resolution | None = None) -> None:
        super().__init__(message)
        self.resolution = resolution
        self.decided: tuple[Resolution, ...] = ()


class ModelLoadError(SlotwiseError):
    """The model could not be found, understood or built."""


class ModelNotFoundError(ModelLoadError, LookupError):
    """No directory, file or known model of that name."""


class WeightsError(ModelLoadError):
    """A weight file is missing, truncated, broken or does not match the model."""


class KVSanitizerError(SlotwiseError):
    """The KV sanitizer (`kv_cache.sanitize`) caught a read or write of the KV cache that the contract forbids.

    `fault` is a `slotwise.sanitizer.faults.KVFault`; the others say where, as far as it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        fault: KVFault,
        layer: str | None = None,
        request_id: str | None = None,
        block_id: int | None = None,
        slot: int | None = None,
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.layer = layer
        self.request_id = request_id
        self.block_id = block_id
        self.slot = slot


class EngineDeadError(SlotwiseError):
    """The engine loop ended with an error; requests in flight are lost and the engine must be made anew."""
