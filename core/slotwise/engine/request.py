"""One request inside the engine core: its tokens, its counters, its status.

What this file does not know: text, blocks, batches.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

from slotwise.engine.outputs import FinishReason
from slotwise.interfaces.kv_cache import ExtraKey
from slotwise.pooling_params import Pooling, PoolingParams
from slotwise.sampling_params import SamplingParams


class RequestStatus(enum.IntEnum):
    """In this order; everything after PREEMPTED is finished."""

    WAITING = 0
    WAITING_FOR_GRAMMAR = 1
    WAITING_FOR_REMOTE_KVS = 2
    WAITING_FOR_STREAMING_REQ = 3
    RUNNING = 4
    PREEMPTED = 5
    FINISHED_STOPPED = 6
    FINISHED_LENGTH_CAPPED = 7
    FINISHED_ABORTED = 8
    FINISHED_IGNORED = 9
    FINISHED_ERROR = 10
    FINISHED_REPETITION = 11

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED

    @property
    def is_blocked(self) -> bool:
        """Waits for something besides its turn; the scheduler sets it aside, so that it holds up nobody."""
        return RequestStatus.WAITING < self < RequestStatus.RUNNING


FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_IGNORED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
    RequestStatus.FINISHED_REPETITION: FinishReason.STOP,
}


class Request:
    """A request as scheduler, policies and KV manager see it; only the scheduler changes it."""

    __slots__ = (
        "all_token_ids",
        "arrival_index",
        "arrival_time",
        "bad_words_token_ids",
        "client_id",
        "eos_token_ids",
        "extra_keys",
        "is_session",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_stale_outputs",
        "pending_inputs",
        "pooling",
        "priority",
        "request_id",
        "sampling_params",
        "skip_reading_prefix_cache",
        "spec_token_ids",
        "status",
        "stop_reason",
    )

    def __init__(
        self,
        *,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        eos_token_ids: frozenset[int] = frozenset(),
        arrival_time: float = 0.0,
        arrival_index: int = 0,
        priority: int = 0,
        client_id: str | None = None,
        extra_keys: Sequence[ExtraKey] = (),
        bad_words_token_ids: Sequence[list[int]] = (),
        pooling: PoolingParams | None = None,
        is_session: bool = False,
        status: RequestStatus = RequestStatus.WAITING,
    ) -> None:
        """status: WAITING, or what it must wait for before its turn comes."""
        self.request_id = request_id
        self.all_token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.sampling_params = sampling_params
        self.max_tokens = sampling_params.max_tokens or 0
        """Resolved by the front end. 0: the prompt is all that is wanted, as logprobs or as a vector."""
        self.eos_token_ids = eos_token_ids if sampling_params.heeds_eos else frozenset()
        self.arrival_time = arrival_time
        self.arrival_index = arrival_index
        self.priority = priority
        self.client_id = client_id
        self.bad_words_token_ids = list(bad_words_token_ids)
        self.extra_keys: Sequence[ExtraKey] = extra_keys
        self.pooling = pooling
        self.skip_reading_prefix_cache = sampling_params.prompt_logprobs is not None or (
            pooling is not None and pooling.pooling is not Pooling.LAST
        )
        self.status = status
        self.stop_reason: int | str | None = None
        self.num_computed_tokens = 0
        self.num_cached_tokens = -1
        """Prefix-cache hit of the first admission; -1 before."""
        self.is_session = is_session
        """Takes more input after each turn (a turn ends where a plain request would), until its input ends."""
        self.pending_inputs: deque[list[int] | None] = deque()
        """Of a session: token ids that begin the next turns; None = no more input."""
        self.num_stale_outputs = 0
        """Steps in flight whose token belongs to a turn that is over."""
        self.num_output_placeholders = 0
        """Tokens that steps in flight will add; not yet in `all_token_ids`."""
        self.num_preemptions = 0
        self.spec_token_ids: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_tokens_with_spec(self) -> int:
        """Known tokens, those in flight, and drafts."""
        return len(self.all_token_ids) + self.num_output_placeholders + len(self.spec_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end the output: EOS, unless ignored, and the caller's."""
        return self.eos_token_ids | frozenset(self.sampling_params.stop_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return self.status.is_finished

    @property
    def finish_reason(self) -> FinishReason | None:
        return FINISH_REASONS.get(self.status)
