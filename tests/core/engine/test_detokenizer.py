from __future__ import annotations

import random

import pytest

from slotwise.engine.detokenizer import TextDecoder

TEXTS = ["😀", "👩‍👩‍👧", "ďábelské ódy", "漢字かな", "مرحبا بالعالم", "🇨🇿🇯🇵", "Hello wörld, the end."]


def full_decode(tokenizer, token_ids, *, skip=True):
    return tokenizer.decode(token_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


def stream_pieces(decoder, token_ids, *, prompt=(), skip=True, rng=None):
    stream = decoder.stream(prompt, skip_special_tokens=skip)
    pieces, position = [], 0
    while position < len(token_ids):
        size = rng.randint(1, 3) if rng else 1
        pieces.append(stream.append(token_ids[position : position + size]))
        position += size
    return [*pieces, stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_characters_split_over_tokens_come_out_whole(any_tokenizer, text, cut):
    token_ids = any_tokenizer.encode(text, add_special_tokens=False)
    token_ids = token_ids[: len(token_ids) - cut]
    decoder = TextDecoder(any_tokenizer)
    expected = full_decode(any_tokenizer, token_ids)
    for rng in (None, random.Random(1), random.Random(2)):
        pieces = stream_pieces(decoder, token_ids, rng=rng)
        assert "".join(pieces) == expected
        assert sum(piece.count("\ufffd") for piece in pieces) == expected.count("\ufffd")


@pytest.mark.parametrize("skip", [True, False])
def test_any_ids_in_any_grouping_equal_the_full_decode(any_tokenizer, skip):
    rng = random.Random(0)
    decoder = TextDecoder(any_tokenizer)
    size = len(any_tokenizer) + 2  # Two ids without a token.
    for _ in range(400):
        token_ids = [rng.randrange(size) for _ in range(50)]
        assert "".join(stream_pieces(decoder, token_ids, skip=skip, rng=rng)) == full_decode(any_tokenizer, token_ids, skip=skip)


def test_blank_after_the_prompt_is_kept(byte_fallback):
    prompt = byte_fallback.encode("hello", add_special_tokens=False)
    output = byte_fallback.convert_tokens_to_ids(["▁wo", "r", "l", "d"])
    assert "".join(stream_pieces(TextDecoder(byte_fallback), output, prompt=prompt)) == " world"
    assert "".join(stream_pieces(TextDecoder(byte_fallback), output, prompt=[1])) == "world"
    assert "".join(stream_pieces(TextDecoder(byte_fallback), output)) == "world"


def test_newline_byte_at_the_end_of_the_prompt_is_not_repeated(byte_fallback):
    prompt = [*byte_fallback.encode("hello", add_special_tokens=False), 3 + ord("\n")]
    output = byte_fallback.convert_tokens_to_ids(["<0xC3>", "<0xA9>", "a"])
    assert "".join(stream_pieces(TextDecoder(byte_fallback), output, prompt=prompt)) == "éa"


def test_character_begun_by_the_prompt_is_completed_by_the_output(any_tokenizer):
    token_ids = any_tokenizer.encode("a😀", add_special_tokens=False)
    if len(token_ids) < 5:
        return  # This vocabulary has no bytes.
    decoder = TextDecoder(any_tokenizer)
    assert "".join(stream_pieces(decoder, token_ids[-2:], prompt=token_ids[:-2])) == "😀"


def test_long_prompts_and_outputs_cross_many_windows(any_tokenizer):
    rng = random.Random(5)
    vocab = len(any_tokenizer)
    decoder = TextDecoder(any_tokenizer)
    text_ids = any_tokenizer.encode("hello world hello world hello", add_special_tokens=False)
    for _ in range(5):
        token_ids = [token_id for _ in range(40) for token_id in rng.choice([text_ids, [rng.randrange(vocab)]])]
        assert "".join(stream_pieces(decoder, token_ids)) == full_decode(any_tokenizer, token_ids)
        prompt, output = token_ids[:200] + text_ids, text_ids + token_ids[200:]
        expected = full_decode(any_tokenizer, prompt + output)[len(full_decode(any_tokenizer, prompt)) :]
        assert "".join(stream_pieces(decoder, output, prompt=prompt)) == expected


@pytest.mark.parametrize("skip", [True, False])
def test_no_blanks_around_added_tokens(byte_level, skip):
    token_ids = byte_level.encode("<think>ok</think>1<|x|>", add_special_tokens=False)
    text = "".join(stream_pieces(TextDecoder(byte_level), token_ids, skip=skip))
    assert text == "<think>ok</think>1" + ("" if skip else "<|x|>")


def test_each_piece_comes_as_soon_as_it_is_certain(byte_level, byte_fallback):
    smile = byte_level.encode("a😀b", add_special_tokens=False)
    pieces = stream_pieces(TextDecoder(byte_level), smile)
    assert [piece for piece in pieces if piece] == ["a", "😀", "b"]
    ids = byte_fallback.convert_tokens_to_ids(["a", "<0xC3>", "<0xA9>", "b", "c"])
    assert stream_pieces(TextDecoder(byte_fallback), ids) == ["a", "", "", "éb", "c", ""]


def test_token_text_shows_special_tokens_blanks_and_broken_characters(byte_level, byte_fallback):
    decoder = TextDecoder(byte_level)
    assert decoder.token_text(byte_level.convert_tokens_to_ids("<|x|>")) == "<|x|>"
    assert decoder.token_text(byte_level.convert_tokens_to_ids("Ġb")) == " b"
    assert decoder.token_text(byte_level.encode("😀")[0]) == "\ufffd"
    fallback = TextDecoder(byte_fallback)
    assert fallback.token_text(byte_fallback.convert_tokens_to_ids("▁wo")) == " wo"
    assert fallback.token_text(byte_fallback.convert_tokens_to_ids("<0xC3>")) == "\ufffd"
    assert fallback.token_text(10**6) == ""
