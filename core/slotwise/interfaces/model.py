"""The `model` and `weights` slots: hidden states and logits from token ids and an attention call; parameters by name.

A model holds no KV and no batch state. It asks for attention through `AttentionContext.attend` and does not know which backend answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slotwise.interfaces.attention import AttentionLayer

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel
    from transformers import PretrainedConfig

    from slotwise.interfaces.linear import BlockRows, LinearBackend


ProgressCallback = Callable[[int, int], None]
"""(done, total) -> None, in bytes or tensors; called now and then during long work."""


class AttentionContext(Protocol):
    """Given to a model with each forward; valid during it."""

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        *,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of one layer over its cache. Called once per attention layer and forward.

        query: [num_tokens, num_heads, head_dim]; key, value: [num_tokens, num_kv_heads, head_dim], None when the layer shares another's
        KV; for MLA layers key is [num_tokens, 1, head_dim] and value None. sinks, alibi_slopes: [num_heads] float32.
        Returns [num_tokens, num_heads, value_dim], contiguous.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardBatch:
    """One step's tokens, all requests in one row, no padding between them."""

    input_ids: torch.Tensor
    """[num_tokens] int64."""
    positions: torch.Tensor
    """[num_tokens] int64."""
    logits_indices: torch.Tensor
    """[num_sampled] int64, rows of the hidden states that get logits."""
    attention: AttentionContext
    """Where the layers' attention is computed."""
    wants_hidden_states: bool = False
    """`ModelOutput.hidden_states` is wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOutput:
    """Result of a forward."""

    logits: torch.Tensor
    """[num_sampled, vocab_size], whatever the model does to them (soft cap, scale) done."""
    hidden_states: torch.Tensor | None = None
    """[num_tokens, hidden_size], what the logits are made of, final norm included; given if wanted and `gives_hidden_states`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """What is known of a model before its weights are read; the resolver's view of it."""

    architecture: str
    """Name of the Hugging Face architecture, e.g. `"LlamaForCausalLM"`."""
    dtype: str
    """The dtype the engine will compute in."""
    vocab_size: int
    """Rows of the logits."""
    max_model_len: int
    """The model's own limit in positions."""
    layers: tuple[AttentionLayer, ...]
    """Attention layers by index."""
    weights_suffix: str | None = None
    """Ending of the weight files (`".gguf"`), None if there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCapabilities:
    """What a model implementation claims."""

    architectures: tuple[str, ...] | None = None
    """Architecture names of Hugging Face configs (`"LlamaForCausalLM"`); None = any decoder-only causal LM."""
    devices: tuple[str, ...] = ("cpu",)
    """Torch device types it runs on."""
    dtypes: tuple[str, ...] = ("float32",)
    """Dtypes it computes in."""
    uses_linear: bool = False
    """Keeps its matrices in `ModelSetup.linear`; False = in a way of its own, and a `linear` component may not be named."""
    takes_blocks: bool = False
    """`load` understands `BlockRows` among the weights, and hands them to `ModelSetup.linear`."""
    preference: Mapping[str, int] = field(default_factory=dict)
    """Device type -> rank for `use = "auto"`, higher wins, absent = never chosen by `auto`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSetup:
    """What a model is made for."""

    hf_config: PretrainedConfig
    """The Hugging Face configuration of the model; read only."""
    dtype: str
    """Dtype of parameters and activations, torch's name."""
    device: str
    """Torch device, `cpu`, `cuda:0`, ..."""
    max_model_len: int | None = None
    """Longest sequence the engine will let a request have; None = not known, the model's own limit holds."""
    seed: int = 0
    """Seed of whatever the model draws itself."""
    linear: LinearBackend | None = None
    """What stores and multiplies the weight matrices; given to components that claim `uses_linear`."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


class Model(ABC):
    """Base of model implementations. After `__init__` the parameters exist but hold nothing; `load` fills them."""

    def __init__(self, setup: ModelSetup) -> None:
        self.setup = setup

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Rows of the logits; ids 0 .. vocab_size - 1 may be fed."""

    @property
    @abstractmethod
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """Facts of each attention layer, `index` 0, 1, 2, ..."""

    @abstractmethod
    def load(self, weights: Weights, progress: ProgressCallback | None = None) -> None:
        """Fill the parameters. Raises WeightsError naming what is missing, left over or of the wrong shape."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> ModelOutput:
        """Called once a step, under `torch.inference_mode`."""

    @property
    def gives_hidden_states(self) -> bool:
        """Whether `forward` can give hidden states, which pooling and some proposers need, and the two methods below work."""
        return False

    def embed_tokens(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: [num_tokens] int64. Returns [num_tokens, hidden_size], what the first layer gets. For proposers."""
        raise NotImplementedError(f"{type(self).__name__} does not give embeddings of tokens")

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """hidden_states: [num_tokens, hidden_size], as `ModelOutput` has them. Returns [num_tokens, vocab_size]. For proposers."""
        raise NotImplementedError(f"{type(self).__name__} does not give logits of hidden states")


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsCapabilities:
    """Which sources an implementation reads."""

    suffixes: tuple[str, ...] = ()
    """File endings (`".safetensors"`), for `use = "auto"`."""
    needs_files: bool = True
    """False for a source that makes weights up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsSetup:
    """Where weights come from."""

    path: Path | None
    """A file or directory; None for sources that make weights up."""
    hf_config: PretrainedConfig
    """The Hugging Face configuration of the model; read only."""
    seed: int = 0
    """Seed of weights that are made up."""
    block_schemes: tuple[str, ...] = ()
    """Schemes of matrices that `tensors` may give as `BlockRows`; all else dense."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


class Weights(ABC):
    """Base of weight sources: an iterable of named tensors under the names of the Hugging Face model.

    Opening checks everything that can be checked without reading the data: missing shards, truncation, unknown tensor types. Raises
    WeightsError naming the file.
    """

    def __init__(self, setup: WeightsSetup) -> None:
        self.setup = setup

    @abstractmethod
    def tensors(self) -> Iterator[tuple[str, torch.Tensor | BlockRows]]:
        """Each stored tensor once, dense, in its stored float dtype or dequantised to float32; on the CPU. The tensor may be a view
        of a mapped file: copy, never write. Matrices whose scheme is among `WeightsSetup.block_schemes` may come as they are stored."""

    @property
    @abstractmethod
    def num_tensors(self) -> int:
        """How many `tensors` yields, for progress."""

    def metadata(self) -> Mapping[str, Any]:
        """What the source says of itself (format, quantisation), for people."""
        return {}
