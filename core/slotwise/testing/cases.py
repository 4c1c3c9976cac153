"""Running the cases of a kit one by one, outside pytest.

What this file does not know: what a case does, how results are shown.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Final

from slotwise.errors import ComponentNotFoundError
from slotwise.plugin.suggestions import did_you_mean
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.verdicts import NotClaimedError

KITS: Final[dict[str, str]] = {
    "attention": "slotwise.testing.attention:AttentionConformance",
    "kv_cache": "slotwise.testing.kv_cache:KVCacheManagerConformance",
    "logits_processor": "slotwise.testing.logits_processor:LogitsProcessorConformance",
    "sampler": "slotwise.testing.sampler:SamplerConformance",
    "scheduler": "slotwise.testing.scheduler:SchedulerPolicyConformance",
}
"""Slot -> the class that holds its cases."""
PREFIX: Final = "test_"


class Outcome(enum.Enum):
    """What a case found."""

    PASSED = "pass"
    FAILED = "fail"
    NOT_CLAIMED = "not claimed"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """One case and what it found."""

    name: str
    summary: str
    """What is examined, one line."""
    outcome: Outcome
    message: str = ""
    """The rule that was broken, or why nothing is claimed."""
    steps: tuple[str, ...] = ()
    """The run that led to a failure, where it was a random one."""
    measurements: Mapping[str, float] = field(default_factory=dict)
    """What the kit measured beside passing or failing, by name."""

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "case": self.name,
            "summary": self.summary,
            "outcome": self.outcome.value,
            "message": self.message,
            "steps": list(self.steps),
            **({"measurements": dict(self.measurements)} if self.measurements else {}),
        }


def kit_for(slot: str, component: str | type[Any], **attributes: Any) -> type[ComponentConformance]:
    """The slot's kit, aimed at one component. Raises ComponentNotFoundError for a slot that has none."""
    if slot not in KITS:
        raise ComponentNotFoundError(
            f'There is no conformance kit for the slot "{slot}".{did_you_mean(slot, KITS)} Slots that have one: {", ".join(KITS)}.'
        )
    module, _, name = KITS[slot].partition(":")
    base = getattr(import_module(module), name)
    kit: type[ComponentConformance] = type(f"{name}Of", (base,), {"component": component, **attributes})
    return kit


def case_names(kit: type[ComponentConformance]) -> tuple[str, ...]:
    """Names of the cases, without prefix, in the order they are defined."""
    names = [name for owner in reversed(kit.__mro__) for name in vars(owner) if name.startswith(PREFIX)]
    return tuple(name.removeprefix(PREFIX) for name in dict.fromkeys(names))


def run_case(kit: type[ComponentConformance], name: str) -> CaseResult:
    """Run one case. What the component raises is a failure of the case, not of the run."""
    examiner = kit()
    method: Callable[[], None] = getattr(examiner, PREFIX + name)
    summary = (method.__doc__ or name).strip().splitlines()[0]
    try:
        method()
    except NotClaimedError as reason:
        return CaseResult(name=name, summary=summary, outcome=Outcome.NOT_CLAIMED, message=str(reason))
    except Exception as error:
        found = CaseResult(name=name, summary=summary, outcome=Outcome.FAILED, message=_message(error), steps=_steps(error))
        return replace(found, measurements=examiner.measurements)
    return CaseResult(name=name, summary=summary, outcome=Outcome.PASSED, measurements=examiner.measurements)


def run_cases(kit: type[ComponentConformance], names: Sequence[str] | None = None) -> Iterator[CaseResult]:
    """The results, each as soon as it is there."""
    for name in case_names(kit) if names is None else names:
        yield run_case(kit, name)


def _message(error: BaseException) -> str:
    text = str(error) or "no message"
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"


def _steps(error: BaseException) -> tuple[str, ...]:
    return tuple(line for note in getattr(error, "__notes__", ()) for line in note.splitlines())
