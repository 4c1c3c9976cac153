from __future__ import annotations

import numpy as np
import pytest

from slotwise.engine.input_processor import InputProcessor
from slotwise.errors import InvalidRequestError, PromptTooLongError
from slotwise.sampling_params import SamplingParams

VOCAB = 500
LIMIT = 64


@pytest.fixture
def processor(byte_level):
    return InputProcessor(tokenizer=byte_level, vocab_size=VOCAB, max_model_len=LIMIT, eos_token_ids=frozenset({7}), clock=lambda: 3.0)


def refused(processor, prompt, params=None, **keywords):
    with pytest.raises(InvalidRequestError) as caught:
        processor.process(prompt, params or SamplingParams(), **keywords)
    return caught.value


def test_the_three_forms_of_a_prompt_agree(processor, byte_level):
    ids = byte_level.encode("Hello world")
    for prompt in ("Hello world", {"prompt": "Hello world"}, ids, {"prompt_token_ids": ids}, np.array(ids), tuple(ids)):
        assert processor.process(prompt, SamplingParams()).prompt_token_ids == ids


def test_ids_win_over_text_and_the_text_is_kept(processor):
    request = processor.process({"prompt": "Hello", "prompt_token_ids": [1, 2]}, SamplingParams())
    assert (request.prompt, request.prompt_token_ids) == ("Hello", [1, 2])


def test_special_tokens_are_added_unless_refused(byte_level_with_bos):
    processor = InputProcessor(tokenizer=byte_level_with_bos, vocab_size=VOCAB, max_model_len=LIMIT)
    bos = byte_level_with_bos.bos_token_id
    assert processor.process("Hello", SamplingParams()).prompt_token_ids[0] == bos
    assert bos not in processor.process("Hello", SamplingParams(), add_special_tokens=False).prompt_token_ids


@pytest.mark.parametrize("prompt", ["", [], {"prompt": ""}, {"prompt_token_ids": []}, np.array([], dtype=np.int64)])
def test_empty_prompts_are_refused(processor, prompt):
    error = refused(processor, prompt)
    assert "empty" in str(error)
    assert error.param == "prompt"


def test_empty_text_is_one_token_where_the_tokenizer_adds_bos(byte_level_with_bos):
    processor = InputProcessor(tokenizer=byte_level_with_bos, vocab_size=VOCAB, max_model_len=LIMIT)
    assert processor.process("", SamplingParams()).prompt_token_ids == [byte_level_with_bos.bos_token_id]


@pytest.mark.parametrize("bad", [VOCAB, -1, 2**63 - 1, 2**63, 2**64])
def test_ids_outside_the_vocabulary_are_refused_by_name(processor, bad):
    assert str(bad) in str(refused(processor, [1, bad, 2]))


def test_the_last_row_of_the_model_is_a_valid_id(processor):
    assert processor.process([VOCAB - 1], SamplingParams()).prompt_token_ids == [VOCAB - 1]


@pytest.mark.parametrize("bad", [1.0, True, "1", None, float("nan"), [1]])
def test_only_integers_are_ids(processor, bad):
    assert "integers" in str(refused(processor, [1, bad]))


@pytest.mark.parametrize(
    "prompt", [5, None, b"ab", {"text": "a"}, {}, {"prompt": 3}, {"prompt": "a", "extra": 1}, {"prompt_token_ids": "ab"}]
)
def test_other_things_are_no_prompt(processor, prompt):
    assert refused(processor, prompt).param == "prompt"


def test_text_that_is_not_unicode_is_refused(processor):
    assert "surrogate" in str(refused(processor, "a\ud800"))


@pytest.mark.parametrize("num_tokens", [LIMIT, LIMIT + 1])
def test_prompts_that_leave_no_room_are_refused_with_both_numbers(processor, num_tokens):
    with pytest.raises(PromptTooLongError, match=rf"{num_tokens} tokens.*holds {LIMIT}") as caught:
        processor.process([1] * num_tokens, SamplingParams(max_tokens=1))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "resolved"),
    [(LIMIT - 1, 1, 1), (LIMIT - 1, 10, 1), (8, LIMIT - 5, LIMIT - 8), (8, None, LIMIT - 8), (8, 10, 10), (LIMIT - 1, None, 1)],
)
def test_max_tokens_is_cut_to_the_context(processor, num_tokens, max_tokens, resolved):
    params = SamplingParams(max_tokens=max_tokens)
    assert processor.process([1] * num_tokens, params).sampling_params.max_tokens == resolved
    assert params.max_tokens == max_tokens


