"""The conformance kit: the cases that every component of a slot must pass, built-in or a stranger's.

    from slotwise.testing import KVCacheManagerConformance

    class TestMyManager(KVCacheManagerConformance):
        component = "my_manager"

Names are loaded on first use: the pytest plug-in of this package is imported by every pytest run and must cost nothing. The kit needs
hypothesis (`pip install "slotwise[testing]"`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotwise.testing.attention import AttentionConformance
    from slotwise.testing.kv_cache import KVCacheManagerConformance
    from slotwise.testing.logits_processor import LogitsProcessorConformance
    from slotwise.testing.sampler import SamplerConformance
    from slotwise.testing.scheduler import SchedulerPolicyConformance
    from slotwise.testing.verdicts import ConformanceError, NotClaimedError

_HOMES = {
    "AttentionConformance": "slotwise.testing.attention",
    "ConformanceError": "slotwise.testing.verdicts",
    "KVCacheManagerConformance": "slotwise.testing.kv_cache",
    "LogitsProcessorConformance": "slotwise.testing.logits_processor",
    "NotClaimedError": "slotwise.testing.verdicts",
    "SamplerConformance": "slotwise.testing.sampler",
    "SchedulerPolicyConformance": "slotwise.testing.scheduler",
}

__all__ = [
    "AttentionConformance",
    "ConformanceError",
    "KVCacheManagerConformance",
    "LogitsProcessorConformance",
    "NotClaimedError",
    "SamplerConformance",
    "SchedulerPolicyConformance",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'slotwise.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
