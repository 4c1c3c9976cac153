"""The `proposer` slot: drafts of the next tokens, which the model then verifies all at once.

Wrong drafts cost time, never correctness. A proposer without layers of its own looks at tokens alone (`ngram`); one with attention layers
(a draft model, an EAGLE-style head) has its KV in the same blocks as the model: what is cached for one is cached for the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import ForwardBatch, Model, ProgressCallback

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from pydantic import BaseModel


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposerCapabilities:
    """What a proposer claims."""

    devices: tuple[str, ...] = ("cpu", "cuda")
    """Torch device types it runs on."""
    needs_hidden_states: bool = False
    """Wants `ProposeRequest.hidden_states`; the model must give them."""
    preference: Mapping[str, int] = field(default_factory=dict)
    """Device type -> rank for `use = "auto"`; most have none, since speculation is asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadableModel:
    """A model without parameters, and what fills them."""

    model: Model
    """Knows its layers and its vocabulary already."""
    load: Callable[[ProgressCallback | None], None]
    """Called once. Raises WeightsError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposerSetup:
    """What a proposer is made for."""

    num_drafts: int
    """Most drafts per request and step."""
    max_num_reqs: int
    """Most requests of a step."""
    max_model_len: int
    """Longest sequence in tokens."""
    device: str
    """Torch device of the model."""
    dtype: str
    """Dtype the model computes in."""
    model: Model
    """The model whose tokens are drafted; not loaded yet when the proposer is made."""
    make_model: Callable[[str], LoadableModel]
    """A further model from a source as `model.source` names one, run by the components that the configuration chooses for models and
    weights. Raises ModelLoadError or PluginError."""
    seed: int = 0
    """Seed of whatever the proposer draws itself."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposeRow:
    """One request of the step that was just sampled."""

    token_ids: npt.NDArray[np.int64]
    """[num_tokens] prompt and output, newest last; a view, read only."""
    first_new: int
    """Tokens from here on were not given to `propose` before as they are now: new ones, and those that took the place of refused drafts.
    KV of the proposer's layers before it is in the cache."""
    num_new: int
    """How many of them; they end with the newest token, except in a prompt that goes on in the next step."""
    num_drafts: int
    """Most drafts wanted; 0 where the prompt is not finished, or little is left to generate."""
    temperature: float = 0.0
    """Of the request; 0 = greedy."""
    has_seed: bool = False
    """The request's tokens must not depend on anything but its seed: only drafts that are certain (argmax, copies) keep that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSpan:
    """Consecutive tokens of one row, to be computed by the proposer's own layers."""

    row: int
    """Index into `ProposeRequest.rows`."""
    first_position: int
    """Place of the first token in the row's sequence."""
    token_ids: Sequence[int]
    """At least one."""


class DraftPasses(Protocol):
    """Forward passes of a proposer's own layers, over the KV of the step's requests."""

    def begin(self, spans: Sequence[TokenSpan]) -> ForwardBatch:
        """Make ready for one forward: at most one span per row, in row order; positions below the row's `token_ids` + num_drafts.
        `logits_indices` has the last token of each span. Layer indices of `attention` are the proposer's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposeRequest:
    """Argument of `Proposer.propose`."""

    rows: Sequence[ProposeRow]
    """All requests of the step, those that get no draft included: a proposer with layers must compute their new tokens."""
    passes: DraftPasses
    """For proposers with layers of their own."""
    hidden_states: Sequence[torch.Tensor] | None = None
    """Per row: [num_computed, hidden_size], the model's hidden states of the tokens it computed in this step, from position `first_new` on;
    the newest token, just sampled, has none yet, and refused drafts are cut off. Given if the proposer needs them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafts:
    """Result of `Proposer.propose`."""

    token_ids: Sequence[Sequence[int]]
    """Per row, 0 .. num_drafts ids."""
    probs: Sequence[torch.Tensor | None] | None = None
    """Per row, [its drafts, vocab_size] float32: the distribution each draft was drawn from. None, for a row or for all, = the drafts were
    the only candidates (an argmax, a copy): saying so of a sampled one, or giving a distribution it was not drawn from, would make outputs
    wrong."""


class Proposer(ABC):
    """Base of proposers. Made before weights are read, to learn its layers; `load` follows."""

    capabilities = ProposerCapabilities()
    """Must equal the `Component` record's capabilities."""

    def __init__(self, setup: ProposerSetup) -> None:
        self.setup = setup

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """Facts of its own attention layers, `index` 0, 1, 2, ...; served by the backends that the configuration chooses."""
        return ()

    def load(self, progress: ProgressCallback | None = None) -> None:
        """Fill its parameters; called once, after the model's. Raises WeightsError."""

    @abstractmethod
    def propose(self, request: ProposeRequest) -> Drafts:
        """Called once a step, after sampling, under `torch.inference_mode`."""
