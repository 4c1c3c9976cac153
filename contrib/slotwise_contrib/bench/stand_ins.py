"""Stand-ins for the model's parts of a step: they cost next to nothing, so that what remains is the engine.

What this file does not know: schedulers, clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from slotwise.engine.attention_dispatch import AttentionDispatch
from slotwise.interfaces.attention import AttentionLayer, CommonAttentionMetadata
from slotwise.interfaces.model import ForwardBatch, Model, ModelOutput, ProgressCallback, Weights
from slotwise.interfaces.sampler import Sampler, SampleRequest, SamplerOutput

VOCAB_SIZE = 32768


class NoModel(Model):
    """Gives logits of zeros, always the same tensor."""

    def __init__(self, max_num_rows: int) -> None:
        self._logits = torch.zeros((max_num_rows, 1))

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return ()

    def load(self, weights: Weights, progress: ProgressCallback | None = None) -> None:
        raise TypeError("A benchmark's stand-in has no parameters to load.")

    def forward(self, batch: ForwardBatch) -> ModelOutput:
        return ModelOutput(logits=self._logits[: len(batch.logits_indices)])


class ReadyTokens(Sampler):
    """Gives tokens drawn beforehand; other ones each step."""

    def __init__(self, max_num_rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._tokens = torch.randint(0, VOCAB_SIZE, (2 * max_num_rows + 1, 1), generator=generator)
        self._first = 0

    def sample(self, request: SampleRequest) -> SamplerOutput:
        num_rows = request.metadata.num_rows
        self._first = (self._first + 1) % (len(self._tokens) - num_rows + 1)
        return SamplerOutput(token_ids=self._tokens[self._first : self._first + num_rows])


class NoAttention(AttentionDispatch):
    """Takes the step's metadata and does nothing with it; building a backend's own is the backend's cost."""

    def __init__(self) -> None:
        super().__init__([], [])

    def begin_step(self, commons: Sequence[CommonAttentionMetadata], num_common_blocks: Sequence[int] = ()) -> None:
        """Nothing to prepare."""


def made_up_tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level tokenizer of VOCAB_SIZE short words, as fast to decode as a trained one."""
    vocab = {f"Ġ{index:x}": index for index in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
