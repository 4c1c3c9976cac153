"""`SamplerKit`: how the cases of the `sampler` slot get samplers, and ask them.

What this file does not know: any rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch

from slotwise.interfaces.sampler import (
    GREEDY_EPS,
    LogitsEdits,
    Sampler,
    SamplerCapabilities,
    SampleRequest,
    SamplerOutput,
    SamplerSetup,
    SamplingMetadata,
    SpecDecodeRows,
)
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.sampler_truth import Rules
from slotwise.testing.verdicts import NotClaimedError

VOCAB_SIZE: Final = 33
MAX_ROWS: Final = 4096
GREEDY: Final = Rules(temperature=0.0)


class Edits(LogitsEdits):
    """Logits processors made up for a case."""

    def __init__(self, before: Callable[[torch.Tensor], None] | None = None, after: Callable[[torch.Tensor], None] | None = None) -> None:
        self._before, self._after = before, after
        self.seen: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
        """Each call: place, dtype, shape."""

    @property
    def edits_after_temperature(self) -> bool:
        return self._after is not None

    def before_argmax(self, logits: torch.Tensor) -> bool:
        return self._apply("before_argmax", self._before, logits)

    def after_temperature(self, scaled: torch.Tensor) -> bool:
        return self._apply("after_temperature", self._after, scaled)

    def _apply(self, place: str, edit: Callable[[torch.Tensor], None] | None, logits: torch.Tensor) -> bool:
        self.seen.append((place, logits.dtype, tuple(logits.shape)))
        if edit is None:
            return False
        edit(logits)
        return True


class SamplerKit(ComponentConformance):
    """Base of the classes that hold cases."""

    slot: ClassVar[str] = "sampler"
    device: ClassVar[str | None] = None
    """Where it runs; None = the first claimed device type that this machine has."""

    @property
    def capabilities(self) -> SamplerCapabilities:
        found: SamplerCapabilities = self.implementation()[0].capabilities
        return found

    def require_claim(self, name: str) -> None:
        """Raises NotClaimedError unless the boolean capability is claimed."""
        if not getattr(self.capabilities, name):
            raise NotClaimedError(f"does not claim {name}")

    def make_sampler(self, vocab_size: int = VOCAB_SIZE, *, seed: int | None = None, logprobs_mode: str | None = None) -> Sampler:
        """A sampler to examine; override it where the class alone would not do."""
        implementation, options = self.implementation()
        sampler: Sampler = implementation(
            SamplerSetup(
                vocab_size=vocab_size,
                max_num_reqs=MAX_ROWS,
                device=self._device(),
                logprobs_mode=logprobs_mode or self.capabilities.logprobs_modes[0],
                seed=self.seed if seed is None else seed,
                options=options,
            )
        )
        return sampler

    def _device(self) -> str:
        if self.device is not None:
            return self.device
        return next((kind for kind in self.capabilities.devices if kind != "cuda" or torch.cuda.is_available()), "cpu")

    def random_logits(self, num_rows: int, vocab_size: int = VOCAB_SIZE, *, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
        """[num_rows, vocab_size] float32 on the CPU."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        return torch.randn(num_rows, vocab_size, generator=generator) * spread

    def metadata(self, rules: Sequence[Rules], vocab_size: int, *, num_logprobs: int | None = None) -> SamplingMetadata:
        """As the engine makes it: what is off for every row is None."""
        device = self._device()

        def column(values: Sequence[float], off: float, dtype: torch.dtype) -> torch.Tensor | None:
            return None if all(value == off for value in values) else torch.tensor(values, dtype=dtype, device=device)

        temperatures = [each.temperature for each in rules]
        is_greedy = [temperature < GREEDY_EPS for temperature in temperatures]
        return SamplingMetadata(
            num_rows=len(rules),
            all_greedy=all(is_greedy),
            all_random=not any(is_greedy),
            temperature=None if all(is_greedy) else torch.tensor(temperatures, dtype=torch.float32, device=device),
            top_k=column([each.top_k or vocab_size for each in rules], vocab_size, torch.int32),
            top_p=column([each.top_p for each in rules], 1.0, torch.float32),
            min_p=column([each.min_p for each in rules], 0.0, torch.float32),
            seeds={row: each.seed for row, each in enumerate(rules) if each.seed is not None},
            num_logprobs=num_logprobs,
        )

    def sample(
        self,
        sampler: Sampler,
        logits: torch.Tensor,
        rules: Rules | Sequence[Rules],
        *,
        positions: Sequence[int] | None = None,
        num_logprobs: int | None = None,
        edits: LogitsEdits | None = None,
        drafts: Drafts | None = None,
    ) -> SamplerOutput:
        """One call; logits are copied. rules: one for all requests, or one each."""
        num_requests = len(logits) if drafts is None else len(drafts.token_ids)
        each = [rules] * num_requests if isinstance(rules, Rules) else list(rules)
        return sampler.sample(
            SampleRequest(
                logits=logits.clone().to(self._device()).contiguous(),
                metadata=self.metadata(each, logits.shape[1], num_logprobs=num_logprobs),
                positions=[7] * len(logits) if positions is None else list(positions),
                edits=edits,
                spec_decode=None if drafts is None else drafts.rows(self._device()),
            )
        )

    def ids(self, sampler: Sampler, logits: torch.Tensor, rules: Rules | Sequence[Rules], **more: Any) -> list[int]:
        """One id per row."""
        ids: list[int] = self.sample(sampler, logits, rules, **more).token_ids[:, 0].tolist()
        return ids

    def draws(self, logits: torch.Tensor, rules: Rules, num_draws: int = 20_000, **more: Any) -> np.ndarray[Any, Any]:
        """Ids for one row of logits, [vocab_size], many times over, each row without a seed."""
        sampler = self.make_sampler(len(logits))
        found: list[int] = []
        while len(found) < num_draws:
            found += self.ids(sampler, logits.expand(MAX_ROWS, -1), rules, **more)
        return np.array(found)


@dataclasses.dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of each request, in the engine's layout."""

    token_ids: Sequence[Sequence[int]]
    probs: Sequence[torch.Tensor] | None = None
    """Per request, [its drafts, vocab_size]; None = all were certain."""

    def first_rows(self) -> list[int]:
        """[num_requests + 1], where each request's rows begin."""
        return [0, *np.cumsum([len(of_one) + 1 for of_one in self.token_ids]).tolist()]

    def rows(self, device: str) -> SpecDecodeRows:
        firsts = self.first_rows()
        counts = [len(of_one) for of_one in self.token_ids]
        targets = [firsts[request] + place for request, count in enumerate(counts) for place in range(count)]
        requests = [request for request, count in enumerate(counts) for _ in range(count + 1)]

        def ids(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return SpecDecodeRows(
            num_draft_tokens=tuple(counts),
            draft_token_ids=ids([token_id for of_one in self.token_ids for token_id in of_one]),
            draft_probs=None if self.probs is None else torch.cat(list(self.probs)).to(device),
            target_indices=ids(targets),
            bonus_indices=ids([first - 1 for first in firsts[1:]]),
            request_of_row=ids(requests),
        )
