"""Where a plan differs from what its configuration would lead one to expect; `slotwise explain --strict` fails over each.

Written against the configuration and the trace, not against the code that chose, so that it holds the choice to account.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from slotwise.config.engine_config import AttentionConfig
from slotwise.engine.attention_report import layer_span
from slotwise.interfaces.attention import PHASES, PREFILL
from slotwise.plugin.resolution import Candidate, Resolution

AUTO = "auto"


class LayerChoice(NamedTuple):
    """Which backend serves one layer in each phase."""

    name: str
    kind: str
    prefill: str
    decode: str
    prefill_by: str = "attention"
    decode_by: str = "attention"
    """Which resolution decided (`Resolution.where`)."""


class Deviation(NamedTuple):
    """Layers that are served by another component than expected."""

    layers: tuple[str, ...]
    phase: str
    served_by: str
    expected: str
    reason: str

    def __str__(self) -> str:
        return f"{layer_span(self.layers)}, {self.phase}: served by {self.served_by} instead of {self.expected}: {self.reason}"


def find_deviations(config: AttentionConfig, layers: Sequence[LayerChoice], resolutions: Sequence[Resolution]) -> tuple[Deviation, ...]:
    """A layer deviates where another component serves it than the one named for it, or where `auto` would have taken another one, had
    that one not been refused or lacked a requirement. One deviation per run of layers that are served alike."""
    traces = {resolution.where: resolution for resolution in resolutions if resolution.slot == "attention"}
    found = []
    for phase in PHASES:
        is_prefill = phase == PREFILL
        served = [(layer.kind, *((layer.prefill, layer.prefill_by) if is_prefill else (layer.decode, layer.decode_by))) for layer in layers]
        for (kind, served_by, decided_by), run in groupby(range(len(layers)), key=served.__getitem__):
            names = tuple(layers[index].name for index in run)
            for expected, reason in _expected(config, kind, phase, served_by, traces.get(decided_by)):
                found.append(Deviation(names, phase, served_by, expected, reason))
    return tuple(found)


def _expected(config: AttentionConfig, kind: str, phase: str, served_by: str, trace: Resolution | None) -> Iterator[tuple[str, str]]:
    """Components that were to serve such a layer instead, each with what kept it from doing so."""
    named = _named_for(config, kind, phase)
    if named not in (AUTO, served_by):
        yield named, "it is named in the configuration"
    elif named == AUTO and trace is not None:
        chosen = trace.chosen_candidate
        rank = None if chosen is None else chosen.preference
        for candidate in trace.candidates:
            if rank is not None and candidate.preference is not None and candidate.preference > rank:
                yield candidate.name, _against(candidate)


def _named_for(config: AttentionConfig, kind: str, phase: str) -> str:
    by_kind = {str(key): choice.use for key, choice in config.per_kind.items()}
    by_phase = {str(key): choice.use for key, choice in config.per_phase.items()}
    return by_kind.get(kind) or by_phase.get(phase) or config.use


def _against(candidate: Candidate) -> str:
    refusals = "; ".join(refusal.describe() for refusal in candidate.refusals)
    return f"preferred on this device ({candidate.preference}), but {refusals or 'not taken'}"
