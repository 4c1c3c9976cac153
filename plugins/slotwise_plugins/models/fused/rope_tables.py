"""Cosines and sines of every position, from the rotary module of the transformers library: every kind of scaling is the library's."""

from __future__ import annotations

from typing import Any

import torch

from slotwise_plugins.native.row_ops import RopeTable


def rope_table(model: Any, name: str, num_positions: int) -> RopeTable:
    """model: a causal LM on the meta device. name: of `DecoderSpec.ropes`."""
    meta = model.get_decoder().rotary_emb
    with torch.device("cpu"):
        rotary = type(meta)(meta.config)
    positions = torch.arange(num_positions)[None]
    cos, sin = rotary(torch.empty(0, dtype=torch.float32), positions, *([name] if name else []))
    half = cos.shape[-1] // 2
    return RopeTable(cos=cos[0, :, :half].contiguous(), sin=sin[0, :, :half].contiguous())


def no_rotation() -> RopeTable:
    """For layers that do not rotate."""
    return RopeTable(cos=torch.empty(0, 0), sin=torch.empty(0, 0))
