"""`EngineCoreRequest`: a request that has passed every check, as the engine core takes it. Plain data, no text processing left to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.interfaces.grammar import GrammarSpec
from slotwise.interfaces.kv_cache import ExtraKey
from slotwise.pooling_params import PoolingParams
from slotwise.sampling_params import SamplingParams


@dataclass(kw_only=True, slots=True)
class EngineCoreRequest:
    """Made by the input processor; the output processor splits one with n > 1 into n with n == 1 before the core sees them."""

    request_id: str
    """Unique in this process."""
    external_id: str
    """The id the caller knows; several requests may share it."""
    prompt: str | None
    """None for a prompt given as ids."""
    prompt_token_ids: list[int]
    """Never empty, all within the model's vocabulary."""
    sampling_params: SamplingParams
    """A copy of the caller's; max_tokens is a number that fits the context and the KV cache."""
    eos_token_ids: frozenset[int] = frozenset()
    bad_words_token_ids: list[list[int]] = field(default_factory=list)
    arrival_time: float = 0.0
    """Seconds, monotonic clock of the engine."""
    priority: int = 0
    """Smaller is more urgent."""
    client_id: str | None = None
    cache_salt: str | None = None
    pooling: PoolingParams | None = None
    """Resolved. The prompt becomes a vector, and nothing is generated: `sampling_params.max_tokens` is 0."""
    grammar: GrammarSpec | None = None
    """Form of the output; the core compiles it before the request may run."""
    is_session: bool = False
    """Takes more input after each turn: `LLMEngine.extend_session`."""

    @property
    def extra_keys(self) -> tuple[ExtraKey, ...]:
        """What the KV cache keys blocks with besides tokens."""
        if self.cache_salt is None:
            return ()
        return (ExtraKey(source="cache_salt", value=self.cache_salt, first_token=0, num_tokens=1),)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end the output: EOS, unless ignored, and the caller's stop ids."""
        params = self.sampling_params
        stop_ids = frozenset(params.stop_token_ids)
        return stop_ids | self.eos_token_ids if params.heeds_eos else stop_ids
