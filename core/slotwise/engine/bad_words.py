"""Bad words as the token sequences that spell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenize_bad_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[list[int]]:
    """Each word as it is tokenized at the start of a text and after a blank, however many ids either has; no sequence twice, none empty."""
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        for form in (bare, f" {bare}") if bare else (word,):
            token_ids = tuple(tokenizer.encode(form, add_special_tokens=False))
            if token_ids:
                sequences[token_ids] = None
    return [list(token_ids) for token_ids in sequences]
