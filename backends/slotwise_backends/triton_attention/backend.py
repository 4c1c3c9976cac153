"""`triton` attention: what the contract asks for, in launches of our own kernels.

One kernel serves prefill and decode. Keys of few long decode rows are split among programs, and a prefix that all rows share is read once
for all of them; both leave parts that a second kernel merges. Under `setup.batch_invariant` nothing is split and every tile has one
shape, so that a row's sums are taken in the same order whatever surrounds it.

What this file does not know: kernels' arguments (`launch`), how a tile finds its row (`step`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from slotwise.errors import ResolutionError
from slotwise.interfaces.attention import DECODER, AttentionBackend, AttentionCall, AttentionLayer, AttentionSetup, KVWrite, MetadataRequest
from slotwise_backends.triton_attention.capabilities import CAPABILITIES, TritonOptions
from slotwise_backends.triton_attention.launch import Pass, launch_attend, launch_merge, launch_write, new_parts
from slotwise_backends.triton_attention.step import CapturedSteps, StepMetadata, make_step, make_tiles
from slotwise_backends.triton_attention.tiling import Tiling, choose_num_splits, choose_tiling, num_head_groups

INTERPRETED_PROCESSORS = 16
"""What the interpreter pretends to have, so that splits are taken there too."""
FIRST_FLOAT8 = (8, 9)
"""Compute capability from which Triton converts float8_e4m3fn."""


class TritonAttention(AttentionBackend):
    """Attention in Triton."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        self.options = setup.options if isinstance(setup.options, TritonOptions) else TritonOptions()
        device = torch.device(setup.device)
        self.num_processors = INTERPRETED_PROCESSORS
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            self.num_processors = properties.multi_processor_count
            _check_float8(setup.kv_dtype, (properties.major, properties.minor))
        self._captured = CapturedSteps(math.ceil(setup.max_model_len / setup.block_size), setup.max_model_len)

    def build_metadata(self, request: MetadataRequest) -> StepMetadata:
        step = make_step(
            request.common,
            # Merging a prefix's part sums the keys in another order than reading them in one go.
            common_prefix_len=0 if self.setup.batch_invariant else request.common_prefix_len,
            longest_encoder=self.setup.max_model_len,
            are_tiles_aligned=self.setup.batch_invariant,
        )
        if not request.for_graph_capture:
            return step
        sizes = {self._tiling(layer, is_decode).query_tokens(layer) for layer in self.setup.layers for is_decode in (True, False)}
        return self._captured.refresh(replace(step, common_prefix_len=0), sizes)

    def update_block_table(self, metadata: StepMetadata, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> StepMetadata | None:
        return None if metadata.is_captured else replace(metadata, block_table=block_table)

    def write_kv(self, write: KVWrite) -> None:
        launch_write(write)

    def forward(self, call: AttentionCall) -> None:
        step: StepMetadata | None = call.metadata
        if step is None:
            call.output.zero_()
            return
        call.output[step.num_tokens :].zero_()
        if call.lse is not None:
            call.lse[step.num_tokens :].fill_(-math.inf)
        tiling = self._tiling(call.layer, step.is_decode)
        tiles = step.tiles_of(tiling.query_tokens(call.layer))
        prefix_len = step.common_prefix_len if _may_cascade(call, step) else 0
        num_splits = self._num_splits(call.layer, step, tiles.row.numel(), prefix_len)
        if not prefix_len and num_splits == 1:
            launch_attend(call, step, Pass(tiles=tiles, tiling=tiling), None)
            return
        parts = new_parts(call, num_splits + bool(prefix_len), step.num_tokens)
        if prefix_len:
            wide = self._tiling(call.layer, is_decode=False)
            launch_attend(call, step, self._prefix_pass(call.layer, step, wide, prefix_len), parts)
        suffix = Pass(tiles=tiles, tiling=tiling, first_key=prefix_len, num_splits=num_splits, first_part=int(bool(prefix_len)))
        launch_attend(call, step, suffix, parts)
        launch_merge(call, step, parts)

    def _prefix_pass(self, layer: AttentionLayer, step: StepMetadata, tiling: Tiling, prefix_len: int) -> Pass:
        """All tokens as one row whose keys are the common prefix."""
        one_row = torch.tensor([0, step.num_tokens], dtype=torch.int32, device=step.seq_lens.device)
        tiles = make_tiles(one_row, step.num_tokens, tiling.query_tokens(layer))
        return Pass(tiles=tiles, tiling=tiling, last_key=prefix_len, is_prefix=True)

    def _tiling(self, layer: AttentionLayer, is_decode: bool) -> Tiling:
        return choose_tiling(
            layer,
            is_decode=is_decode and not self.setup.batch_invariant,
            element_bytes=getattr(torch, self.setup.dtype).itemsize,
        )

    def _num_splits(self, layer: AttentionLayer, step: StepMetadata, num_tiles: int, prefix_len: int) -> int:
        """More than one for decode rows alone, and never where results must not depend on the batch."""
        if self.setup.batch_invariant or not step.is_decode:
            return 1
        longest = step.max_seq_len - prefix_len
        if layer.sliding_window is not None:
            longest = min(longest, layer.sliding_window)
        return choose_num_splits(
            num_tiles=num_tiles * num_head_groups(layer),
            num_processors=self.num_processors,
            longest=longest,
            min_split_tokens=self.options.min_split_tokens,
        )


def _may_cascade(call: AttentionCall, step: StepMetadata) -> bool:
    """Every token sees the whole prefix, and nothing in a score depends on the position; elsewhere the prefix is read row by row."""
    layer = call.layer
    return (
        step.common_prefix_len > 0
        and layer.attention_type == DECODER
        and layer.sliding_window is None
        and layer.chunk_len is None
        and call.alibi_slopes is None
        and step.custom_mask is None
        and step.num_ranks == 1
    )


def _check_float8(kv_dtype: str, capability: tuple[int, int]) -> None:
    if kv_dtype.startswith("float8") and capability < FIRST_FLOAT8:
        needed, found = (".".join(map(str, version)) for version in (FIRST_FLOAT8, capability))
        raise ResolutionError(
            f"triton: kv_cache.dtype = {kv_dtype!r} needs a GPU of compute capability {needed} or above, this one has {found}. "
            'Set kv_cache.dtype = "int8" or "auto".'
        )
