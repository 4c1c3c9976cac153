"""The kinds of fault the KV sanitizer tells apart: `KVSanitizerError.fault`."""

from __future__ import annotations

import enum


class KVFault(enum.StrEnum):
    """What was done to the cache that may not be done."""

    READ_PAST_SEQ_LEN = "read_past_seq_len"
    """A slot of the request's own blocks, at a position it has not reached."""
    READ_OUT_OF_WINDOW = "read_out_of_window"
    """A slot of the request's own blocks, before the first position the layer may see."""
    READ_NULL_BLOCK = "read_null_block"
    """The null block, which pads block tables."""
    READ_FREE_BLOCK = "read_free_block"
    """A block that nobody holds."""
    READ_FOREIGN_BLOCK = "read_foreign_block"
    """A block of another request, or of another KV group."""
    STRAY_WRITE = "stray_write"
    """A slot changed that is not in the step's slot mapping."""
    PADDING_WRITE = "padding_write"
    """The slot that index -1 wraps to changed."""
    MISSING_WRITE = "missing_write"
    """A slot of the step's slot mapping still holds nothing."""
    WRONG_VALUE = "wrong_value"
    """A slot of the step's slot mapping holds something else than the token's K and V."""
    CHANGED_OUT_OF_TURN = "changed_out_of_turn"
    """A layer's cache changed while another layer, or none, was being computed."""
    WRONG_TABLE = "wrong_table"
    """The batch's block table, slots or lengths differ from what the KV cache manager gave out."""
    SHARED_BLOCK = "shared_block"
    """The KV cache manager lets a request write what another request, or another group, counts as its own."""
    FALSE_HIT = "false_hit"
    """The KV cache manager counts tokens as computed whose KV was never written."""
    WRONG_COPY = "wrong_copy"
    """A block copy did not bring over what its source held."""
