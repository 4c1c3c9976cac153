"""The `attention` slot: KV layout, per-step metadata, KV write, and attention itself.

Life of a backend. The engine makes one instance for each (KV group, backend) pair. Every step it calls `build_metadata` once for
that pair, then for each of its layers `write_kv` (unless the backend fuses the write) and `forward`. Everything a
backend needs arrives in keyword-only records, so that fields can be added without breaking it.

What this file does not know: schedulers, requests, sampling. Rows are requests, tokens are flat.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

FULL = "full"
"""Layer kind: position p sees 0 .. p."""
SLIDING_WINDOW = "sliding_window"
"""Layer kind: position p sees the last `sliding_window` positions, itself included."""
CHUNKED_LOCAL = "chunked_local"
"""Layer kind: position p sees its own chunk of `chunk_len` positions up to itself."""
LAYER_KINDS = (FULL, SLIDING_WINDOW, CHUNKED_LOCAL)
"""Kinds of layers that may be served by different backends (`[attention.per_kind]`)."""

PREFILL = "prefill"
"""Phase of every other row: parts of a prompt, and what is recomputed after a preemption."""
DECODE = "decode"
"""Phase of a row that computes one token after its whole prompt."""
PHASES = (PREFILL, DECODE)
"""Phases of a row that may be served by different backends (`[attention.per_phase]`)."""

DECODER = "decoder"
"""Attention type: a row sees the cached positions of its own sequence."""
ENCODER = "encoder"
"""Attention type: a row is a whole sequence and sees this step's `key` and `value` of that row, to both sides unless the layer is causal;
nothing is cached, `kv_cache` holds nothing and `write_kv` is not called."""
ENCODER_ONLY = "encoder_only"
"""As `encoder`, in a model that has no decoder."""
CROSS = "cross"
"""Attention type: a row sees all of its encoder's positions 0 .. encoder_seq_len - 1, which the cache holds, wherever the row stands."""
ATTENTION_TYPES = (DECODER, ENCODER, ENCODER_ONLY, CROSS)
"""Where the keys of a layer come from (`AttentionLayer.attention_type`)."""

NHD = "nhd"
"""Layout name: tokens of a block outside, heads inside."""
HND = "hnd"
"""Layout name: heads outside, tokens of a block inside."""
LATENT = "latent"
"""Layout name of MLA layers: one row of `head_dim` elements per token, for K and V together."""
STANDARD_KV_LAYOUTS = (NHD, HND, LATENT)
"""Layouts every part of the engine understands; see `KVCacheLayout`. Any other name is private to the backends that offer it."""


