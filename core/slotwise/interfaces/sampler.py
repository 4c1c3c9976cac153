"""The `sampler` slot: logits -> token ids and logprobs.

Order of operations, the same for every sampler, for one row of logits per request as for the rows that verify drafts:
 1. snapshot for logprobs, if the mode is `raw_*`;
 2. float32;  3. the logits processors that may change the argmax (`LogitsEdits.before_argmax`);
 4. greedy rows: argmax;  5. temperature;  6. min_p, and the processors that keep the argmax (`LogitsEdits.after_temperature`);
 7. top_k (ties with the k-th stay), then top_p over the renormalised rest;
 8. random draw, or verification of drafts;  9. gather logprobs and ranks.
A grammar's mask, if any, was applied to the logits before step 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

GREEDY_EPS = 1e-5
"""Rows with a temperature below it are greedy."""

LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
"""What logprobs mean: values before (raw) or after (processed) steps 3 to 7, normalised (`logprobs`) or not (`logits`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerCapabilities:
    """What a sampler claims; the resolver refuses what is not claimed."""

    devices: tuple[str, ...] = ("cpu", "cuda")
    """Torch device types it runs on."""
    logprobs_modes: tuple[str, ...] = LOGPROBS_MODES
    """Of `LOGPROBS_MODES`."""
    per_request_seeds: bool = True
    """Honours `SamplingMetadata.seeds`."""
    speculative: bool = False
    """Accepts `SampleRequest.spec_decode`."""
    preference: Mapping[str, int] = field(default_factory=dict)
    """Device type -> rank for `use = "auto"`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerSetup:
    """What a sampler is made for."""

    vocab_size: int
    """Columns of the logits."""
    max_num_reqs: int
    """Most requests of a step."""
    device: str
    """Torch device, `cpu`, `cuda:0`, ..."""
    logprobs_mode: str = "raw_logprobs"
    """One of `LOGPROBS_MODES`."""
    seed: int = 0
    """Seed of the stream shared by the rows without a seed of their own."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingMetadata:
    """Parameters of the rows; tensors are on the sampler's device. Made anew only when the batch changes.

    A field that is None is off for every row, so the common case pays nothing for it.
    """

    num_rows: int
    """Requests of the step."""
    all_greedy: bool
    """Every row is greedy: an argmax is all that is needed."""
    all_random: bool
    """No row is greedy."""
    temperature: torch.Tensor | None
    """[num_rows] float32; None iff all_greedy."""
    top_k: torch.Tensor | None = None
    """[num_rows] int32; vocab_size where off."""
    top_p: torch.Tensor | None = None
    """[num_rows] float32; 1 where off."""
    min_p: torch.Tensor | None = None
    """[num_rows] float32; 0 where off."""
    seeds: Mapping[int, int] = field(default_factory=dict)
    """Row -> 64-bit seed, for rows that have one."""
    num_logprobs: int | None = None
    """Most logprobs any row wants; None = none, 0 = the sampled token's only, -1 = the whole vocabulary."""

    def select(self, rows: torch.Tensor) -> SamplingMetadata:
        """The parameters of these rows, in this order; one may come several times. rows: [num_selected] int64, on the tensors' device."""

        def take(column: torch.Tensor | None) -> torch.Tensor | None:
            return None if column is None else column[rows]

        seeds = {index: self.seeds[row] for index, row in enumerate(rows.tolist()) if row in self.seeds} if self.seeds else {}
        return replace(
            self,
            num_rows=rows.numel(),
            temperature=take(self.temperature),
            top_k=take(self.top_k),
            top_p=take(self.top_p),
            min_p=take(self.min_p),
            seeds=seeds,
        )


class LogitsEdits(Protocol):
    """The logits processors of the engine, bound to the rows of one step. Both change float32 values in place, and say whether they did."""

    @property
    def edits_after_temperature(self) -> bool:
        """Whether `after_temperature` has anything to do in this step."""

    def before_argmax(self, logits: torch.Tensor) -> bool:
        """Step 3. logits: [num_logits, vocab_size] float32."""

    def after_temperature(self, scaled: torch.Tensor) -> bool:
        """The processors of step 6. scaled: [num_logits, vocab_size] float32, logits / temperature up to a constant of the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecDecodeRows:
    """Which rows of the logits verify drafts: a request with k drafts has k + 1 rows, the last one for the token after all of them.
    Numbers of drafts [2, 0, 1] give target rows [0, 1, 4] and bonus rows [2, 3, 5]."""

    num_draft_tokens: tuple[int, ...]
    """Per request."""
    draft_token_ids: torch.Tensor
    """[sum(num_draft_tokens)] int64."""
    draft_probs: torch.Tensor | None
    """[sum(num_draft_tokens), vocab_size] float32, the distribution each draft was drawn from; a row of zeros = it was the only candidate
    (an argmax, a copy). None = all were."""
    target_indices: torch.Tensor
    """[sum(num_draft_tokens)] int64, rows of `logits` that score each draft."""
    bonus_indices: torch.Tensor
    """[num_reqs] int64, rows of `logits` that follow all drafts."""
    request_of_row: torch.Tensor
    """[num_logits] int64, the request of each row of `logits`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRequest:
    """Argument of `Sampler.sample`."""

    logits: torch.Tensor
    """[num_logits, vocab_size], model dtype or float32, contiguous; may be overwritten. One row per request without `spec_decode`."""
    metadata: SamplingMetadata
    """Parameters of the requests."""
    positions: Sequence[int]
    """[num_logits], the place in its sequence of the token that a row gives, prompt included. A row with a seed draws by seed and position
    alone, so that its tokens do not depend on batch, chunks, preemptions or drafts."""
    edits: LogitsEdits | None = None
    """None = no logits processor has anything to do."""
    spec_decode: SpecDecodeRows | None = None
    """Which rows verify drafts; None = one plain row per request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogprobsTensors:
    """One row per row of the logits. Column 0 is the token, the others are the most likely ones in falling order."""

    token_ids: torch.Tensor
    """[num_logits, num_logprobs + 1] int64."""
    logprobs: torch.Tensor
    """[num_logits, num_logprobs + 1] float32; logits in the `*_logits` modes."""
    ranks: torch.Tensor
    """[num_logits] int64: how many ids have at least the token's value, 1 = most likely; ties push down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerOutput:
    """Result of `Sampler.sample`."""

    token_ids: torch.Tensor
    """[num_reqs, 1 + most drafts] int64: the accepted drafts and one token more, then -1. -1 in column 0: a row of the request's logits
    that was needed is unusable (NaN, +inf, or all -inf); the engine ends that request with an error."""
    logprobs: LogprobsTensors | None = None
    """Given when `SamplingMetadata.num_logprobs` is not None. Row i of a request's rows belongs to its i-th token; rows behind its last
    token mean nothing."""


class Sampler(ABC):
    """Base of samplers. One instance per model runner, called once a step."""

    capabilities = SamplerCapabilities()
    """Must equal the `Component` record's capabilities."""

    def __init__(self, setup: SamplerSetup) -> None:
        self.setup = setup

    @abstractmethod
    def sample(self, request: SampleRequest) -> SamplerOutput:
        """One token, or the accepted drafts and one more, per request. A request's result must not depend on the others, on its place, or
        on their seeds.

        Drafts are verified so that the tokens have the distribution of step 7, as if each had been drawn alone. Greedy: a draft is kept
        while it is the argmax; the first other argmax ends the row. Random, with `draft_probs` q: kept with probability min(1, p / q), else
        one from max(p - q, 0) ends the row; where the draft was the only candidate: kept iff it is the token that the row gives without
        drafts (so with probability p), which else ends the row.
        Source: Leviathan et al., 2023, "Fast inference from transformers via speculative decoding", section 2.3.
        """
