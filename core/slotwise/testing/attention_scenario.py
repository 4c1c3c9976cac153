"""`Scenario`: an attention layer and a batch, in words; what a case of the `attention` kit varies.

Left open (None): what the kit chooses from the backend's claims. What this file does not know: tensors, backends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from slotwise.interfaces.attention import CHUNKED_LOCAL, CROSS, DECODER, ENCODER, ENCODER_ONLY, FULL, SLIDING_WINDOW

MIXED: Final[dict[str, Any]] = {"query_lens": (1, 5, 1, 3, 1, 7), "seq_lens": (9, 5, 17, 12, 1, 16)}
"""Decodes, a whole prompt, and chunks of prompts with context, ragged."""
DECODES: Final[dict[str, Any]] = {"query_lens": (1, 1, 1, 1), "seq_lens": (1, 7, 24, 16)}
PROMPTS: Final[dict[str, Any]] = {"query_lens": (6, 1, 17), "seq_lens": (6, 1, 17)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One step of one layer."""

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    dtype: str | None = None
    kv_dtype: str = "auto"
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int | None = None
    block_size: int | None = None
    layout: str | None = None
    scale: float | None = None
    """None = 1 / sqrt(head_dim)."""
    sliding_window: int | None = None
    chunk_len: int | None = None
    logits_soft_cap: float | None = None
    has_sinks: bool = False
    has_alibi: bool = False
    attention_type: str = DECODER
    is_layer_causal: bool = True
    latent_value_dim: int | None = None
    """Makes it an MLA layer; num_kv_heads is then 1."""
    causal: bool | tuple[bool, ...] = True
    mask: str | None = None
    """Custom mask: `tree`, `prefix`, `random` or `nothing` (hides all)."""
    encoder_seq_lens: tuple[int, ...] | None = None
    common_prefix_len: int = 0
    """All rows begin with this many equal tokens, in the same blocks."""
    num_ranks: int = 1
    rank: int = 0
    k_scale: float = 1.0
    v_scale: float = 1.0
    magnitude: float = 1.0
    """Of queries and keys."""
    poison: float = math.nan
    """What unwritten slots hold."""
    num_padding_tokens: int = 0
    wants_lse: bool = False
    batch_invariant: bool = False
    seed: int = 0

    @property
    def kind(self) -> str:
        """Of `LAYER_KINDS`."""
        if self.chunk_len is not None:
            return CHUNKED_LOCAL
        return FULL if self.sliding_window is None else SLIDING_WINDOW

    @property
    def is_encoder(self) -> bool:
        """Keys are this step's tokens."""
        return self.attention_type in (ENCODER, ENCODER_ONLY)

    @property
    def key_lens(self) -> tuple[int, ...]:
        """Key positions of each row."""
        if self.attention_type == CROSS:
            assert self.encoder_seq_lens is not None  # a cross scenario says them
            return self.encoder_seq_lens
        return self.seq_lens

    @property
    def features(self) -> frozenset[str]:
        """What it needs of a backend, in the words of `AttentionCapabilities.not_together`."""
        needed = {
            self.kind: True,
            self.attention_type: True,
            self.kv_dtype: True,
            "logits_soft_cap": self.logits_soft_cap is not None,
            "sinks": self.has_sinks,
            "alibi": self.has_alibi,
            "mla": self.latent_value_dim is not None,
            "non_causal": self.causal is not True or not self.is_layer_causal,
            "custom_mask": self.mask is not None,
            "cascade": self.common_prefix_len > 0,
            "context_parallel": self.num_ranks > 1,
            "lse": self.wants_lse,
            "batch_invariant": self.batch_invariant,
        }
        return frozenset(name for name, is_needed in needed.items() if is_needed)

    def __str__(self) -> str:
        """The fields that are not as usual."""
        usual = Scenario(query_lens=(), seq_lens=())
        changed = {name: getattr(self, name) for name in self.__dataclass_fields__ if getattr(self, name) != getattr(usual, name)}
        return ", ".join(f"{name}={value}" for name, value in changed.items())
