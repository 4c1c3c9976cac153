"""Logits edits of single tokens: bad words and min_tokens ban, logit_bias shifts. Works on rows that asked for it only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from slotwise.interfaces.sampler import SamplingMetadata
from slotwise.sampling_params import MAX_LOGIT_BIAS


def ban_tokens(logits: torch.Tensor, metadata: SamplingMetadata) -> bool:
    """Sets the ids that bad words and min_tokens ban now to -inf, in place. logits: [num_rows, vocab_size]. Whether there were any."""
    if not metadata.bad_words and not metadata.min_tokens:
        return False
    rows: list[int] = []
    token_ids: list[int] = []
    for row, words in metadata.bad_words.items():
        banned = _words_last_tokens(words, metadata.output_token_ids[row])
        rows.extend([row] * len(banned))
        token_ids.extend(banned)
    for row, (minimum, stop_ids) in metadata.min_tokens.items():
        if len(metadata.output_token_ids[row]) < minimum:
            rows.extend([row] * len(stop_ids))
            token_ids.extend(stop_ids)
    if not rows:
        return False
    logits[torch.tensor(rows, device=logits.device), torch.tensor(token_ids, device=logits.device)] = -torch.inf
    return True


def apply_logit_bias(logits: torch.Tensor, biases: Mapping[int, Mapping[int, float]]) -> bool:
    """Adds each row's biases, clamped to +-100, in place. A banned id stays banned. Whether there were any."""
    rows = [row for row, of_row in biases.items() for _ in of_row]
    if not rows:
        return False
    token_ids = [token_id for of_row in biases.values() for token_id in of_row]
    values = [bias for of_row in biases.values() for bias in of_row.values()]
    bias = torch.tensor(values, dtype=logits.dtype, device=logits.device).clamp_(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    logits[torch.tensor(rows, device=logits.device), torch.tensor(token_ids, device=logits.device)] += bias
    return True


def _words_last_tokens(words: Sequence[Sequence[int]], output_token_ids: Sequence[int]) -> list[int]:
    """The last token of each word whose other tokens are what the output ends with."""
    banned = []
    for word in words:
        num_before = len(word) - 1
        if num_before <= len(output_token_ids) and list(output_token_ids[len(output_token_ids) - num_before :]) == list(word[:-1]):
            banned.append(word[-1])
    return banned
