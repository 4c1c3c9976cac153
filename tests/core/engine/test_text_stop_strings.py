"""Stop strings over whole requests: what is shown equals a naive search of the whole text after every token, however it is sent."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.output_processor import OutputProcessor
from slotwise.engine.outputs import EngineCoreOutput, FinishReason
from slotwise.sampling_params import OutputKind, SamplingParams

TO_UNICODE = bytes_to_unicode()
ALPHABET = "ab\né😀"
TOKENS = st.lists(st.binary(max_size=0) | st.text(ALPHABET, min_size=1, max_size=3).map(str.encode), max_size=8).map(b"".join)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3)
SENDING = st.tuples(st.sampled_from(OutputKind), st.integers(1, 4))


def naive(texts: list[str], stops: list[str], *, include: bool, min_tokens: int) -> tuple[str, str | None]:
    """`texts[i]`: what is certain after i + 1 tokens. The first stop in list order that ends in a new part past min_tokens cuts."""
    for index, text in enumerate(texts):
        num_old = len(texts[index - 1]) if index else 0
        for stop in stops:
            ends = [end for end in range(num_old + 1, len(text) + 1) if text[:end].endswith(stop)]
            if ends and index + 1 > min_tokens:
                return text[: ends[0] if include else ends[0] - len(stop)], stop
    return texts[-1] if texts else "", None


def request_with(params: SamplingParams) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id="r",
        external_id="r",
        prompt="p",
        prompt_token_ids=[],
        sampling_params=params,
        eos_token_ids=frozenset(),
        arrival_time=0.0,
    )


def shown(tokenizer, steps: list[list[int]], stops, *, include=False, min_tokens=0, sending=(OutputKind.DELTA, 1)):
    """Text and stop reason of a request that gets these steps, as its consumer sees them."""
    kind, interval = sending
    params = SamplingParams(
        max_tokens=1000, stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens, output_kind=kind, stream_interval=interval
    )
    processor = OutputProcessor(tokenizer)
    processor.add_request(request_with(params))
    text, reason = "", None
    for index, step in enumerate(steps):
        finish = FinishReason.LENGTH if index == len(steps) - 1 else None
        output = EngineCoreOutput(request_id="r", new_token_ids=step, finish_reason=finish)
        for sent in processor.process([output]).request_outputs:
            completion = sent.outputs[0]
            assert "\ufffd" not in completion.text
            text = text + completion.text if kind is OutputKind.DELTA else completion.text
            reason = completion.stop_reason
    return text, reason


@pytest.fixture(scope="session")
def ids_of_bytes(byte_level):
    vocab = byte_level.get_vocab()
    return lambda data: [vocab[TO_UNICODE[byte]] for byte in data]


@settings(max_examples=300, deadline=None)
@given(TOKENS, STOPS, st.booleans(), st.integers(0, 6), SENDING)
def test_text_equals_a_naive_search_token_by_token(byte_level, ids_of_bytes, data, stops, include, min_tokens, sending):
    """A token per byte, so that characters and stops are split everywhere."""
    texts = [data[: count + 1].decode(errors="ignore") for count in range(len(data))]
    steps = [[token_id] for token_id in ids_of_bytes(data)]
    expected = naive(texts, stops, include=include, min_tokens=min_tokens)
    assert shown(byte_level, steps, stops, include=include, min_tokens=min_tokens, sending=sending) == expected


@settings(max_examples=300, deadline=None)
@given(st.text(ALPHABET + "Helo wrd", max_size=30), st.data(), st.booleans(), st.integers(0, 6), SENDING)
def test_with_one_stop_string_no_split_into_steps_changes_the_text(byte_level, text, data, include, min_tokens, sending):
    token_ids = byte_level.encode(text, add_special_tokens=False)
    stop = data.draw(
        st.text(ALPHABET, min_size=1, max_size=4) | st.sampled_from([text[start : start + 3] for start in range(len(text))] or ["a"])
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(token_ids) - 1, 1)))))
    bounds = [0, *(cut for cut in cuts if cut < len(token_ids)), len(token_ids)]
    steps = [token_ids[start:end] for start, end in pairwise(bounds)]
    one_by_one = shown(byte_level, [[token_id] for token_id in token_ids], [stop], include=include, min_tokens=min_tokens)
    assert shown(byte_level, steps, [stop], include=include, min_tokens=min_tokens, sending=sending) == one_by_one


@pytest.mark.parametrize("kind", OutputKind)
@pytest.mark.parametrize(("text", "stops", "include", "expected"), [
    ("x DEFGHIJ y", ["DEFGHIJ"], False, ("x ", "DEFGHIJ")),
    ("x DEFGHIJ y", ["DEFGHIJ"], True, ("x DEFGHIJ", "DEFGHIJ")),
    ("Ali Alic Alice; 😀 Hi", ["\n", "Alice:"], False, ("Ali Alic Alice; 😀 Hi", None)),
    ("aaab", ["aab"], False, ("a", "aab")),
    ("ab 👩‍👩‍👧 cd", ["👩‍👩‍👧"], False, ("ab ", "👩‍👩‍👧")),
    ("ab 👩‍👩 cd", ["👩‍👩‍👧"], False, ("ab 👩‍👩 cd", None)),
    ("a STOPPED", ["STOPPED", "STOP"], False, ("a ", "STOP")),
    ("a STOPPED", ["STOP", "STOPPED"], True, ("a STOP", "STOP")),
    ("a STOPPER", ["PER", "STOPPED"], False, ("a STOP", "PER")),
    ("x 🇨🇿", ["🇨", "🇨🇿"], False, ("x ", "🇨")),
])  # fmt: skip
def test_stops_split_over_bytes(byte_level, ids_of_bytes, kind, text, stops, include, expected):
    steps = [[token_id] for token_id in ids_of_bytes(text.encode())]
    assert shown(byte_level, steps, stops, include=include, sending=(kind, 1)) == expected


@pytest.mark.parametrize(("stops", "expected"), [
    (["STOPPED", "STOP"], ("a ", "STOP")),
    (["STOP", "STOPPED"], ("a ", "STOP")),
    (["b", "STOP"], ("a ", "STOP")),
    (["OP", "STOP"], ("a ST", "OP")),
    (["STOP", "OP"], ("a ", "STOP")),
])  # fmt: skip
def test_the_first_token_that_completes_a_stop_ends_the_text_and_the_list_order_decides_within_it(byte_level, stops, expected):
    """The same for tokens that come one by one and all at once, as they do with speculation."""
    token_ids = byte_level.encode("a STOPPED b", add_special_tokens=False)
    for steps in ([token_ids], [[token_id] for token_id in token_ids]):
        assert shown(byte_level, steps, stops) == expected


def test_each_delta_is_all_text_that_cannot_be_part_of_a_stop(byte_level, ids_of_bytes):
    processor = OutputProcessor(byte_level)
    processor.add_request(request_with(SamplingParams(max_tokens=100, stop=["STOP"], output_kind=OutputKind.DELTA)))
    deltas = []
    for token_id in ids_of_bytes("abcdSTé😀".encode()):
        (sent,) = processor.process([EngineCoreOutput(request_id="r", new_token_ids=[token_id])]).request_outputs
        deltas.append(sent.outputs[0].text)
    assert deltas == ["", "", "", "a", "b", "c", "", "d", "", "", "", "S"]