class GraphSupport(enum.IntEnum):
    """How much of a step a device graph may replay; the engine uses the weakest among its backends."""

    NEVER = 0
    """The backend may not run inside a graph."""
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    """Batches in which every row has one query token."""
    UNIFORM_BATCH = 2
    """Batches in which every row has the same number of query tokens."""
    ALWAYS = 3
    """Any batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCapabilities:
    """What a backend claims. The resolver refuses what is not claimed; the conformance kit tests what is.

    `None` in a tuple-valued field means "any". Dtypes are torch's names without prefix (`"float32"`, `"bfloat16"`).
    """

    devices: tuple[str, ...] = ("cpu",)
    """Torch device types it runs on."""
    dtypes: tuple[str, ...] = ("float32",)
    """Dtypes of query, key, value and output."""
    kv_dtypes: tuple[str, ...] = ("auto",)
    """`"auto"` = the model's dtype; others are quantised storage such as `"float8_e4m3fn"`, `"int8"`."""
    head_dims: tuple[int, ...] | None = None
    """The only head dimensions it accepts."""
    head_dim_multiple_of: int = 1
    """A head dimension must be a multiple of it."""
    max_head_dim: int | None = None
    """Largest head dimension; None = no limit."""
    block_sizes: tuple[int, ...] | None = None
    """The only block sizes it accepts, in tokens."""
    block_size_multiple_of: int = 1
    """A block size must be a multiple of it."""
    kv_layouts: tuple[str, ...] = (NHD,)
    """Accepted KV layouts, best first. Backends that share a KV group must agree on one. MLA layers always have `latent`, which is not
    listed here."""
    layer_kinds: tuple[str, ...] = (FULL,)
    """Of `LAYER_KINDS`."""
    attention_types: tuple[str, ...] = (DECODER,)
    """Of `ATTENTION_TYPES`."""
    logits_soft_cap: bool = False
    """Honours `AttentionLayer.logits_soft_cap`."""
    alibi: bool = False
    """Honours `AttentionCall.alibi_slopes`."""
    sinks: bool = False
    """Honours `AttentionCall.sinks`."""
    non_causal: bool = False
    """Honours `CommonAttentionMetadata.causal` where it is not plainly True."""
    mla: bool = False
    """Serves layers whose cache holds a compressed latent instead of K and V (multi-head latent attention), see
    `AttentionLayer.latent_value_dim`. The limits on head dimensions do not apply to them."""
    mla_dims: tuple[tuple[int, int], ...] | None = None
    """The only pairs (`head_dim`, `latent_value_dim`) of MLA layers it accepts."""
    custom_mask: bool = False
    """Tree masks for speculation and bidirectional spans (`CommonAttentionMetadata.custom_mask`)."""
    kv_sharing: bool = True
    """A layer may read the KV of another layer (`AttentionLayer.kv_sharing_target`) and write none."""
    lse: bool = False
    """Can return the log-sum-exp of the scores, natural logarithm."""
    cascade: bool = False
    """Gains from `MetadataRequest.common_prefix_len > 0`; without the claim, and under `AttentionSetup.batch_invariant`, it is always 0."""
    fused_kv_write: bool = False
    """`forward` writes K and V itself; the engine then does not call `write_kv`."""
    context_parallel: bool = False
    """Can attend to a cache of which this rank holds a part (`CommonAttentionMetadata.context_parallel_seq_lens`)."""
    batch_invariant: bool = False
    """The result of a row is bit-equal whatever the other rows are and however its sequence was cut into steps, if
    `AttentionSetup.batch_invariant` asks for it."""
    graph_support: GraphSupport = GraphSupport.NEVER
    """What a device graph may replay of it."""
    compute_capability: tuple[tuple[int, int], tuple[int, int] | None] | None = None
    """CUDA devices only: lowest and highest (major, minor), the highest open if None."""
    not_together: tuple[tuple[str, ...], ...] = ()
    """Combinations that it does not serve on one layer, each a tuple of what it does serve alone: names of boolean capabilities, layer
    kinds, attention types, KV dtypes. `(("sinks", "alibi"),)`."""
    preference: Mapping[str, int] = field(default_factory=dict)
    """Device type -> rank for `use = "auto"`, higher wins, absent = never chosen by `auto`. Ties are broken by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionLayer:
    """The static facts of one attention layer of the model."""

    name: str
    """Name of the layer in the model, unique."""
    index: int
    """Position in the model, counting attention layers from 0."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """`num_heads` is a multiple of it; query head h reads KV head h // (num_heads // num_kv_heads)."""
    head_dim: int
    """Elements of one head of query and key, and of value unless the layer is MLA."""
    scale: float
    """Factor of q.k before soft cap and mask."""
    kind: str = FULL
    """One of `LAYER_KINDS`."""
    sliding_window: int | None = None
    """W: position p sees p-W+1 .. p, itself included. None = all of 0 .. p."""
    chunk_len: int | None = None
    """chunked_local: position p sees (p // chunk_len) * chunk_len .. p."""
    logits_soft_cap: float | None = None
    """c: scores become c * tanh(score / c), after `scale`, before the mask. Source: Gemma 2 report, section 2."""
    has_alibi: bool = False
    """Calls bring `alibi_slopes`."""
    has_sinks: bool = False
    """Calls bring `sinks`."""
    attention_type: str = DECODER
    """Of `ATTENTION_TYPES`."""
    causal: bool = True
    """False for a layer whose tokens see later ones too."""
    kv_sharing_target: str | None = None
    """Name of the layer whose cache this one reads, writing none of its own."""
    latent_value_dim: int | None = None
    """Multi-head latent attention in absorbed form: the cache holds one latent row of `head_dim` elements per token (layout `latent`,
    num_kv_heads 1) that is K, and whose first `latent_value_dim` elements are V. `key` is [num_tokens, 1, head_dim], `value` is None.
    Source: DeepSeek-V2, section 2.1, with the up-projections absorbed into query and output."""

    @property
    def is_mla(self) -> bool:
        """The cache holds latents."""
        return self.latent_value_dim is not None

    @property
    def value_dim(self) -> int:
        """Elements of one head of value and output."""
        return self.head_dim if self.latent_value_dim is None else self.latent_value_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheLayout:
    """How the KV cache of one layer lies in memory.

    The standard layouts have the logical shape [num_blocks, 2, block_size, num_kv_heads, head_dim] (index 0 = K, 1 = V);
    `nhd` is contiguous in that order, `hnd` in the order [num_blocks, 2, num_kv_heads, block_size, head_dim]. `latent` is
    [num_blocks, block_size, head_dim], contiguous. A private layout has the shape its backend gives.
    """

    name: str
    """`nhd`, `hnd`, `latent`, or the private name a backend offers."""
    shape: tuple[int, ...]
    """Logical shape, dimension 0 is num_blocks."""
    stride_order: tuple[int, ...]
    """Dimensions of `shape` from slowest to fastest in memory; dimension 0 comes first."""
    dtype: str
    """Storage dtype, torch's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KVLayoutRequest:
    """What a backend is asked to lay out."""

    name: str
    """The agreed layout."""
    num_blocks: int
    """Blocks in the pool, the null block included."""
    block_size: int
    """Tokens per block."""
    num_kv_heads: int
    """Heads stored per token."""
    head_dim: int
    """Elements per head."""
    dtype: str
    """Storage dtype, torch's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSetup:
    """What a backend instance is made for."""

    layers: tuple[AttentionLayer, ...]
    """The layers this instance will serve, all of one KV group."""
    block_size: int
    """Tokens per block of the block tables it will see."""
    kv_layout: str
    """The layout all backends of the group agreed on."""
    dtype: str
    """Dtype of query, key, value and output, torch's name."""
    kv_dtype: str
    """Storage dtype of the cache, torch's name."""
    device: str
    """Torch device, `cpu`, `cuda:0`, ..."""
    max_num_reqs: int
    """Most rows of a step."""
    max_num_batched_tokens: int
    """Most tokens of a step."""
    max_model_len: int
    """Longest sequence, in tokens."""
    batch_invariant: bool = False
    """Results must not depend on the other rows of the batch, at whatever cost; only if `capabilities.batch_invariant`."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonAttentionMetadata:
    """One step's batch as every backend of one KV group sees it. Read only; valid during the step.

    Decode rows come first, and are counted in `num_decodes`, only where the configuration gives the phases to different backends.
    """

    num_reqs: int
    """Rows of the step."""
    num_tokens: int
    """Tokens that are real; the tensors may be padded beyond."""
    query_start_loc: torch.Tensor
    """[num_reqs + 1] int32, device. Running sum of query lengths; a padded tail repeats the last value."""
    query_start_loc_cpu: torch.Tensor
    """The same on the CPU."""
    seq_lens: torch.Tensor
    """[num_reqs] int32, device. Computed + this step's tokens; 0 for padded rows."""
    seq_lens_cpu: torch.Tensor
    """[num_reqs] int32, CPU. An upper bound of `seq_lens` (exact when nothing is in flight)."""
    block_table: torch.Tensor
    """[num_reqs, max_blocks] int32, device. Entries past a row's blocks are the null block 0; those out of its window are the null
    block or stale. Neither may influence the result."""
    slot_mapping: torch.Tensor
    """[num_tokens] int64, device. block * block_size + offset; -1 = padding, never written."""
    positions: torch.Tensor
    """[num_tokens] int64, device. Position of each token in its sequence."""
    max_query_len: int
    """Most query tokens of a row."""
    max_seq_len: int
    """May be an upper bound."""
    is_prefilling: torch.Tensor
    """[num_reqs] bool, CPU. num_computed_tokens < num_prompt_tokens, before the step."""
    num_decodes: int = 0
    """Leading rows of the decode phase, if they are kept first."""
    num_decode_tokens: int = 0
    """Tokens of the `num_decodes` leading rows."""
    causal: bool | torch.Tensor = True
    """A bool, or [num_reqs] bool."""
    custom_mask: torch.Tensor | None = None
    """Flat bool, device: row after row, [query_len, seq_len] each, True = visible. Replaces the causal rule of every row; window and chunk
    still limit, to both sides alike. Bidirectional spans of a prefix or an image, and trees of drafts, are such masks."""
    encoder_seq_lens: torch.Tensor | None = None
    """[num_reqs] int32, device, lengths of the encoder's sequences; cross attention only. `block_table` and `slot_mapping` are then those
    of the encoder's positions."""
    context_parallel_seq_lens: torch.Tensor | None = None
    """[num_reqs] int32, device, how many of the `seq_lens` positions this rank holds; context parallelism only. Those are the positions
    p with p % context_parallel_size == context_parallel_rank; `block_table` counts them alone, as p // context_parallel_size. The result
    is the attention to these keys, to be merged with the other ranks' by LSE; a sink belongs to rank 0."""
    context_parallel_size: int = 1
    """Ranks that share each sequence."""
    context_parallel_rank: int = 0
    """This rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadataRequest:
    """Argument of `AttentionBackend.build_metadata`."""

    common: CommonAttentionMetadata
    """The step's batch."""
    common_prefix_len: int = 0
    """Tokens at the start shared by every row, a multiple of block_size; 0 unless `capabilities.cascade`."""
    fast_build: bool = False
    """The metadata serves few layers (a draft step): skip costly planning."""
    for_graph_capture: bool = False
    """The metadata is captured by a device graph, or refreshes one that was: its tensors live in buffers that the next such call with the
    same number of rows and tokens overwrites. A graph that captured `forward` with the first metadata then computes the later step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KVWrite:
    """Argument of `AttentionBackend.write_kv`: put each token's K and V into its slot.

    Quantised caches store x / scale, rounded to nearest even, clamped to the largest finite value of the storage dtype (int8: -127 .. 127).
    """

    layer: AttentionLayer
    """The layer being written."""
    key: torch.Tensor
    """[num_tokens, num_kv_heads, head_dim], the model's dtype; may be a strided view, the elements of a head side by side."""
    value: torch.Tensor | None
    """Like `key`; None for MLA layers, whose rows are written whole with `k_scale`."""
    kv_cache: torch.Tensor
    """The layer's cache in the agreed layout; written in place."""
    slot_mapping: torch.Tensor
    """[num_tokens] int64; -1 must not write."""
    k_scale: float = 1.0
    """Scale of stored K: quantised caches store k / k_scale."""
    v_scale: float = 1.0
    """Quantised caches store x / scale."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCall:
    """Argument of `AttentionBackend.forward`."""

    layer: AttentionLayer
    """The layer being computed."""
    query: torch.Tensor
    """[num_tokens, num_heads, head_dim], after rotary embedding; may be a strided view, the elements of a head side by side."""
    key: torch.Tensor | None
    """[num_tokens, num_kv_heads, head_dim] of this step's tokens; None for a layer that shares another's KV, and for cross attention
    once the encoder's are cached. May be a strided view like `query`."""
    value: torch.Tensor | None
    """Like `key`; None for MLA layers too."""
    kv_cache: torch.Tensor
    """The layer's cache in the agreed layout, this step's K and V already in it unless the backend fuses the write."""
    metadata: Any
    """What `build_metadata` returned for this step; None while the engine measures memory: then fill `output` with zeros."""
    output: torch.Tensor
    """[num_tokens, num_heads, value_dim], the model's dtype, contiguous; every row must be written."""
    lse: torch.Tensor | None = None
    """[num_tokens, num_heads] float32 to be filled with the natural-log log-sum-exp (-inf for rows that see no key), where
    wanted; only if `capabilities.lse`. A sink counts in it."""
    sinks: torch.Tensor | None = None
    """[num_heads] float32 logits that join each softmax's denominator once; neither scaled nor capped. A row that sees no key stays 0."""
    alibi_slopes: torch.Tensor | None = None
    """[num_heads] float32; slope * |key position - query position| is subtracted from each score, after scale and soft cap, before the
    mask. Source: Press et al. 2021, section 3."""
    k_scale: float = 1.0
    """Stored K times it is K."""
    v_scale: float = 1.0
    """Stored V times it is V."""


