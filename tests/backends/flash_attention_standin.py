"""Stand-ins of the FlashAttention library's three versions: each checks every argument as the real one documents it, and computes the
answer in float64 from just these arguments.

Sources: `flash_attn_interface.py` and the checks of `flash_api.cpp` in flash-attn 2.8.3; `hopper/flash_attn_interface.py` of the same
package (version 3); `flash_attn/cute/interface.py` of flash-attn-4. tests/libraries compares their signatures with the real ones.
"""

from __future__ import annotations

import sys
import types

import torch

from .library_checks import attend, check, check_starts, check_tensor, gather_pages, visible_keys

HALF = (torch.float16, torch.bfloat16)


def flash_attn_varlen_func_2(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    check(block_table is None or k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    check(dropout_p == 0.0, "dropout_p must be 0 in inference")
    check(alibi_slopes is None, "this wrapper gives no ALiBi slopes")
    key_lens = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    if block_table is None:
        check_starts("cu_seqlens_k", cu_seqlens_k, k.shape[0])
    else:
        check_tensor("cu_seqlens_k", cu_seqlens_k, shape=(cu_seqlens_q.numel(),), dtypes=(torch.int32,))
    out, lse = _varlen(
        q, k, v, cu_seqlens_q, key_lens, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, softcap, block_table, no_bound=-1
    )
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func_3(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, softmax_scale=None, causal=False,
    qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
    pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    check_starts("cu_seqlens_k", cu_seqlens_k, k.shape[0])
    check(seqused_q is None and seqused_k is None, "this wrapper gives no seqused")
    key_lens = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    out, lse = _varlen(
        q, k, v, cu_seqlens_q, key_lens, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, softcap, None, no_bound=-1
    )
    return (out, lse) if return_attn_probs else out


def flash_attn_with_kvcache_3(
    q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, q_descale=None,
    k_descale=None, v_descale=None, softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
    rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
):  # fmt: skip
    check(page_table is not None and cu_seqlens_q is not None, "this wrapper gives page_table and cu_seqlens_q")
    check(max_seqlen_q is not None, "max_seqlen_q must be given with cu_seqlens_q")
    check_tensor("cache_seqlens", cache_seqlens, shape=(cu_seqlens_q.numel() - 1,), dtypes=(torch.int32,))
    longest = max(int(cache_seqlens.max()), 1)
    out, lse = _varlen(
        q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, max_seqlen_q, longest, softmax_scale, causal, window_size, softcap, page_table,
        no_bound=-1,
    )  # fmt: skip
    return (out, lse) if return_softmax_lse else out


def flash_attn_varlen_func_4(
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, seqused_q=None,
    seqused_k=None, gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False, window_size=(None, None),
    learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None,
    block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, scheduler_metadata=None, seqlen_k_per_split=None,
    disable_scheduler_metadata=False, gather_bwd_recompute_p=False, gather_bwd_token_chunk=None,
):  # fmt: skip
    check(page_table is None or cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k")
    check(num_splits >= 1, "num_splits must be at least 1")
    if page_table is None:
        check_starts("cu_seqlens_k", cu_seqlens_k, k.shape[0])
        key_lens = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    else:
        check_tensor("seqused_k", seqused_k, shape=(cu_seqlens_q.numel() - 1,), dtypes=(torch.int32,))
        key_lens = seqused_k
    out, lse = _varlen(
        q, k, v, cu_seqlens_q, key_lens, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, softcap, page_table, no_bound=None
    )
    return out, lse if return_lse else None


def _varlen(q, k, v, cu_seqlens_q, key_lens, max_seqlen_q, max_seqlen_k, scale, causal, window_size, softcap, table, *, no_bound):
    """What all versions have in common."""
    check_tensor("q", q, shape=(None, None, None), dtypes=HALF)
    num_heads, head_dim = q.shape[1:]
    cached = (None, None, None, head_dim) if table is not None else (None, None, head_dim)
    for name, tensor in (("k", k), ("v", v)):
        check_tensor(name, tensor, shape=cached, dtypes=(q.dtype,))
    check(head_dim % 8 == 0 and head_dim <= 256, "head_dim must be a multiple of 8, at most 256")
    check(num_heads % k.shape[-2] == 0, "the number of KV heads must divide the number of heads")
    check_starts("cu_seqlens_q", cu_seqlens_q, q.shape[0])
    query_lens = cu_seqlens_q[1:] - cu_seqlens_q[:-1]
    check(type(max_seqlen_q) is int and max_seqlen_q >= int(query_lens.max()), "max_seqlen_q must be an int no row exceeds")
    check(type(max_seqlen_k) is int and max_seqlen_k >= int(key_lens.max()), "max_seqlen_k must be an int no row exceeds")
    check(type(scale) is float, "softmax_scale must be a float")
    check(type(causal) is bool, "causal must be a bool")
    check(type(softcap) is float and softcap >= 0, "softcap must be a float, 0 for none")
    check(isinstance(window_size, tuple) and len(window_size) == 2, "window_size must be a pair")
    bounds = [-1 if bound is no_bound or bound == no_bound else bound for bound in window_size]
    check(all(type(bound) is int and bound >= -1 for bound in bounds), f"window_size must hold ints, or {no_bound} for no bound")
    if table is not None:
        check_tensor("block_table", table, shape=(query_lens.numel(), None), dtypes=(torch.int32,))
    out = torch.zeros_like(q)
    lse = torch.full((num_heads, q.shape[0]), float("inf"))
    for row, (query_len, key_len) in enumerate(zip(query_lens.tolist(), key_lens.tolist(), strict=True)):
        if not query_len:
            continue
        tokens = slice(int(cu_seqlens_q[row]), int(cu_seqlens_q[row]) + query_len)
        start = int(key_lens[:row].sum())
        keys, values = (gather_pages(each, table[row], key_len) if table is not None else each[start : start + key_len] for each in (k, v))
        visible = visible_keys(query_len, key_len, causal=causal, window_left=bounds[0], window_right=bounds[1])
        found, row_lse = attend(q[tokens], keys, values, visible=visible, scale=scale, soft_cap=softcap)
        out[tokens] = found.to(q.dtype)
        lse[:, tokens] = torch.where(torch.isneginf(row_lse), float("inf"), row_lse).transpose(0, 1).float()
    return out, lse


def install(monkeypatch, *versions):
    """Make these versions importable, and no others."""
    for name in ("flash_attn", "flash_attn.cute", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, None)
    if {2, 4} & set(versions):
        package = types.ModuleType("flash_attn")
        package.__path__ = []
        monkeypatch.setitem(sys.modules, "flash_attn", package)
        if 2 in versions:
            package.flash_attn_varlen_func = flash_attn_varlen_func_2
        if 4 in versions:
            cute = types.ModuleType("flash_attn.cute")
            cute.flash_attn_varlen_func = flash_attn_varlen_func_4
            monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    if 3 in versions:
        interface = types.ModuleType("flash_attn_interface")
        interface.flash_attn_varlen_func = flash_attn_varlen_func_3
        interface.flash_attn_with_kvcache = flash_attn_with_kvcache_3
        monkeypatch.setitem(sys.modules, "flash_attn_interface", interface)
