"""What the attention kit's results say of each capability: claimed or not, and proved by which cases.

What this file does not know: how cases run, how a report looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from slotwise.interfaces.attention import FULL, AttentionCapabilities, GraphSupport
from slotwise.testing.cases import CaseResult, Outcome

CASES_OF: Final[dict[str, tuple[str, ...]]] = {
    "dtypes": ("decodes", "prompts", "mixed_batches"),
    "kv_dtypes": ("quantised_kv", "quantised_write_rounds_to_nearest"),
    "head_dims": ("head_dims",),
    "block_sizes": ("block_sizes",),
    "kv_layouts": ("layouts", "write_stores_each_token_in_its_slot"),
    "sliding_window": ("sliding_window", "sliding_window_counts_the_position_itself", "stale_table_entries_are_not_read"),
    "chunked_local": ("chunked_local",),
    "encoder": ("encoders",),
    "cross": ("cross_attention",),
    "logits_soft_cap": ("soft_cap",),
    "alibi": ("alibi",),
    "sinks": ("sinks",),
    "non_causal": ("non_causal",),
    "custom_mask": ("custom_masks", "rows_that_see_nothing"),
    "mla": ("latent_attention",),
    "lse": ("lse", "parts_merge_by_lse"),
    "cascade": ("cascade", "parts_of_a_cascade_join_once"),
    "kv_sharing": ("shared_kv",),
    "fused_kv_write": ("fused_write_stores_each_token_in_its_slot",),
    "context_parallel": ("context_parallelism",),
    "batch_invariant": ("results_do_not_depend_on_the_batch", "chunks_are_bit_equal"),
    "graph_support": ("graphs_replay_later_steps",),
}
"""Capability -> the cases that are about it alone; `features_together` mixes them all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityRow:
    """One capability and what became of it."""

    name: str
    claim: str
    """In words; empty for what is not claimed."""
    outcome: Outcome
    cases: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"capability": self.name, "claim": self.claim, "outcome": self.outcome.value, "cases": list(self.cases)}


def capability_rows(claims: AttentionCapabilities, results: Sequence[CaseResult]) -> tuple[CapabilityRow, ...]:
    """A row per capability of which a case was run."""
    found = {result.name: result for result in results}
    rows = []
    for name, cases in CASES_OF.items():
        seen = [found[case] for case in cases if case in found]
        if seen:
            claim = claim_in_words(claims, name)
            rows.append(CapabilityRow(name=name, claim=claim, outcome=_outcome(seen, is_claimed=bool(claim)), cases=cases))
    return tuple(rows)


def worst_errors(results: Sequence[CaseResult]) -> dict[str, float]:
    """Feature -> largest error in ulps of the dtype over all cases, largest first."""
    worst: dict[str, float] = {}
    for result in results:
        for feature, ulps in result.measurements.items():
            worst[feature] = max(worst.get(feature, 0.0), ulps)
    return dict(sorted(worst.items(), key=lambda item: -item[1]))


def details_of(kit: type[Any], results: Sequence[CaseResult], *, with_timings: bool) -> dict[str, Any]:
    """Tables of the attention report: `capabilities`, `errors_ulps`, `timings`."""
    from slotwise.testing.attention_timing import REFERENCE, time_beside_reference
    from slotwise.testing.cases import kit_for

    timings = time_beside_reference(kit, cast("Any", kit_for("attention", REFERENCE, device=kit().device_name))) if with_timings else ()
    return {
        "capabilities": [row.to_dict() for row in capability_rows(kit().claims, results)],
        "errors_ulps": worst_errors(results),
        "timings": [timing.to_dict() for timing in timings],
    }


def _outcome(results: Sequence[CaseResult], *, is_claimed: bool) -> Outcome:
    outcomes = {result.outcome for result in results}
    if Outcome.FAILED in outcomes:
        return Outcome.FAILED
    return Outcome.PASSED if is_claimed and Outcome.PASSED in outcomes else Outcome.NOT_CLAIMED


def claim_in_words(claims: AttentionCapabilities, name: str) -> str:
    """In words; empty if it is not claimed."""
    special: Mapping[str, str] = {
        "kv_dtypes": ", ".join(dtype for dtype in claims.kv_dtypes if dtype != "auto"),
        "head_dims": _limits(claims.head_dims, claims.head_dim_multiple_of, claims.max_head_dim),
        "block_sizes": _limits(claims.block_sizes, claims.block_size_multiple_of, None),
        "graph_support": "" if claims.graph_support is GraphSupport.NEVER else claims.graph_support.name.lower(),
        "encoder": "yes" if {"encoder", "encoder_only"} & set(claims.attention_types) else "",
        "cross": "yes" if "cross" in claims.attention_types else "",
    }
    if name in special:
        return special[name]
    if name in claims.layer_kinds and name != FULL:
        return "yes"
    value = getattr(claims, name, False)
    return ", ".join(value) if isinstance(value, tuple) else "yes" if value else ""


def _limits(only: tuple[int, ...] | None, multiple_of: int, largest: int | None) -> str:
    if only is not None:
        return ", ".join(map(str, only))
    parts = [f"multiples of {multiple_of}" if multiple_of > 1 else "any"]
    return " ".join([*parts, *([f"up to {largest}"] if largest else [])])
