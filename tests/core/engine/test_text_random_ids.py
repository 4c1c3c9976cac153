"""10,000 random sequences for each tokenizer: the pieces of a stream join to the decode of all its ids, whatever they are."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tokenizers import decoders
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from slotwise.engine.detokenizer import TextDecoder
from slotwise.model_source import find_model
from slotwise.tokenizer import load_tokenizer

NUM_SEQUENCES = 10_000
NUM_PARTS = 8
SEQUENCE_LEN = 50
CHARS = "é\nď漢م😀👩‍👩‍👧🇨�"


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(find_model("smollm2"))


@pytest.fixture(scope="session")
def tokenizer_named(byte_level, byte_fallback, smollm2_tokenizer) -> Callable[[str], PreTrainedTokenizerFast]:
    strip = type(byte_level)(tokenizer_object=byte_level.backend_tokenizer)
    strip.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    named = {"byte_level": byte_level, "byte_fallback": byte_fallback, "smollm2": smollm2_tokenizer, "byte_level_and_strip": strip}
    return named.__getitem__


def pieces_of(tokenizer) -> list[list[int]]:
    """What the second half of the sequences is made of: characters byte by byte, some cut short, in a vocabulary's own words."""
    to_unicode = bytes_to_unicode()
    vocab = tokenizer.get_vocab()
    pieces = []
    for char in CHARS:
        names = [f"<0x{byte:02X}>" if "<0xFF>" in vocab else to_unicode[byte] for byte in char.encode()]
        ids = [vocab[name] for name in names if name in vocab]
        pieces += [ids, ids, ids, ids[:-1], tokenizer.encode(char, add_special_tokens=False)]
    return [*pieces, *(tokenizer.encode(word, add_special_tokens=False) for word in ("hello", "world.", "a b c", "<think>"))]


def sequences(tokenizer, part: int):
    """NUM_SEQUENCES / NUM_PARTS lists of ids: half uniform over the vocabulary and a few ids beyond it, half mostly characters."""
    rng = random.Random(part)
    size = len(tokenizer) + 4
    pieces = pieces_of(tokenizer)
    for number in range(NUM_SEQUENCES // NUM_PARTS):
        if number % 2:
            yield rng, [rng.randrange(size) for _ in range(SEQUENCE_LEN)]
            continue
        token_ids: list[int] = []
        while len(token_ids) < SEQUENCE_LEN:
            token_ids += rng.choice(pieces) if rng.random() < 0.8 else [rng.randrange(size)]
        yield rng, token_ids[:SEQUENCE_LEN]


def groups(rng: random.Random | None, token_ids: list[int]) -> list[list[int]]:
    """One by one, or 1 to 3 at a time."""
    if rng is None:
        return [[token_id] for token_id in token_ids]
    cut, parts = 0, []
    while cut < len(token_ids):
        size = rng.randint(1, 3)
        parts.append(token_ids[cut : cut + size])
        cut += size
    return parts


@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.parametrize("name", ["byte_fallback", "smollm2", "byte_level"])
def test_pieces_join_to_the_decode_of_all_ids(tokenizer_named, name, part):
    tokenizer = tokenizer_named(name)
    decoder = TextDecoder(tokenizer)
    for _, token_ids in sequences(tokenizer, part):
        stream = decoder.stream()
        text = "".join([stream.append(group) for group in groups(None, token_ids)]) + stream.flush()
        assert text == tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.parametrize("name", ["byte_fallback", "smollm2", "byte_level"])
def test_pieces_of_groups_after_a_prompt_join_to_what_the_full_decode_has_more(tokenizer_named, name, part):
    tokenizer = tokenizer_named(name)
    decoder = TextDecoder(tokenizer)
    words = tokenizer.encode("a", add_special_tokens=False)
    for rng, token_ids in sequences(tokenizer, part):
        num_prompt = rng.choice([0, 1, 5, 20])
        prompt = [*token_ids[:num_prompt], *words] if num_prompt else []
        stream = decoder.stream(prompt, skip_special_tokens=False)
        text = "".join([stream.append(group) for group in groups(rng, token_ids)]) + stream.flush()
        before, after = (tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in (prompt, prompt + token_ids))
        assert before + text == after


def test_a_byte_level_decoder_with_further_parts_is_exact_too(tokenizer_named):
    """It is decoded by windows, where any word may be a part of a character."""
    tokenizer = tokenizer_named("byte_level_and_strip")
    decoder = TextDecoder(tokenizer)
    garbage = tokenizer.encode("😀", add_special_tokens=False)[:1] * 300
    for rng, token_ids in [*sequences(tokenizer, 0), (random.Random(0), garbage)]:
        for grouping in (None, rng):
            stream = decoder.stream()
            text = "".join([stream.append(group) for group in groups(grouping, token_ids)]) + stream.flush()
            assert text == tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
