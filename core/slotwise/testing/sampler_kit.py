"""`SamplerKit`: how the cases of the `sampler` slot get samplers, and ask them.

What this file does not know: any rule.
"""

from __future__ import annotations

from collections.abc import Sequence
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
)
from slotwise.testing.device_choice import DeviceKit
from slotwise.testing.sampler_arguments import Drafts
from slotwise.testing.sampler_truth import Rules
from slotwise.testing.verdicts import NotClaimedError, require

VOCAB_SIZE: Final = 33
MAX_ROWS: Final = 4096
MAX_VALUES: Final = 2**21
"""Logits per call of `draws`: a step of a large vocabulary stays small."""
GREEDY: Final = Rules(temperature=0.0)


class SamplerKit(DeviceKit):
    """Base of the classes that hold cases."""

    slot: ClassVar[str] = "sampler"

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
                device=self.device_name,
                logprobs_mode=logprobs_mode or self.capabilities.logprobs_modes[0],
                seed=self.seed if seed is None else seed,
                options=options,
            )
        )
        return sampler

    def random_logits(self, num_rows: int, vocab_size: int = VOCAB_SIZE, *, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
        """[num_rows, vocab_size] float32 on the CPU."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        return torch.randn(num_rows, vocab_size, generator=generator) * spread

    def metadata(self, rules: Sequence[Rules], vocab_size: int, *, num_logprobs: int | None = None) -> SamplingMetadata:
        """As the engine makes it: what is off for every row is None, and a sampler that does not claim seeds gets none."""
        device = self.device_name

        def column(values: Sequence[float], off: float, dtype: torch.dtype) -> torch.Tensor | None:
            return None if all(value == off for value in values) else torch.tensor(values, dtype=dtype, device=device)

        temperatures = [each.temperature for each in rules]
        has_seeds = self.capabilities.per_request_seeds
        is_greedy = [temperature < GREEDY_EPS for temperature in temperatures]
        return SamplingMetadata(
            num_rows=len(rules),
            all_greedy=all(is_greedy),
            all_random=not any(is_greedy),
            temperature=None if all(is_greedy) else torch.tensor(temperatures, dtype=torch.float32, device=device),
            top_k=column([each.top_k or vocab_size for each in rules], vocab_size, torch.int32),
            top_p=column([each.top_p for each in rules], 1.0, torch.float32),
            min_p=column([each.min_p for each in rules], 0.0, torch.float32),
            seeds={row: each.seed for row, each in enumerate(rules) if each.seed is not None and has_seeds},
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
                logits=logits.clone().to(self.device_name).contiguous(),
                metadata=self.metadata(each, logits.shape[1], num_logprobs=num_logprobs),
                positions=[7] * len(logits) if positions is None else list(positions),
                edits=edits,
                spec_decode=None if drafts is None else drafts.rows(self.device_name),
            )
        )

    def ids(self, sampler: Sampler, logits: torch.Tensor, rules: Rules | Sequence[Rules], **more: Any) -> list[int]:
        """One id per row."""
        ids: list[int] = self.sample(sampler, logits, rules, **more).token_ids[:, 0].tolist()
        return ids

    def draws(self, logits: torch.Tensor, rules: Rules, num_draws: int = 20_000, **more: Any) -> np.ndarray[Any, Any]:
        """Ids for one row of logits, [vocab_size], many times over, each row without a seed."""
        sampler = self.make_sampler(len(logits))
        num_rows = max(1, min(MAX_ROWS, MAX_VALUES // len(logits)))
        found: list[int] = []
        while len(found) < num_draws:
            found += self.ids(sampler, logits.expand(num_rows, -1), rules, **more)
        return np.array(found)


def require_tensor(found: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: str, what: str) -> None:
    """Raises ConformanceError for another shape, dtype or device type."""
    require(tuple(found.shape) == shape, f"{what} is {list(found.shape)}, not {list(shape)}")
    require(found.dtype == dtype, f"{what} is {found.dtype}, not {dtype}")
    require(found.device.type == torch.device(device).type, f"{what} is on {found.device}, not on {device}")
