"""No id breaks a stream, and no request with strange ids disturbs another."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.detokenizer import TextDecoder
from slotwise.engine.output_processor import OutputProcessor
from slotwise.engine.outputs import EngineCoreOutput, FinishReason, TokenLogprobs
from slotwise.sampling_params import OutputKind, SamplingParams

STRANGE = [-1, -(2**63), 10**6, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64]


def with_holes(decoder) -> PreTrainedTokenizerFast:
    """A vocabulary whose ids 1, 2 and 4 name nothing."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 3, "c": 5}, merges=[]))
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("strange", STRANGE)
def test_ids_that_name_no_token_have_no_text_in_outputs_prompts_and_logprobs(any_tokenizer, strange):
    decoder = TextDecoder(any_tokenizer)
    ids = any_tokenizer.encode("hello b", add_special_tokens=False)
    plain = decoder.stream(ids)
    expected = plain.append(ids) + plain.flush()
    stream = decoder.stream([strange, *ids, strange])
    pieces = [stream.append([strange]), *(stream.append([token_id, strange]) for token_id in ids), stream.append([]), stream.flush()]
    assert "".join(pieces) == expected
    assert decoder.token_text(strange) == ""


@pytest.mark.parametrize("decoder", [decoders.ByteLevel(), decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])])
def test_unused_ids_within_the_vocabulary_have_no_text(decoder):
    tokenizer = with_holes(decoder)
    stream = TextDecoder(tokenizer).stream([1, 0, 2])
    assert "".join([stream.append([token_id]) for token_id in (1, 3, 2, 4, 5, 4)]) + stream.flush() == "bc"


def request(name, prompt_token_ids, **params):
    return EngineCoreRequest(
        request_id=name,
        external_id=name,
        prompt="p",
        prompt_token_ids=prompt_token_ids,
        sampling_params=SamplingParams(max_tokens=100, logprobs=1, **params),
        eos_token_ids=frozenset(),
        arrival_time=0.0,
    )


@pytest.mark.parametrize("stop", [[], ["zzz"]])
def test_strange_ids_in_one_request_leave_it_and_its_neighbour_whole(any_tokenizer, stop):
    processor = OutputProcessor(any_tokenizer)
    ids = any_tokenizer.encode("hello b", add_special_tokens=False)
    for name, prompt in (("strange", STRANGE), ("plain", [])):
        processor.add_request(request(name, prompt, output_kind=OutputKind.DELTA, stop=stop))
    texts = {"strange": "", "plain": ""}
    for index, token_id in enumerate(ids):
        reason = FinishReason.LENGTH if index == len(ids) - 1 else None
        new_ids = {"strange": [STRANGE[index % len(STRANGE)], token_id], "plain": [token_id]}
        outputs = [
            EngineCoreOutput(
                request_id=name,
                new_token_ids=new,
                finish_reason=reason,
                new_logprobs=[TokenLogprobs(token_ids=[new_id, STRANGE[0]], logprobs=[-1.0, -2.0], rank=1) for new_id in new],
            )
            for name, new in new_ids.items()
        ]
        for output in processor.process(outputs).request_outputs:
            assert output.error is None
            texts[output.request_id] += output.outputs[0].text
    expected = any_tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert texts == {"strange": expected, "plain": expected}
    assert not processor.has_unfinished()


def test_a_tokenizer_that_raises_ends_only_the_request_that_met_it(byte_fallback, monkeypatch):
    """As a decoder does that cannot go back on text it gave."""
    processor = OutputProcessor(byte_fallback)
    for name in ("bad", "good"):
        processor.add_request(request(name, [], output_kind=OutputKind.DELTA))
    (bad,) = byte_fallback.convert_tokens_to_ids(["漢"])
    ids = byte_fallback.convert_tokens_to_ids(["a", "b"])
    decode = byte_fallback.decode

    def raising(token_ids, **options):
        if bad in token_ids:
            raise ValueError("invalid prefix")
        return decode(token_ids, **options)

    monkeypatch.setattr(byte_fallback, "decode", raising)
    first = processor.process(
        [EngineCoreOutput(request_id="bad", new_token_ids=[bad]), EngineCoreOutput(request_id="good", new_token_ids=ids[:1])]
    )
    second = processor.process(
        [EngineCoreOutput(request_id="bad", new_token_ids=ids), EngineCoreOutput(request_id="good", new_token_ids=ids[1:])]
    )
    assert first.request_ids_to_abort == ["bad"]
    assert [(output.request_id, output.outputs[0].finish_reason) for output in first.request_outputs] == [("bad", "error"), ("good", None)]
    assert "".join(done.request_outputs[-1].outputs[0].text for done in (first, second)) == "ab"
