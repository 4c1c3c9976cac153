"""A stand-in of the FlashInfer library: checks every argument as the real one documents it, and computes the answer in float64 from just
these arguments. It has the real one's habits as well:

- LSE in base 2; of a row that sees nothing it is not minus infinity but -5e4 and the logarithm of the number of masked keys
- values of keys that a mask or a window hides are read and multiplied by 0, which NaN and infinity survive
- a wrapper keeps the kernels it chose at its first plan; those for Hopper, chosen wherever they can, take no custom mask
- a custom mask is packed on its device, by tables that must lie there

Source: the docstrings and checks of `decode.py` and `prefill.py`, `math.cuh`, `prefill.cuh`, `quantization.cu` in flashinfer-python 0.6.13;
tests/libraries compares signatures and these constants with it.
"""

from __future__ import annotations

import math
import sys
import types

import torch

from .library_checks import attend, check, check_starts, check_tensor, visible_keys

HALF = (torch.float16, torch.bfloat16)
LEAST_WORKSPACE = 16 * 2**20
INFINITY = 5e4
"""`math::inf` of the kernels before version 0.7, where it became infinite."""
CUDA_CORE_GROUPS = (1, 2, 3, 4, 8)
"""`DISPATCH_GQA_GROUP_SIZE`: query heads per KV head of the decode kernels without tensor cores."""


