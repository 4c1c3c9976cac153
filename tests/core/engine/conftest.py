"""Small tokenizers of the kinds that exist, built in memory."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "Hello world, the quick brown fox jumps over the lazy dog. exaggerated exaggerating big exaggerated claims",
    "ďábelské ódy, wörld, naïve café. 漢字かな交じり文。 مرحبا بالعالم 😀 👩‍👩‍👧 🇨🇿",
    "a b c d e f g DEF GHI JKL Alice: Bob: \n\n def main():\n    return 1",
]


def byte_level_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE of ~400 tokens, one added plain token `<think>` and one special `<|x|>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False), AddedToken("é漢 x", special=False)])
    tokenizer.add_special_tokens([AddedToken("<|x|>", special=True), AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_fallback_tokenizer(*, strip: bool = True) -> PreTrainedTokenizerFast:
    """SentencePiece-like BPE with `<0xNN>` tokens, as Llama 2 (strip) and Gemma (no strip) have it."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["▁", "h", "e", "l", "o", "w", "r", "d", "a", "b", "c", "漢", "é", "�", ".", ",", "▁▁"]
    merges = [("h", "e"), ("l", "l"), ("▁", "w"), ("▁w", "o"), ("▁", "he"), ("▁he", "ll"), ("▁hell", "o"), ("▁", "▁")]
    words = [*pieces, *(left + right for left, right in merges)]
    vocab = {token: index for index, token in enumerate(dict.fromkeys([*tokens, *words]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if strip else "never", split=False)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strip else parts)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens[:3]])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def unigram_tokenizer() -> PreTrainedTokenizerFast:
    """Unigram with byte fallback and a Metaspace decoder."""
    pieces = ["<unk>", "▁", "▁hello", "▁world", "he", "llo", "漢", "a", "b", "!"]
    vocab = [(piece, -float(index)) for index, piece in enumerate([*pieces, *(f"<0x{byte:02X}>" for byte in range(256))])]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def word_piece_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {token: index for index, token in enumerate(["[UNK]", "[CLS]", "hello", "##lo", "##s", "world", ".", ",", "don", "'", "t"])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken("[CLS]", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def suffix_bpe_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {token: index for index, token in enumerate(["a", "b</w>", "hello</w>", "wor", "ld</w>", "!</w>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerFast:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def byte_fallback() -> PreTrainedTokenizerFast:
    return byte_fallback_tokenizer()


@pytest.fixture(scope="session")
def byte_level_with_bos() -> PreTrainedTokenizerFast:
    """Adds <s> by itself, as Llama 3 does."""
    tokenizer = byte_level_tokenizer(bos_token="<s>", eos_token="</s>")
    bos = tokenizer.convert_tokens_to_ids("<s>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return tokenizer


@pytest.fixture(scope="session", params=["byte_level", "byte_fallback", "byte_fallback_no_strip", "unigram", "word_piece", "suffix_bpe"])
def any_tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return {
        "byte_level": byte_level_tokenizer,
        "byte_fallback": byte_fallback_tokenizer,
        "byte_fallback_no_strip": lambda: byte_fallback_tokenizer(strip=False),
        "unigram": unigram_tokenizer,
        "word_piece": word_piece_tokenizer,
        "suffix_bpe": suffix_bpe_tokenizer,
    }[request.param]()
