"""What serves which attention layer, in one line per backend for the log. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.engine.plan import Chosen, LayerPlan


def layer_span(names: Sequence[str]) -> str:
    """`first .. last (count)`, or the one name."""
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})"


def serving_lines(attention: Mapping[str, Chosen], layers: Sequence[LayerPlan]) -> Iterator[str]:
    """For each backend its distribution, version, class, and the layers it serves, by phase where the phases differ."""
    for name, chosen in attention.items():
        prefill = _spans((layer.name, layer.prefill == name) for layer in layers)
        decode = _spans((layer.name, layer.decode == name) for layer in layers)
        if prefill == decode:
            served = prefill
        else:
            served = "; ".join(f"{phase} of {spans}" for phase, spans in (("prefill", prefill), ("decode", decode)) if spans)
        component, info = chosen.loaded.component, chosen.loaded.info
        yield f"Attention backend {name} ({info.distribution} {info.version}, {component.implementation}) serves {served}"


def _spans(layers: Iterable[tuple[str, bool]]) -> str:
    """The runs of those layers, in the model's order, that are marked True."""
    runs = [[name for name, _ in run] for is_meant, run in groupby(layers, key=lambda layer: layer[1]) if is_meant]
    return ", ".join(layer_span(run) for run in runs)
