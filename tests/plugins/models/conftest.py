"""A small stand-in for the engine: paged caches, ragged batches, chunks. And tiny configs of the families we serve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers

from slotwise.engine.kv_layout import allocate, standard_layout
from slotwise.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionSetup,
    CommonAttentionMetadata,
    KVLayoutRequest,
    KVWrite,
    MetadataRequest,
)
from slotwise.interfaces.model import ForwardBatch, Model, ModelSetup, Weights, WeightsSetup
from slotwise_backends.reference import ReferenceAttention
from slotwise_backends.torch_sdpa import TorchSdpaAttention
from slotwise_plugins.models.transformers_model import TransformersModel
from slotwise_plugins.weights.random_weights import RandomWeights

BACKENDS = {"reference": ReferenceAttention, "torch_sdpa": TorchSdpaAttention}
VOCAB_SIZE = 101


class PagedHarness:
    """Plays the engine for one model: one pool with one KV group, caches filled with NaN so that nothing unwritten may be read."""

    def __init__(
        self, model: Model, backend_class: type[AttentionBackend], *, block_size: int = 4, num_blocks: int = 64, layout: str = "nhd"
    ) -> None:
        self.model, self.block_size = model, block_size
        self.dtype = model.setup.dtype
        self.backend = backend_class(
            AttentionSetup(
                layers=model.attention_layers,
                block_size=block_size,
                kv_layout=layout,
                dtype=self.dtype,
                kv_dtype="auto",
                device="cpu",
                max_num_reqs=8,
                max_num_batched_tokens=512,
                max_model_len=num_blocks * block_size,
            )
        )
        self.caches = []
        for layer in model.attention_layers:
            request = KVLayoutRequest(
                name=layout,
                num_blocks=num_blocks,
                block_size=block_size,
                num_kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
                dtype=self.dtype,
            )
            self.caches.append(allocate(standard_layout(request), "cpu").fill_(math.nan))
        self.free_blocks = list(range(num_blocks - 1, 0, -1))
        self.blocks: dict[int, list[int]] = {}
        self.metadata: Any = None
        self.slot_mapping = torch.empty(0)

    def attend(self, layer_index, query, key, value, *, sinks=None):
        layer = self.model.attention_layers[layer_index]
        cache = self.caches[layer_index]
        self.backend.write_kv(KVWrite(layer=layer, key=key, value=value, kv_cache=cache, slot_mapping=self.slot_mapping))
        output = torch.full(query.shape, math.nan, dtype=query.dtype)
        self.backend.forward(
            AttentionCall(
                layer=layer, query=query, key=key, value=value, kv_cache=cache, metadata=self.metadata, output=output, sinks=sinks
            )
        )
        return output

    def step(self, rows: list[tuple[int, list[int], int]]) -> torch.Tensor:
        """rows: (request, the tokens to compute, position of the first). Returns the logits of every token."""
        for request, tokens, start in rows:
            blocks = self.blocks.setdefault(request, [])
            while len(blocks) * self.block_size < start + len(tokens):
                blocks.append(self.free_blocks.pop())
        query_lens = [len(tokens) for _, tokens, _ in rows]
        seq_lens = torch.tensor([start + len(tokens) for _, tokens, start in rows], dtype=torch.int32)
        positions = torch.cat([torch.arange(start, start + len(tokens)) for _, tokens, start in rows])
        width = max(len(self.blocks[request]) for request, _, _ in rows) + 1
        table = torch.tensor(
            [self.blocks[request] + [0] * (width - len(self.blocks[request])) for request, _, _ in rows], dtype=torch.int32
        )
        row_of_token = torch.arange(len(rows)).repeat_interleave(torch.tensor(query_lens))
        starts = torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32)
        self.slot_mapping = table[row_of_token, positions // self.block_size].long() * self.block_size + positions % self.block_size
        common = CommonAttentionMetadata(
            num_reqs=len(rows),
            num_tokens=sum(query_lens),
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            block_table=table,
            slot_mapping=self.slot_mapping,
            positions=positions,
            max_query_len=max(query_lens),
            max_seq_len=int(seq_lens.max()),
            is_prefilling=torch.zeros(len(rows), dtype=torch.bool),
        )
        self.metadata = self.backend.build_metadata(MetadataRequest(common=common))
        ids = torch.tensor([token for _, tokens, _ in rows for token in tokens])
        with torch.inference_mode():
            batch = ForwardBatch(input_ids=ids, positions=positions, logits_indices=torch.arange(len(ids)), attention=self)
            return self.model.forward(batch).logits

    def run(self, sequences: list[list[int]], chunk_lens: list[int]) -> list[torch.Tensor]:
        """All sequences together, request r advancing by chunk_lens[(step + r) % n] tokens a step: logits [len, vocab] of each."""
        done, logits, step = [0] * len(sequences), [[] for _ in sequences], 0
        while any(done[r] < len(sequence) for r, sequence in enumerate(sequences)):
            rows = []
            for r, sequence in enumerate(sequences):
                count = min(chunk_lens[(step + r) % len(chunk_lens)], len(sequence) - done[r])
                if count:
                    rows.append((r, sequence[done[r] : done[r] + count], done[r]))
            flat = self.step(rows)
            for (r, tokens, _), part in zip(rows, flat.split([len(tokens) for _, tokens, _ in rows]), strict=True):
                logits[r].append(part)
                done[r] += len(tokens)
            step += 1
        return [torch.cat(parts) for parts in logits]


class TensorWeights(Weights):
    """Given tensors as a weight source."""

    def __init__(self, named: dict[str, torch.Tensor]) -> None:
        self.named = named

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.named.items()

    @property
    def num_tensors(self) -> int:
        return len(self.named)


def _config(name: str, **facts: Any) -> Any:
    common = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return getattr(transformers, f"{name}Config")(**common | facts)


CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: _config("Llama"),
    "llama3_rope": lambda: _config(
        "Llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "yarn_rope": lambda: _config(
        "Llama", rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    ),
    "qwen2": lambda: _config("Qwen2"),
    "qwen2_window": lambda: _config("Qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": lambda: _config("Qwen3", head_dim=16, tie_word_embeddings=True),
    "mistral": lambda: _config("Mistral", sliding_window=6),
    "gemma2": lambda: _config("Gemma2", head_dim=16, sliding_window=6, query_pre_attn_scalar=24, attn_logit_softcapping=2.0),
    "gemma3": lambda: _config("Gemma3Text", head_dim=16, sliding_window=6, sliding_window_pattern=2, num_hidden_layers=4),
    "phi3": lambda: _config("Phi3", sliding_window=7),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB_SIZE, n_embd=32, n_layer=3, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2
    ),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    ),
    "gpt_oss": lambda: _config(
        "GptOss",
        head_dim=16,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
}


@pytest.fixture
def configs() -> dict[str, Callable[[], Any]]:
    return CONFIGS


@pytest.fixture
def harness() -> type[PagedHarness]:
    return PagedHarness


@pytest.fixture
def tensor_weights() -> type[TensorWeights]:
    return TensorWeights


@pytest.fixture
def make_model() -> Callable[..., TransformersModel]:
    def make(config: Any, dtype: str = "float32", weights: Weights | None = None, seed: int = 0) -> TransformersModel:
        model = TransformersModel(ModelSetup(hf_config=config, dtype=dtype, device="cpu"))
        model.load(weights or RandomWeights(WeightsSetup(path=None, hf_config=config, seed=seed)))
        return model

    return make


@pytest.fixture
def make_eager() -> Callable[..., Any]:
    """The model's own implementation with the same weights."""

    def make(config: Any, dtype: str = "float32", seed: int = 0) -> Any:
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="eager", dtype=getattr(torch, dtype)
        ).eval()
        weights = RandomWeights(WeightsSetup(path=None, hf_config=config, seed=seed))
        own = model.state_dict()
        with torch.no_grad():
            for name, tensor in weights.tensors():
                own[name].copy_(tensor)
        return model

    return make


@pytest.fixture(params=sorted(BACKENDS))
def backend_class(request: pytest.FixtureRequest) -> type[AttentionBackend]:
    return BACKENDS[request.param]