class _Wrapper:
    def __init__(self, workspace, kv_layout, backend):
        check(backend in ("auto", "fa2", "fa3"), f"backend must be auto, fa2 or fa3, not {backend!r}")
        self.backend = backend
        check_tensor("float_workspace_buffer", workspace, shape=(None,), dtypes=(torch.uint8,))
        check(workspace.numel() >= LEAST_WORKSPACE, "float_workspace_buffer is too small")
        check(kv_layout in ("NHD", "HND"), f"kv_layout must be NHD or HND, not {kv_layout!r}")
        self.kv_layout = kv_layout
        self.planned = None

    def _plan_heads(self, **facts):
        """Arguments that all plans share."""
        heads, kv_heads = facts["num_qo_heads"], facts["num_kv_heads"]
        check(type(heads) is int and type(kv_heads) is int and heads % kv_heads == 0, "num_kv_heads must divide num_qo_heads")
        check(facts["head_dim"] in (64, 128, 256), f"head_dim must be 64, 128 or 256, not {facts['head_dim']}")
        check(facts["pos_encoding_mode"] == "NONE", "this wrapper rotates and biases nothing")
        check(facts["q_data_type"] in HALF, "q_data_type must be float16 or bfloat16")
        check(facts["kv_data_type"] in (facts["q_data_type"], torch.float8_e4m3fn), "kv_data_type must be the query's or float8_e4m3fn")
        check(facts["o_data_type"] in (None, facts["q_data_type"]), "o_data_type must be the query's")
        check(type(facts["window_left"]) is int and facts["window_left"] >= -1, "window_left must be an int, -1 for none")
        check(type(facts["logits_soft_cap"]) is float and facts["logits_soft_cap"] >= 0, "logits_soft_cap must be a float, 0 for none")
        check(type(facts["sm_scale"]) is float, "sm_scale must be a float")
        check(facts["num_rows"] > 0, "a batch must have rows: the longest of none is asked for")
        self.planned = types.SimpleNamespace(**facts)

    def _check_run(self, q, num_tokens, k_scale, v_scale):
        plan = self.planned
        check(plan is not None, "plan must be called before run")
        check_tensor("q", q, shape=(num_tokens, plan.num_qo_heads, plan.head_dim), dtypes=(plan.q_data_type,))
        check(q.is_contiguous(), "q must be contiguous")
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            check(scale is None or type(scale) is float, f"{name} must be a float")

    def _choose_kernels(self, custom_mask, *tables):
        """At the first plan, for good."""
        if self.backend == "auto":
            self.backend = "fa2" if custom_mask is not None else "fa3"
        if custom_mask is not None:
            check(self.backend == "fa2", "the kernels of this wrapper, chosen at its first plan, take no custom mask")
            check(custom_mask.is_contiguous() and custom_mask.dim() == 1, "custom_mask must be flat")
            check(all(table.device == custom_mask.device for table in tables), "tables must lie where custom_mask does")

    def _unpack(self, cache):
        """K and V, each [pages, page_size, heads, dim]."""
        plan = self.planned
        if isinstance(cache, torch.Tensor):
            check_tensor("paged_kv_cache", cache, shape=(None, 2, None, None, None))
            cache = cache[:, 0], cache[:, 1]
        check(isinstance(cache, tuple) and len(cache) == 2, "paged_kv_cache must be a tensor or a pair of them")
        inner = (plan.page_size, plan.num_kv_heads) if self.kv_layout == "NHD" else (plan.num_kv_heads, plan.page_size)
        for half in cache:
            check_tensor("paged_kv_cache", half, shape=(None, *inner, plan.head_dim), dtypes=(plan.kv_data_type,))
        check(cache[0].stride() == cache[1].stride(), "K and V of paged_kv_cache must have the same strides")
        check(int(plan.indices.max()) < cache[0].shape[0], "indices must be pages of paged_kv_cache")
        return cache if self.kv_layout == "NHD" else tuple(half.transpose(1, 2) for half in cache)

    def _rows(self, cache, row, k_scale, v_scale):
        """K and V of one row, [num_keys, num_kv_heads, head_dim] float64."""
        plan = self.planned
        pages = plan.indices[int(plan.indptr[row]) : int(plan.indptr[row + 1])].long()
        num_keys = (len(pages) - 1) * plan.page_size + int(plan.last_page_len[row])
        key, value = (half[pages].double().flatten(0, 1)[:num_keys] for half in cache)
        return key * (k_scale or 1.0), value * (v_scale or 1.0)

    def _masks(self):
        """What each row in turn sees: the mask instead of causality, the window in any case."""
        plan, start = self.planned, 0

        def visible(num_queries, num_keys):
            nonlocal start
            area = num_queries * num_keys
            is_masked = plan.custom_mask is not None
            seen = visible_keys(num_queries, num_keys, causal=plan.causal and not is_masked, window_left=plan.window_left)
            if is_masked:
                seen = seen & plan.custom_mask[start : start + area].view(num_queries, num_keys)
            start += area
            return seen

        return visible

    def _answer(self, q, rows, return_lse):
        """rows: (tokens, key, value, visible) of each row."""
        plan = self.planned
        out = torch.full(q.shape, math.nan, dtype=q.dtype)
        lse = torch.full(q.shape[:2], math.nan)
        for tokens, key, value, visible in rows:
            found, row_lse = attend(q[tokens], key, value, visible=visible, scale=plan.sm_scale, soft_cap=plan.logits_soft_cap)
            found = found + (value * 0.0).sum(0).repeat_interleave(plan.num_qo_heads // plan.num_kv_heads, dim=0)
            base_2 = row_lse / math.log(2)
            out[tokens] = found.to(q.dtype)
            lse[tokens] = torch.where(torch.isneginf(base_2), math.log2(max(key.shape[0], 1)) - INFINITY, base_2).float()
        return (out, lse) if return_lse else out


def _check_pages(indptr, indices, last_page_len, page_size):
    check(type(page_size) is int and page_size >= 1, "page_size must be a positive int")
    check_starts("indptr", indptr, indices.numel())
    check(bool((indptr[1:] > indptr[:-1]).all()), "every row must have a page")
    check_tensor("indices", indices, shape=(None,), dtypes=(torch.int32,))
    check_tensor("last_page_len", last_page_len, shape=(indptr.numel() - 1,), dtypes=(torch.int32,))
    check(bool(((last_page_len >= 1) & (last_page_len <= page_size)).all()), f"last_page_len must be 1 .. {page_size}")


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
        jit_args=None,
    ):
        super().__init__(float_workspace_buffer, kv_layout, backend)
        check(type(use_tensor_cores) is bool, "use_tensor_cores must be a bool")
        self.use_tensor_cores = use_tensor_cores
        self.buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        self.use_cuda_graph = use_cuda_graph
        if use_cuda_graph:
            for buffer in self.buffers:
                check_tensor("buffer of the page table", buffer, shape=(None,), dtypes=(torch.int32,))
            check(paged_kv_indptr_buffer.numel() == paged_kv_last_page_len_buffer.numel() + 1, "indptr needs one entry more than rows")

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        pos_encoding_mode="NONE",
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
        block_tables=None,
        seq_lens=None,
        fixed_split_size=None,
        disable_split_kv=False,
        q_len_per_req=1,
    ):
        _check_pages(indptr, indices, last_page_len, page_size)
        group_size = num_qo_heads // num_kv_heads
        check(self.use_tensor_cores or group_size in CUDA_CORE_GROUPS, f"Unsupported group_size: {group_size}")
        if self.use_cuda_graph:
            check(indptr.numel() == self.buffers[0].numel(), "the batch size is fixed in CUDA graph mode")
            check(indices.numel() <= self.buffers[1].numel(), "more pages than paged_kv_indices_buffer holds")
            for buffer, values in zip(self.buffers, (indptr, indices, last_page_len), strict=True):
                buffer[: values.numel()].copy_(values)
            indptr, indices, last_page_len = self.buffers
        self._plan_heads(
            num_rows=last_page_len.numel(),
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            o_data_type=o_data_type,
            sm_scale=sm_scale,
            indptr=indptr,
            indices=indices,
            last_page_len=last_page_len,
            page_size=page_size,
        )

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        window_left=None,
        sinks=None,
        q_len_per_req=None,
        skip_softmax_threshold_scale_factor=None,
        kv_cache_sf=None,
    ):
        plan = self.planned
        num_rows = 0 if plan is None else plan.last_page_len.numel()
        self._check_run(q, num_rows, k_scale, v_scale)
        halves = self._unpack(paged_kv_cache)
        rows = []
        for row in range(num_rows):
            key, value = self._rows(halves, row, k_scale, v_scale)
            visible = visible_keys(1, key.shape[0], causal=False, window_left=plan.window_left)
            rows.append((slice(row, row + 1), key, value, visible))
        return self._answer(q, rows, return_lse)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ):
        super().__init__(float_workspace_buffer, kv_layout, backend)

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        seq_lens=None,
        seq_lens_q=None,
        block_tables=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        fixed_split_size=None,
        disable_split_kv=False,
    ):
        _check_pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        check_starts("qo_indptr", qo_indptr, int(qo_indptr[-1]))
        check(qo_indptr.numel() == paged_kv_indptr.numel(), "qo_indptr and paged_kv_indptr must be of one length")
        check(type(causal) is bool, "causal must be a bool")
        if custom_mask is not None:
            query_lens = qo_indptr[1:] - qo_indptr[:-1]
            key_lens = (paged_kv_indptr[1:] - paged_kv_indptr[:-1] - 1) * page_size + paged_kv_last_page_len
            check_tensor("custom_mask", custom_mask, shape=(int((query_lens * key_lens).sum()),), dtypes=(torch.bool,))
        self._choose_kernels(custom_mask, qo_indptr, paged_kv_indptr, paged_kv_last_page_len)
        self._plan_heads(
            num_rows=paged_kv_last_page_len.numel(),
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim_qk,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            o_data_type=o_data_type,
            sm_scale=sm_scale,
            indptr=paged_kv_indptr,
            indices=paged_kv_indices,
            last_page_len=paged_kv_last_page_len,
            page_size=page_size,
            qo_indptr=qo_indptr,
            causal=causal,
            custom_mask=custom_mask,
        )

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        window_left=None,
        sinks=None,
        kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None,
    ):
        plan = self.planned
        self._check_run(q, None if plan is None else int(plan.qo_indptr[-1]), k_scale, v_scale)
        halves = self._unpack(paged_kv_cache)
        rows, masks = [], self._masks()
        for row in range(plan.last_page_len.numel()):
            tokens = slice(int(plan.qo_indptr[row]), int(plan.qo_indptr[row + 1]))
            key, value = self._rows(halves, row, k_scale, v_scale)
            rows.append((tokens, key, value, masks(tokens.stop - tokens.start, key.shape[0])))
        return self._answer(q, rows, return_lse)


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        kv_indptr_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ):
        super().__init__(float_workspace_buffer, kv_layout, backend)

    def plan(
        self,
        qo_indptr,
        kv_indptr,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        fixed_split_size=None,
        disable_split_kv=False,
        seq_lens=None,
        seq_lens_q=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        v_indptr=None,
        o_indptr=None,
    ):
        check_starts("qo_indptr", qo_indptr, int(qo_indptr[-1]))
        check_starts("kv_indptr", kv_indptr, int(kv_indptr[-1]))
        check(qo_indptr.numel() == kv_indptr.numel(), "qo_indptr and kv_indptr must be of one length")
        check(type(causal) is bool, "causal must be a bool")
        if custom_mask is not None:
            area = (qo_indptr[1:] - qo_indptr[:-1]) * (kv_indptr[1:] - kv_indptr[:-1])
            check_tensor("custom_mask", custom_mask, shape=(int(area.sum()),), dtypes=(torch.bool,))
        self._choose_kernels(custom_mask, qo_indptr, kv_indptr)
        self._plan_heads(
            num_rows=kv_indptr.numel() - 1,
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim_qk,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            o_data_type=o_data_type,
            sm_scale=sm_scale,
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            causal=causal,
            custom_mask=custom_mask,
        )

    def run(
        self,
        q,
        k,
        v,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        o_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        kv_cache_sf=None,
    ):
        plan = self.planned
        self._check_run(q, None if plan is None else int(plan.qo_indptr[-1]), k_scale, v_scale)
        for name, tensor in (("k", k), ("v", v)):
            wanted = (int(plan.kv_indptr[-1]), plan.num_kv_heads, plan.head_dim)
            check_tensor(name, tensor, shape=wanted, dtypes=(plan.kv_data_type,))
            check(tensor.is_contiguous(), f"{name} must be contiguous")
        rows, masks = [], self._masks()
        for row in range(plan.kv_indptr.numel() - 1):
            tokens = slice(int(plan.qo_indptr[row]), int(plan.qo_indptr[row + 1]))
            keys = slice(int(plan.kv_indptr[row]), int(plan.kv_indptr[row + 1]))
            rows.append((tokens, k[keys].double(), v[keys].double(), masks(tokens.stop - tokens.start, keys.stop - keys.start)))
        return self._answer(q, rows, return_lse)


def install(monkeypatch):
    """Make it importable as `flashinfer`."""
    module = types.ModuleType("flashinfer")
    for wrapper in (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper):
        setattr(module, wrapper.__name__, wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