@pytest.mark.parametrize(("num_tokens", "resolved"), [(20, 13), (32, 1)])
def test_max_tokens_is_cut_to_the_kv_cache(num_tokens, resolved):
    """The last token of an output is never written to the cache."""
    processor = InputProcessor(tokenizer=None, vocab_size=VOCAB, max_model_len=256, max_kv_tokens=32)
    assert processor.process([1] * num_tokens, SamplingParams(max_tokens=200)).sampling_params.max_tokens == resolved


def test_prompts_larger_than_the_kv_cache_are_refused_with_both_numbers():
    processor = InputProcessor(tokenizer=None, vocab_size=VOCAB, max_model_len=256, max_kv_tokens=32)
    with pytest.raises(PromptTooLongError, match=r"100 tokens.*holds 32"):
        processor.process([1] * 100, SamplingParams())


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_logprobs_are_limited(byte_level, field):
    def processor(limit):
        return InputProcessor(tokenizer=byte_level, vocab_size=VOCAB, max_model_len=LIMIT, max_logprobs=limit)

    for limit, wanted in [(20, 21), (20, -1), (20, 10**9), (-1, VOCAB + 1), (0, 1)]:
        assert refused(processor(limit), "a", SamplingParams(**{field: wanted})).param == field
    for limit, wanted in [(20, 20), (-1, -1), (-1, VOCAB), (VOCAB, -1), (0, 0)]:
        processor(limit).process("a", SamplingParams(**{field: wanted}))


@pytest.mark.parametrize("params", [{"stop_token_ids": [1, VOCAB]}, {"allowed_token_ids": [VOCAB]}, {"logit_bias": {VOCAB: 1.0}}])
def test_ids_in_parameters_must_be_in_the_vocabulary(processor, params):
    error = refused(processor, "a", SamplingParams(**params))
    assert error.param == next(iter(params))
    assert str(VOCAB) in str(error)


def test_bad_words_are_tokenized_with_and_without_a_blank(processor, byte_level):
    request = processor.process("a", SamplingParams(bad_words=["exaggerated", " exaggerated", "dog"]))
    with_blank, without = (byte_level.encode(text, add_special_tokens=False) for text in (" exaggerated", "exaggerated"))
    assert len(with_blank) != len(without)
    assert request.bad_words_token_ids[:2] == [without, with_blank]
    assert [byte_level.decode(ids) for ids in request.bad_words_token_ids] == ["exaggerated", " exaggerated", "dog", " dog"]


def test_without_a_tokenizer_what_needs_text_is_refused():
    processor = InputProcessor(tokenizer=None, vocab_size=VOCAB, max_model_len=LIMIT)
    assert refused(processor, "a").param == "prompt"
    assert refused(processor, [1], SamplingParams(stop="x")).param == "stop"
    assert refused(processor, [1], SamplingParams(bad_words=["x"])).param == "bad_words"


def test_equal_ids_of_callers_stay_distinct_inside(processor):
    first, second = (processor.process("a", SamplingParams(), request_id="mine") for _ in range(2))
    assert first.external_id == second.external_id == "mine"
    assert first.request_id != second.request_id
    assert len(first.request_id) == len("mine") + 9


def test_the_record_carries_what_the_core_needs(processor):
    request = processor.process("a", SamplingParams(stop_token_ids=[9]), priority=2, client_id="c", cache_salt="s")
    assert (request.eos_token_ids, request.arrival_time, request.priority, request.client_id) == (frozenset({7}), 3.0, 2, "c")
    assert request.stop_token_ids == {7, 9}
    (key,) = request.extra_keys
    assert (key.source, key.value, key.first_token, key.num_tokens) == ("cache_salt", "s", 0, 1)


def test_ignored_eos_ends_nothing(processor):
    assert processor.process("a", SamplingParams(ignore_eos=True)).stop_token_ids == frozenset()
    assert processor.process("a", SamplingParams()).extra_keys == ()
