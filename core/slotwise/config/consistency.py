"""Settings that do not fit together, as far as the settings alone tell. What a model or a machine refuses is found by `engine.plan`."""

from __future__ import annotations

from collections.abc import Iterator

from slotwise.config.engine_config import EngineConfig


def inconsistencies(config: EngineConfig) -> Iterator[tuple[str, str]]:
    """(dotted key to change, what is wrong and what to do) for each fault."""
    scheduler, kv_cache = config.scheduler, config.kv_cache
    if scheduler.max_num_batched_tokens < scheduler.max_num_seqs:
        yield (
            "scheduler.max_num_batched_tokens",
            f"scheduler.max_num_batched_tokens is {scheduler.max_num_batched_tokens} and max_num_seqs is {scheduler.max_num_seqs}: "
            "each running request needs one token per step. Raise the former or lower the latter.",
        )
    if kv_cache.hash_seed is not None and not kv_cache.hash_seed.isprintable():
        yield "kv_cache.hash_seed", "kv_cache.hash_seed must be printable text."
    if kv_cache.num_blocks is not None and kv_cache.memory_mib is not None:
        yield "kv_cache.num_blocks", "kv_cache.num_blocks and kv_cache.memory_mib both size the pool; give one of them."
