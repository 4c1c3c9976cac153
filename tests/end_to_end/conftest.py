"""Whole engines on real and on tiny random models, and what transformers says of the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from slotwise import LLM
from slotwise.engine.front_end import front_end_of, resolve_config
from slotwise.engine.plan import plan_engine
from slotwise.interfaces.model import Model
from slotwise.model_source import find_model


class SharedModel:
    """Engines with different settings around one set of loaded weights, so that a test does not load them again."""

    def __init__(self, source: str, **overrides: Any) -> None:
        self.source = source
        self._overrides = overrides
        self._model: Model | None = None

    def engine(self, **overrides: Any) -> LLM:
        """An engine with these settings on top of the shared ones."""
        plan = plan_engine(resolve_config(self.source, None, {**self._overrides, **overrides}))
        front_end = front_end_of(plan, loaded_model=self._model)
        if self._model is None and plan.model_plan is not None:
            self._model = plan.model_plan.instance
        return LLM.from_front_end(front_end)


def _greedy_of(model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
    """What `transformers` generates, each prompt alone, no padding, never stopping early."""
    outputs = []
    for prompt in prompts:
        with torch.inference_mode():
            ids = model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        outputs.append(ids[0, len(prompt) :].tolist())
    return outputs


@pytest.fixture(scope="session")
def smollm2() -> SharedModel:
    return SharedModel("smollm2", dtype="float32", max_model_len=1024)


@pytest.fixture(scope="session")
def smollm2_reference(smollm2: SharedModel, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """The same weights in transformers' own model, run by transformers' own code."""
    source = find_model("smollm2")
    from slotwise.interfaces.model import WeightsSetup
    from slotwise_plugins.weights.gguf_weights import GgufWeights

    model = AutoModelForCausalLM.from_config(source.hf_config, dtype=torch.float32).eval()
    state = dict(GgufWeights(WeightsSetup(path=source.weights_path, hf_config=source.hf_config)).tensors())
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    return model


def _save_tiny_model(path: Path, config: Any, seed: int = 0) -> PreTrainedModel:
    """A random model of that configuration, saved as safetensors.

    Its weights are so wide that every position counts: outputs vary, and no choice is a near tie.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.4)
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    return model


@pytest.fixture(scope="session")
def greedy_of() -> Callable[..., list[list[int]]]:
    return _greedy_of


@pytest.fixture(scope="session")
def save_tiny_model() -> Callable[..., PreTrainedModel]:
    return _save_tiny_model


@pytest.fixture(scope="session")
def shared_model() -> type[SharedModel]:
    return SharedModel


@pytest.fixture
def assert_idle() -> Callable[[LLM], None]:
    """All requests ended and no block is lost."""

    def check(llm: LLM) -> None:
        stats = llm.engine.core.stats()
        assert stats.is_idle, dataclasses.asdict(stats)

    return check


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with a byte-level tokenizer (id = byte, 256 = end) and a chat template. 4 heads, 2 KV heads, float32."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("tiny_model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[answer]"
    fast.save_pretrained(path)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    _save_tiny_model(path, config)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_model: Path) -> SharedModel:
    return SharedModel(str(tiny_model), dtype="float32")
