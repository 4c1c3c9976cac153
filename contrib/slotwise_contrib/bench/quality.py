"""What storing weights in fewer bits costs in quality: perplexity on a text, and how far the distributions are from those of the first arm.

What this file does not know: how results are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from slotwise.interfaces.model import ForwardBatch, ModelOutput
from slotwise.sampling_params import SamplingParams

if TYPE_CHECKING:
    from slotwise.engine.llm import LLM


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """Of one arm."""

    arm: str
    perplexity: float
    """exp of the mean negative log-likelihood per token."""
    kl: float
    """Mean over positions of KL(first arm || this arm), in nats. Source: Kullback and Leibler, 1951."""
    top_1_agreement: float
    """Share of positions whose most likely id is the first arm's."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_quality(
    arms: Mapping[str, Callable[[], LLM]], text: str, *, num_windows: int, window: int, advance: Callable[[], None]
) -> list[Quality]:
    """Each window of the text is computed alone. Raises ValueError for a text without a whole window."""
    truth: list[torch.Tensor] = []
    found = []
    for name, make in arms.items():
        llm = make()
        tokenizer = llm.get_tokenizer()
        if tokenizer is None:
            raise ValueError("the model has no tokenizer, so a text is nothing to it")
        ids = tokenizer.encode(text)
        windows = [ids[start : start + window] for start in range(0, len(ids) - window + 1, window)][:num_windows]
        if not windows:
            raise ValueError(f"the text has {len(ids)} tokens, fewer than one window of {window}")
        logprobs = [_logprobs(llm, each) for each in windows]
        truth = truth or logprobs
        found.append(_compared(name, logprobs, truth, windows))
        llm.shutdown()
        advance()
    return found


def _logprobs(llm: LLM, ids: list[int]) -> torch.Tensor:
    """[len(ids) - 1, vocab_size] float32: what the model says at each position of what comes next."""
    model = llm.engine.core.executor.model  # type: ignore[attr-defined]
    forward, rows = model.forward, []

    def noting(batch: ForwardBatch) -> ModelOutput:
        output: ModelOutput = forward(batch)
        rows.append(output.logits[1:].float().log_softmax(dim=-1))  # the first row is the last position's
        return output

    model.forward = noting
    try:
        llm.generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=0, temperature=0.0), use_tqdm=False)
    finally:
        model.forward = forward
    return torch.cat(rows)


def _compared(arm: str, logprobs: list[torch.Tensor], truth: list[torch.Tensor], windows: list[list[int]]) -> Quality:
    mine, theirs = torch.cat(logprobs), torch.cat(truth)
    targets = torch.tensor([token_id for ids in windows for token_id in ids[1:]])
    return Quality(
        arm=arm,
        perplexity=math.exp(-mine.gather(1, targets.unsqueeze(1)).double().mean().item()),
        kl=(theirs.exp() * (theirs - mine)).sum(dim=1).double().mean().item(),
        top_1_agreement=(mine.argmax(1) == theirs.argmax(1)).double().mean().item(),
    )
