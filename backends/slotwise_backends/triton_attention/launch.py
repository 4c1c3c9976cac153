"""The kernels' arguments from a call and its step. The only file that launches them; Triton is imported here, late.

What this file does not know: how metadata is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slotwise.config.environment import is_triton_interpreted
from slotwise.interfaces.attention import CROSS, ENCODER, ENCODER_ONLY, AttentionCall, AttentionLayer, KVWrite
from slotwise_backends.triton_attention.attend_kernel import CAUSAL, CAUSAL_BY_ROW, NOT_CAUSAL, attend_kernel
from slotwise_backends.triton_attention.merge_kernel import merge_kernel
from slotwise_backends.triton_attention.step import StepMetadata, Tiles
from slotwise_backends.triton_attention.tiling import Tiling, cut, group_size, next_power_of_two, num_head_groups
from slotwise_backends.triton_attention.write_kernel import FLOAT8, INT8, PLAIN, write_kernel

NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One launch: which keys, by whom, into which parts."""

    tiles: Tiles
    tiling: Tiling
    first_key: int = 0
    last_key: int = NO_LIMIT
    num_splits: int = 1
    first_part: int = 0
    is_prefix: bool = False
    """All rows attend to the same keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Results to be merged."""

    output: torch.Tensor
    """[num_parts, num_tokens, num_heads, value_dim] float32."""
    lse: torch.Tensor
    """[num_parts, num_tokens, num_heads] float32."""


def new_parts(call: AttentionCall, num_parts: int, num_tokens: int) -> Parts:
    """Memory for them."""
    layer, device = call.layer, call.query.device
    return Parts(
        output=torch.empty(num_parts, num_tokens, layer.num_heads, layer.value_dim, dtype=torch.float32, device=device),
        lse=torch.empty(num_parts, num_tokens, layer.num_heads, dtype=torch.float32, device=device),
    )


def launch_attend(call: AttentionCall, step: StepMetadata, work: Pass, parts: Parts | None) -> None:
    """One pass into `parts`, or into the call's output and LSE if there are none."""
    layer, is_encoder = call.layer, call.layer.attention_type in (ENCODER, ENCODER_ONLY)
    query = _packed(call.query)
    key, value = _views(call, is_encoder=is_encoder)
    (d1, d2), (v1, v2) = cut(layer.head_dim), cut(layer.value_dim)
    has_mask = step.custom_mask is not None and layer.attention_type != CROSS
    num_keys = step.seq_lens if is_encoder else step.encoder_seq_lens if layer.attention_type == CROSS else step.num_held
    dummy = step.query_start_loc
    grid = (work.tiles.row.numel(), num_head_groups(layer), work.num_splits)
    attend_kernel[grid](
        query,
        key,
        value,
        call.output,
        dummy if call.lse is None else call.lse,
        dummy if parts is None else parts.output,
        dummy if parts is None else parts.lse,
        work.tiles.row,
        work.tiles.first,
        step.query_start_loc,
        step.seq_lens,
        num_keys,
        step.block_table,
        dummy if step.causal_of_row is None else step.causal_of_row,
        dummy if step.custom_mask is None else step.custom_mask,
        dummy if step.mask_start is None else step.mask_start,
        dummy if call.sinks is None else call.sinks,
        dummy if call.alibi_slopes is None else call.alibi_slopes,
        float(layer.scale),
        1.0 if is_encoder else float(call.k_scale),
        1.0 if is_encoder else float(call.k_scale if layer.is_mla else call.v_scale),
        float(layer.logits_soft_cap or 0.0),
        1 if work.is_prefix else step.num_reqs,
        step.num_tokens,
        work.first_part,
        work.num_splits,
        work.first_key,
        work.last_key,
        layer.sliding_window or 0,
        layer.chunk_len or 1,
        step.num_ranks,
        step.rank,
        query.stride(0),
        query.stride(1),
        *_strides(key),
        *_strides(value),
        step.block_table.stride(0),
        layer.num_heads,
        1 if is_encoder else _block_size(call),
        GROUP=group_size(layer),
        HEAD_DIM=layer.head_dim,
        VALUE_DIM=layer.value_dim,
        D1=d1,
        D2=d2,
        V1=v1,
        V2=v2,
        BLOCK_M=work.tiling.block_m,
        BLOCK_N=work.tiling.block_n,
        PAGED=not is_encoder,
        CAUSALITY=_causality(layer, step, work),
        HAS_WINDOW=layer.sliding_window is not None,
        HAS_CHUNK=layer.chunk_len is not None,
        HAS_SOFT_CAP=bool(layer.logits_soft_cap),
        HAS_MASK=has_mask,
        HAS_ALIBI=call.alibi_slopes is not None,
        HAS_SINKS=has_sinks(call, step),
        WANTS_LSE=call.lse is not None,
        IS_WHOLE=parts is None,
        IS_PREFIX=work.is_prefix,
        UPCAST=is_triton_interpreted(),
        IEEE=call.query.dtype == torch.float32,
        num_warps=work.tiling.num_warps,
        num_stages=work.tiling.num_stages,
    )