class AttentionBackend(ABC):
    """Base of attention backends. Subclass it, implement `build_metadata` and `forward`, register a `Component`.

    A layer's query row i of a request sees cached positions 0 .. p (p its own position), narrowed by window or chunk. A row
    that sees no key yields exactly 0 and LSE -inf. Cache slots that no visible position maps to may hold anything, NaN included,
    and must not influence the result.
    """

    capabilities: ClassVar[AttentionCapabilities]
    """Must equal the `Component` record's capabilities."""

    def __init__(self, setup: AttentionSetup) -> None:
        """Called once per (KV group, backend) when the engine starts. Raises nothing the resolver could have refused."""
        self.setup = setup

    @abstractmethod
    def build_metadata(self, request: MetadataRequest) -> Any:
        """Prepare what the layers of one step share. Called once a step, before the forward; never touches the cache.

        The returned object is passed to each `forward` of the step as `AttentionCall.metadata` and dropped afterwards.
        """

    @abstractmethod
    def forward(self, call: AttentionCall) -> None:
        """Attention of one layer into `call.output`. Called once per layer and step; mutates nothing else (a fused backend also
        writes `kv_cache`)."""

    def write_kv(self, write: KVWrite) -> None:
        """Store K and V of this step's tokens. Called before `forward`, once per layer and step, unless `fused_kv_write` or the layer
        shares another's KV. The default serves the standard layouts without quantisation."""
        from slotwise.engine.kv_layout import write_standard_kv

        write_standard_kv(write)

    def kv_cache_layout(self, request: KVLayoutRequest) -> KVCacheLayout:
        """Shape of one layer's cache in layout `request.name`. Override only for a private layout."""
        from slotwise.engine.kv_layout import standard_layout

        return standard_layout(request)

    def update_block_table(self, metadata: Any, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> Any | None:
        """Metadata of another KV group that differs only in these two tensors, or None if it must be built anew. Called instead of
        `build_metadata` where an instance with an equal setup, layers apart, has built `metadata` in this step; must leave it as it is."""
        return None
