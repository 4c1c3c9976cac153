"""`SimulatedRequest`: exactly what the contract lets a KV cache manager know of a request, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.kv_cache import ExtraKey


class SimulatedRequest:
    """Fulfils `KVRequest`. Only the simulation changes it."""

    __slots__ = (
        "all_token_ids",
        "extra_keys",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "request_id",
        "skip_reading_prefix_cache",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        *,
        extra_keys: Sequence[ExtraKey] = (),
        skip_reading_prefix_cache: bool = False,
    ) -> None:
        self.request_id = request_id
        self.all_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.extra_keys = tuple(extra_keys)
        self.skip_reading_prefix_cache = skip_reading_prefix_cache

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_missing_tokens(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.all_token_ids) - self.num_computed_tokens

    def __repr__(self) -> str:
        return self.request_id