def launch_merge(call: AttentionCall, step: StepMetadata, parts: Parts) -> None:
    """The parts into the call's output and LSE."""
    layer = call.layer
    num_parts, num_tokens = parts.lse.shape[:2]
    merge_kernel[(num_tokens, layer.num_heads)](
        parts.output,
        parts.lse,
        call.output,
        parts.lse if call.lse is None else call.lse,
        parts.lse if call.sinks is None else call.sinks,
        num_parts,
        num_tokens,
        layer.num_heads,
        VALUE_DIM=layer.value_dim,
        BLOCK_V=next_power_of_two(layer.value_dim),
        HAS_SINKS=has_sinks(call, step),
        WANTS_LSE=call.lse is not None,
    )


def launch_write(write: KVWrite) -> None:
    """K and V of a step into their slots."""
    cache, layer = write.kv_cache, write.layer
    if write.key.shape[0] == 0:
        return
    key_cache, value_cache = (_latent_view(cache),) * 2 if layer.is_mla else (cache[:, 0], cache[:, 1])
    key = _packed(write.key)
    value = key if write.value is None else _packed(write.value)
    is_float8 = cache.dtype.is_floating_point and cache.dtype.itemsize == 1
    storage = INT8 if cache.dtype == torch.int8 else FLOAT8 if is_float8 else PLAIN
    largest = 127.0 if cache.dtype == torch.int8 else float(torch.finfo(cache.dtype).max)
    write_kernel[(key.shape[0], layer.num_kv_heads)](
        key,
        value,
        key_cache,
        value_cache,
        write.slot_mapping,
        float(write.k_scale),
        float(write.v_scale),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        *_strides(key_cache),
        *_strides(value_cache),
        cache.shape[1] if layer.is_mla else cache.shape[2],
        HEAD_DIM=layer.head_dim,
        BLOCK_D=next_power_of_two(layer.head_dim),
        HAS_VALUE=write.value is not None,
        STORAGE=storage.value,
        LARGEST=largest,
    )


def has_sinks(call: AttentionCall, step: StepMetadata) -> bool:
    """Of several ranks the first alone counts the sink."""
    return call.sinks is not None and step.rank == 0


def _causality(layer: AttentionLayer, step: StepMetadata, work: Pass) -> int:
    if work.is_prefix or not layer.causal or layer.attention_type == CROSS:
        causality = NOT_CAUSAL
    elif step.causal_of_row is not None:
        causality = CAUSAL_BY_ROW
    else:
        causality = CAUSAL if step.causal else NOT_CAUSAL
    return int(causality.value)


def _views(call: AttentionCall, *, is_encoder: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V as [blocks, tokens, heads, dim], whatever the layout; an encoder's tokens are one block."""
    if is_encoder:
        assert call.key is not None  # encoders bring them
        assert call.value is not None
        return _packed(call.key)[None], _packed(call.value)[None]
    if call.layer.is_mla:
        return (_latent_view(call.kv_cache),) * 2
    return call.kv_cache[:, 0], call.kv_cache[:, 1]


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """The same, copied if the elements of a head do not lie side by side as the kernels read them."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _latent_view(cache: torch.Tensor) -> torch.Tensor:
    """Any number of heads reads the one latent row of a token."""
    return cache[:, :, None].expand(-1, -1, 2, -1)


def _strides(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Of block, token and head; elements of a head lie side by side."""
    assert tensor.stride(-1) == 1, "the elements of a head must be contiguous"
    return tensor.stride(0), tensor.stride(1), tensor.stride(2)


def _block_size(call: AttentionCall) -> int:
    return call.kv_cache.shape[1 if call.layer.is_mla else 2]
