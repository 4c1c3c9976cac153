"""Version of each slot's contract, and what changed with each version.

A component states the range it was written for (`Component.api = ">=1.0,<2"`). A minor version adds fields with defaults or
optional methods; a major version may remove or change them, and ships one shim for the major before it.
"""

from __future__ import annotations

from typing import Final

CONTRACT_VERSIONS: Final[dict[str, str]] = {
    "attention": "1.1",
    "scheduler": "1.0",
    "kv_cache": "1.0",
    "eviction": "1.0",
    "sampler": "2.0",
    "logits_processor": "1.0",
    "grammar": "1.0",
    "proposer": "1.0",
    "model": "1.4",
    "linear": "1.1",
    "weights": "1.1",
    "observer": "1.1",
}
"""Slot -> `major.minor` of the contract this core speaks. The keys are the slots of this version."""

CONTRACT_CHANGES: Final[dict[str, dict[str, str]]] = {
    **{slot: {"1.0": "first version"} for slot in CONTRACT_VERSIONS},
    "attention": {
        "1.0": "first version",
        "1.1": "adds MLA layers (latent_value_dim), encoder and cross attention, context-parallel rank and size, batch_invariant in the "
        "setup, combinations a backend refuses (not_together)",
    },
    "sampler": {
        "1.0": "first version",
        "2.0": "penalties, masks, bad words, min_tokens and biases left SamplingMetadata for the logits_processor slot "
        "(SampleRequest.edits); "
        "rows with a seed draw by seed and position (SamplingMetadata.seeds, SampleRequest.positions) instead of torch generators",
    },
    "model": {
        "1.0": "first version",
        "1.1": "AttentionContext.attend takes alibi_slopes; the setup has max_model_len",
        "1.2": "ForwardBatch.wants_hidden_states; Model.embed_tokens and Model.compute_logits, for proposers",
        "1.3": "ModelSetup.linear, for components that claim uses_linear",
        "1.4": "ModelCapabilities.takes_blocks, for components whose load understands BlockRows",
    },
    "linear": {"1.0": "first version", "1.1": "BlockRows, block_schemes and pack_blocks: matrices as files store them"},
    "weights": {"1.0": "first version", "1.1": "WeightsSetup.block_schemes; tensors may give BlockRows of these"},
    "observer": {"1.0": "first version", "1.1": "StepEvent has the drafts of a step, verified and accepted"},
}
"""Slot -> version -> one line on what changed; quoted when a component's range does not include `CONTRACT_VERSIONS`."""
