"""Small tokenizers of both families, and grammars compiled for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from slotwise.interfaces.grammar import CompiledGrammar, GrammarBackend, GrammarError, GrammarMatcher, GrammarSetup, GrammarSpec
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.registry import ComponentRegistry

NUM_PADDED = 21
"""Ids of the model behind those of the tokenizer."""


def _with_special(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<pad>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte, and a few words and pieces of JSON."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("a", "b"), ('"', ":"), ("t", "r"), ("tr", "u"), ("tru", "e"), ("1", "2"), ("{", '"'), ("}", "}")]
    vocab = {letter: index for index, letter in enumerate([*alphabet, *(first + second for first, second in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_special(tokenizer)


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Letters, some words, and a token for each byte."""
    letters = [chr(code) for code in range(33, 127)]
    words = ["<unk>", *(f"<0x{code:02X}>" for code in range(256)), "▁", *letters, "ab", "▁a", '":', "true", "12", '{"', "é"]
    merges = [("a", "b"), ("▁", "a"), ('"', ":"), ("1", "2"), ("{", '"')]
    tokenizer = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_special(tokenizer)


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level_tokenizer,
    "byte_fallback": byte_fallback_tokenizer,
}


class Engine:
    """One grammar component and one tokenizer."""

    def __init__(self, backend: str, tokenizer: Any, *, num_padded: int = NUM_PADDED, end: int | None = None, **options: Any) -> None:
        self.name = backend
        self.tokenizer = tokenizer
        self.vocab_size = len(tokenizer) + num_padded
        self.end = int(tokenizer.eos_token_id) if end is None else end
        loaded = ComponentRegistry().get("grammar", backend)
        made = loaded.component.options
        assert made is not None
        setup = GrammarSetup(tokenizer=tokenizer, vocab_size=self.vocab_size, end_token_id=self.end, options=made(**options))
        self.backend: GrammarBackend = import_implementation(loaded)(setup)

    def compile(self, kind: str, text: Any, *, any_whitespace: bool = True) -> CompiledGrammar:
        written = text if isinstance(text, str) else json.dumps(text)
        return self.backend.compile(GrammarSpec(kind=kind, text=written, any_whitespace=any_whitespace))

    def compile_or_refuse(self, kind: str, text: Any) -> CompiledGrammar | str:
        """The grammar, or why there is none."""
        try:
            return self.compile(kind, text)
        except GrammarError as error:
            return str(error)

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def takes(self, grammar: CompiledGrammar, text: str) -> bool:
        """Whether the text is a whole output."""
        matcher = grammar.matcher()
        return all(matcher.accept(token_id) for token_id in self.ids(text)) and matcher.accept(self.end)

    def bytes_of(self, token_id: int) -> str:
        """What tells tokens apart by content; special ones by their names."""
        token = self.tokenizer.convert_ids_to_tokens(token_id) if token_id < len(self.tokenizer) else f"no token {token_id}"
        is_byte = token.startswith("<0x") and len(token) == 6
        return chr(int(token[3:5], 16)).replace(" ", "▁") if is_byte and int(token[3:5], 16) < 128 else token

    def allowed(self, matcher: GrammarMatcher) -> set[int]:
        mask = torch.full((-(-self.vocab_size // 32),), 0x5A5A5A5A, dtype=torch.int32)
        matcher.fill_mask(mask)
        return set(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little").nonzero()[0].tolist())


@pytest.fixture(scope="session", params=["llguidance", "xgrammar"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def engine(backend_name: str) -> Engine:
    return Engine(backend_name, byte_level_tokenizer())


@pytest.fixture(scope="session", params=TOKENIZERS)
def any_engine(request: pytest.FixtureRequest, backend_name: str) -> Engine:
    return Engine(backend_name, TOKENIZERS[request.param]())


@pytest.fixture(scope="session")
def make_engine(backend_name: str) -> Callable[..., Engine]:
    """With a tokenizer, or the name of one."""
    return lambda tokenizer="byte_level", **more: Engine(backend_name, TOKENIZERS.get(tokenizer, lambda: tokenizer)(), **more)
