"""Prompts that end within a character: which text belongs to the output, for byte-level and byte-fallback tokenizers."""

from __future__ import annotations

import codecs
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders
from transformers.convert_slow_tokenizer import bytes_to_unicode

from slotwise.engine.detokenizer import TextDecoder

REPLACEMENT = "\ufffd"
TEXTS = ["ab 😀 cd", "👩‍👩‍👧‍👦!", "ďábelské ódy", "漢字かな交じり文。", "مرحبا بالعالم", "🇨🇿🇯🇵", "e\u0301ö\n \u200d"]
BYTE_RUNS = st.lists(
    st.sampled_from([*(char.encode() for char in "aé漢😀\ufffd"), b"\xe2", b"\xf0\x9f", b"\x82", b"\xff"]), max_size=4
).map(b"".join)


def byte_ids(tokenizer, data: bytes) -> list[int]:
    """One token per byte."""
    vocab = tokenizer.get_vocab()
    to_unicode = bytes_to_unicode()
    return [vocab[f"<0x{byte:02X}>" if "<0xFF>" in vocab else to_unicode[byte]] for byte in data]


def full_decode(tokenizer, token_ids):
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def streamed(tokenizer, prompt, output, rng=None):
    """The text of `output`, fed one by one or in random groups of 1 to 3; no group's ids change it."""
    stream = TextDecoder(tokenizer).stream(prompt)
    text, position = "", 0
    while position < len(output):
        size = rng.randint(1, 3) if rng else 1
        text += stream.append(output[position : position + size])
        position += size
    return text + stream.flush()


@pytest.fixture(scope="session", params=["byte_level", "byte_fallback", "byte_level_and_strip"])
def with_bytes(request, byte_level, byte_fallback):
    """Tokenizers with all bytes; the last joins bytes like the first, but is decoded by windows."""
    if request.param == "byte_level_and_strip":
        tokenizer = type(byte_level)(tokenizer_object=byte_level.backend_tokenizer)
        tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        return tokenizer
    return {"byte_level": byte_level, "byte_fallback": byte_fallback}[request.param]


@pytest.mark.parametrize("text", TEXTS)
def test_cut_at_every_byte_the_output_is_the_characters_that_the_prompt_did_not_complete(with_bytes, text):
    data = text.encode()
    rng = random.Random(len(data))
    for cut in range(1, len(data) + 1):
        prompt, output = byte_ids(with_bytes, data[:cut]), byte_ids(with_bytes, data[cut:])
        expected = text[len(data[:cut].decode(errors="ignore")) :]
        assert streamed(with_bytes, prompt, output) == streamed(with_bytes, prompt, output, rng) == expected


def test_a_real_replacement_character_begun_by_the_prompt_is_the_outputs(byte_level, byte_fallback):
    data = "a\ufffdb".encode()
    for tokenizer in (byte_level, byte_fallback):
        texts = [streamed(tokenizer, byte_ids(tokenizer, data[:cut]), byte_ids(tokenizer, data[cut:])) for cut in (1, 2, 3, 4)]
        assert texts == ["\ufffdb", "\ufffdb", "\ufffdb", "b"]


@pytest.mark.parametrize("text", TEXTS)
def test_words_cut_at_every_token_of_a_text_give_its_rest(byte_level, text):
    token_ids = byte_level.encode(text, add_special_tokens=False)
    for cut in range(1, len(token_ids)):
        known = full_decode(byte_level, token_ids[:cut]).rstrip(REPLACEMENT)
        assert streamed(byte_level, token_ids[:cut], token_ids[cut:]) == text.removeprefix(known)


@pytest.mark.parametrize("text", TEXTS)
def test_an_output_that_breaks_the_prompts_character_begins_without_a_replacement(with_bytes, text):
    data = text.encode()
    (word,) = with_bytes.encode("a", add_special_tokens=False)[-1:]
    for cut in range(1, len(data)):
        prompt = byte_ids(with_bytes, data[:cut])
        assert streamed(with_bytes, prompt, [word, word]) == "aa"
        assert streamed(with_bytes, prompt, []) == ""


def test_an_output_of_skipped_tokens_alone_is_empty_after_half_a_character(byte_level, byte_fallback):
    for tokenizer in (byte_level, byte_fallback):
        prompt = byte_ids(tokenizer, b"a\xf0\x9f")
        assert streamed(tokenizer, prompt, tokenizer.convert_tokens_to_ids(["</s>", "<s>"])) == ""


def test_bytes_that_spoil_the_prompts_whole_run_show_only_themselves(byte_fallback):
    prompt = byte_ids(byte_fallback, "é漢".encode())
    assert streamed(byte_fallback, prompt, byte_ids(byte_fallback, b"\xff\xfe")) == REPLACEMENT * 2
    assert full_decode(byte_fallback, prompt + byte_ids(byte_fallback, b"\xff\xfe")) == REPLACEMENT * 7


def test_after_a_flush_within_a_character_the_stream_goes_on(with_bytes):
    stream = TextDecoder(with_bytes).stream()
    first = stream.append(byte_ids(with_bytes, "é\U0001f600".encode()[:-1])) + stream.flush()
    rest = stream.append(with_bytes.encode("hello", add_special_tokens=False)) + stream.flush()
    assert first == full_decode(with_bytes, byte_ids(with_bytes, "é\U0001f600".encode()[:-1]))
    assert rest.strip() == "hello"


@settings(max_examples=400, deadline=None)
@given(BYTE_RUNS, BYTE_RUNS)
def test_any_bytes_of_a_byte_level_tokenizer_on_both_sides_of_the_prompts_end(byte_level, before, after):
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(before)
    begun = decoder.getstate()[0]
    expected = (begun + after).decode(errors="replace")
    if begun and not any(is_text((begun + after)[:length]) for length in range(len(begun) + 1, 5)):
        expected = expected[1:]
    prompt, output = byte_ids(byte_level, before), byte_ids(byte_level, after)
    assert streamed(byte_level, prompt, output) == expected
    assert full_decode(byte_level, prompt + output).endswith(expected)


@settings(max_examples=400, deadline=None)
@given(BYTE_RUNS, BYTE_RUNS, st.sampled_from(["", "a", "he"]))
def test_any_bytes_of_a_byte_fallback_tokenizer_on_both_sides_of_the_prompts_end(byte_fallback, before, after, word):
    end = byte_fallback.convert_tokens_to_ids([word]) if word else []
    prompt, output = byte_ids(byte_fallback, before), byte_ids(byte_fallback, after)
    run = before + after
    expected = run.decode()[len(before.decode(errors="ignore")) :] if is_text(run) else REPLACEMENT * len(after)
    start = byte_fallback.convert_tokens_to_ids(["h"])
    assert streamed(byte_fallback, start + prompt, output + end) == expected + word
    assert full_decode(byte_fallback, start + prompt + output + end).endswith(expected + word)


def is_text(data: bytes) -> bool:
    """Whether these are whole characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return bool(data)
