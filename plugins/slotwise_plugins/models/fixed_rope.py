"""One rotation for the whole life of an engine, where a rope type would change it with the longest sequence of the batch.

Keys are cached after rotation, and requests share a batch: a rotation that changes in mid-run would mix with older keys, and one request
would change another's. So the engine's limit, which never changes, stands in for the length of the sequence:

- `longrope`: the long factors if sequences may get longer than `original_max_position_embeddings`, else the short ones. With a long limit,
  short sequences are rotated by the long factors too; lower `model.max_model_len` for the others.
- `dynamic`: the base is stretched only beyond `max_position_embeddings`, which no sequence gets here; what is left is the plain rotation.

What this file does not know: how angles are computed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)


def fix_rope(config: Any, max_model_len: int | None) -> None:
    """Make the rope tables of a text config independent of the batch, in place. max_model_len: the engine's limit; None = the model's."""
    for table in rope_tables(config):
        if table.get("rope_type") == "longrope":
            _fix_longrope(table, config.max_position_embeddings if max_model_len is None else max_model_len)
        elif table.get("rope_type") == "dynamic":
            table["rope_type"] = "default"


def rope_tables(config: Any) -> Iterator[dict[str, Any]]:
    """The rope parameters of a text config: one table, or one for each layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    yield from (table for table in (parameters, *parameters.values()) if isinstance(table, dict) and "rope_type" in table)


def _fix_longrope(table: dict[str, Any], limit: int) -> None:
    """Both sets of factors become the one that is meant, so that it no longer matters which is taken."""
    original = int(table["original_max_position_embeddings"])
    kept, dropped = ("long_factor", "short_factor") if limit > original else ("short_factor", "long_factor")
    table[dropped] = list(table[kept])
    logger.info(
        "longrope: the %s are used for every sequence, since they may have %d tokens and the model was first trained with %d",
        kept.replace("_factor", " factors"),
        limit,
        original,
    )
