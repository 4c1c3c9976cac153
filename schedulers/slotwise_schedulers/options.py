"""Options of the built-in policies, apart from the policies so that their records can be made without importing them.

What this file does not know: what a policy does with them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_SHARE_BUDGET = (
    "A long prompt leaves one token to each request that generates, and equal parts of the rest to other prompts and to who waits."
)


class BudgetOptions(ComponentOptions):
    """How one step's tokens are divided; every policy has these."""

    share_budget: bool = Field(
        True,
        description=_SHARE_BUDGET,
    )
    max_chunk_tokens: int | None = Field(
        None, ge=1, description="Most prompt tokens of one request in a step while others run or wait; unset = no limit."
    )


class FcfsOptions(BudgetOptions):
    """`[scheduler.options]` of `fcfs`."""

    share_budget: bool = Field(
        False,
        description=_SHARE_BUDGET,
    )


class PriorityOptions(BudgetOptions):
    """`[scheduler.options]` of `priority`."""

    aging_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="A request gains one level of urgency per so many seconds since its arrival; unset = it never does.",
    )
    displace: bool = Field(
        False, description="A waiting request that finds no seat or no blocks preempts running ones with a larger priority number."
    )


class ShortestFirstOptions(BudgetOptions):
    """`[scheduler.options]` of `shortest_first`."""

    output_weight: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Weight of a token that may still be generated (`max_tokens`) against one to be computed.",
    )
    aging_tokens_per_second: float | None = Field(
        100.0,
        gt=0,
        allow_inf_nan=False,
        description="Work forgiven per second since arrival, in tokens; unset = none, and long requests may starve.",
    )


class LongestPrefixOptions(BudgetOptions):
    """`[scheduler.options]` of `longest_prefix`."""

    window: int = Field(16, ge=1, description="How many of the longest-waiting requests are compared by their cached tokens.")
    max_passes: int = Field(8, ge=0, description="How many requests may start before the one that arrived first; then it is its turn.")
    max_wait_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Who arrived first and longer ago than this goes first; unset = only `max_passes` counts.",
    )


class FairOptions(BudgetOptions):
    """`[scheduler.options]` of `fair`."""

    input_weight: float = Field(1.0, gt=0, allow_inf_nan=False, description="Charge for a prompt token.")
    output_weight: float = Field(2.0, gt=0, allow_inf_nan=False, description="Charge for a generated token.")
    client_weights: dict[str, PositiveFloat] = Field(
        default_factory=dict,
        description="Client -> its share against others; 1 for those not named. Twice the weight is served twice the tokens.",
    )


class DeadlineOptions(BudgetOptions):
    """`[scheduler.options]` of `deadline`."""

    ttft_ms: float = Field(1000.0, gt=0, allow_inf_nan=False, description="Target from arrival to the first token.")
    itl_ms: float = Field(100.0, gt=0, allow_inf_nan=False, description="Target between two tokens.")
    ttft_ms_by_priority: dict[int, PositiveFloat] = Field(
        default_factory=dict, description="`ttft_ms` of requests of that priority, for those not named `ttft_ms`."
    )
    itl_ms_by_priority: dict[int, PositiveFloat] = Field(
        default_factory=dict, description="`itl_ms` of requests of that priority, for those not named `itl_ms`."
    )
