"""The `sampler` slot: logits -> token ids and logprobs.

Order of operations, the same for every sampler and for the speculative path:
 1. snapshot for logprobs, if the mode is `raw_*`;
 2. float32;  3. allowed ids;  4. bad words;  5. min_tokens, logit_bias, other processors that can change the argmax;
 6. penalties: repetition over prompt + output, then frequency, then presence over output;
 7. greedy rows: argmax;  8. temperature;  9. min_p;  10. top_k, then top_p over the renormalised rest;
11. random draw;  12. gather logprobs and ranks.
A grammar bitmask, if any, is applied to the logits before step 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

GREEDY_EPS = 1e-5
"""Rows with a temperature below it are greedy."""

LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
"""What logprobs mean: values before (raw) or after (processed) steps 3 to 10, normalised (`logprobs`) or not (`logits`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerCapabilities:
    """What a sampler claims; the resolver refuses what is not claimed."""

    devices: tuple[str, ...] = ("cpu", "cuda")
    """Torch device types it runs on."""
    logprobs_modes: tuple[str, ...] = LOGPROBS_MODES
    """Of `LOGPROBS_MODES`."""
    per_request_seeds: bool = True
    """Honours `SamplingMetadata.generators`."""
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
    """Most rows of a step."""
    device: str
    """Torch device, `cpu`, `cuda:0`, ..."""
    logprobs_mode: str = "raw_logprobs"
    """One of `LOGPROBS_MODES`."""
    seed: int = 0
    """Seed of the generator shared by the rows without one of their own."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


@dataclass(kw_only=True, slots=True)
class SamplingMetadata:
    """Parameters of the rows being sampled; tensors are on the sampler's device. Rebuilt only when the batch changes.

    A field that is None is off for every row, so the common case pays nothing for it.
    """

    num_rows: int
    """Rows of the logits."""
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
    generators: Mapping[int, torch.Generator] = field(default_factory=dict)
    """Row -> generator, for rows with a seed whose sample is kept in this step (a discarded row must draw nothing from its own)."""
    presence_penalties: torch.Tensor | None = None
    """[num_rows] float32, taken once from the logit of each id seen in the output; 0 where off."""
    frequency_penalties: torch.Tensor | None = None
    """[num_rows] float32, taken from the logit once per occurrence in the output; 0 where off."""
    repetition_penalties: torch.Tensor | None = None
    """[num_rows] float32 each; all three are given or none."""
    prompt_token_ids: Sequence[Sequence[int]] = ()
    """Per row; given with penalties only."""
    output_token_ids: Sequence[Sequence[int]] = ()
    """Per row, all tokens generated so far, this step's not included; given when penalties, bad words or min_tokens need it."""
    allowed_token_ids_mask: torch.Tensor | None = None
    """[num_rows, vocab_size] bool, True = forbidden."""
    bad_words: Mapping[int, Sequence[Sequence[int]]] = field(default_factory=dict)
    """Row -> token sequences; the last token of one is banned when the outputs end with the rest of it."""
    min_tokens: Mapping[int, tuple[int, frozenset[int]]] = field(default_factory=dict)
    """Row -> (minimum, ids banned while fewer were generated)."""
    logit_bias: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Row -> id -> number added to its logit."""
    num_logprobs: int | None = None
    """Most logprobs any row wants; None = none, 0 = the sampled token's only, -1 = the whole vocabulary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecDecodeRows:
    """Which rows of the logits verify drafts. Numbers as in the step: scheduled [3,1,6] with drafts [2,0,1] gives
    target [0,1,4], bonus [2,3,5]."""

    num_draft_tokens: tuple[int, ...]
    """Per request."""
    draft_token_ids: torch.Tensor
    """[sum(num_draft_tokens)] int64."""
    draft_probs: torch.Tensor | None
    """[sum(num_draft_tokens), vocab_size] float32; None = drafts without probabilities."""
    target_indices: torch.Tensor
    """[sum(num_draft_tokens)] int64, rows of `logits` that score each draft."""
    bonus_indices: torch.Tensor
    """[num_reqs] int64, rows of `logits` that follow all drafts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRequest:
    """Argument of `Sampler.sample`."""

    logits: torch.Tensor
    """[num_rows, vocab_size], model dtype or float32, contiguous; may be overwritten."""
    metadata: SamplingMetadata
    """Parameters of the rows."""
    spec_decode: SpecDecodeRows | None = None
    """Which rows verify drafts; None = one plain row per request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogprobsTensors:
    """Column 0 is the sampled token, the others the most likely ones in falling order."""

    token_ids: torch.Tensor
    """[num_rows, num_logprobs + 1] int64."""
    logprobs: torch.Tensor
    """[num_rows, num_logprobs + 1] float32; logits in the `*_logits` modes."""
    ranks: torch.Tensor
    """[num_rows] int64: how many ids have at least the sampled id's value, 1 = most likely; ties push down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerOutput:
    """Result of `Sampler.sample`."""

    token_ids: torch.Tensor
    """[num_rows, 1 + most drafts] int64, -1 = nothing. A row of -1 only: its logits were unusable (NaN, +inf, or all -inf); the engine ends
    that request with an error."""
    logprobs: LogprobsTensors | None = None
    """Given when `SamplingMetadata.num_logprobs` is not None."""


class Sampler(ABC):
    """Base of samplers. One instance per model runner, called once a step."""

    capabilities = SamplerCapabilities()
    """Must equal the `Component` record's capabilities."""

    def __init__(self, setup: SamplerSetup) -> None:
        self.setup = setup

    @abstractmethod
    def sample(self, request: SampleRequest) -> SamplerOutput:
        """One token (or the accepted drafts) per row. A row's result must not depend on the other rows, on its place, or on their
        generators."""
