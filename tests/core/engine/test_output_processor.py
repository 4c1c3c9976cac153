from __future__ import annotations

import pytest

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.detokenizer import TextDecoder
from slotwise.engine.output_collector import RequestOutputCollector
from slotwise.engine.output_processor import OutputProcessor
from slotwise.engine.outputs import EngineCoreOutput, FinishReason, TokenLogprobs
from slotwise.errors import EngineDeadError
from slotwise.sampling_params import OutputKind, SamplingParams

EOS = 404


class ManualClock:
    def __init__(self):
        self.now = 10.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def processor(byte_level, clock):
    return OutputProcessor(byte_level, clock=clock)


@pytest.fixture
def ids_of(byte_level):
    return lambda text: byte_level.encode(text, add_special_tokens=False)


def request(name="r", *, external=None, prompt_token_ids=(1, 2), **params):
    return EngineCoreRequest(
        request_id=name,
        external_id=external or name,
        prompt="p",
        prompt_token_ids=list(prompt_token_ids),
        sampling_params=SamplingParams(max_tokens=100, **params),
        eos_token_ids=frozenset({EOS}),
        arrival_time=9.0,
    )


def step(processor, token_ids, name="r", **fields):
    return processor.process([EngineCoreOutput(request_id=name, new_token_ids=list(token_ids), **fields)])


def play(processor, pieces, name="r", finish=FinishReason.LENGTH):
    """Feeds each list of ids as a step, the last with a finish reason; returns all outputs and the ids to abort."""
    outputs, aborts = [], []
    for index, piece in enumerate(pieces):
        done = step(processor, piece, name, finish_reason=finish if index == len(pieces) - 1 else None)
        outputs += done.request_outputs
        aborts += done.request_ids_to_abort
    return outputs, aborts


def test_cumulative_outputs_carry_all_text_and_ids_so_far(processor, ids_of):
    processor.add_request(request())
    ids = ids_of("a😀b")
    outputs, aborts = play(processor, [[token_id] for token_id in ids])
    assert [output.outputs[0].token_ids for output in outputs] == [ids[: n + 1] for n in range(len(ids))]
    assert outputs[0].outputs[0].text == "a"
    assert outputs[-1].outputs[0].text == "a😀b"
    assert [output.finished for output in outputs] == [False] * (len(ids) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert (aborts, processor.has_unfinished()) == ([], False)


def test_delta_outputs_join_to_the_whole(processor, ids_of):
    processor.add_request(request(output_kind=OutputKind.DELTA, stop=["zzz"]))
    ids = ids_of("Hello wörld 漢字 😀")
    outputs, _ = play(processor, [[token_id] for token_id in ids])
    assert "".join(output.outputs[0].text for output in outputs) == "Hello wörld 漢字 😀"
    assert [token_id for output in outputs for token_id in output.outputs[0].token_ids] == ids


def test_final_only_outputs_nothing_before_the_end(processor, ids_of):
    processor.add_request(request(output_kind=OutputKind.FINAL_ONLY))
    outputs, _ = play(processor, [[token_id] for token_id in ids_of("Hello world")])
    assert [output.outputs[0].text for output in outputs] == ["Hello world"]


@pytest.mark.parametrize("kind", [OutputKind.DELTA, OutputKind.CUMULATIVE])
def test_stream_interval_sends_first_every_nth_and_last(processor, ids_of, kind):
    processor.add_request(request(output_kind=kind, stream_interval=3))
    ids = (ids_of("abcdefgh") * 8)[:8]
    done = 0
    sent_at = []
    for index, token_id in enumerate(ids):
        finish = FinishReason.LENGTH if index == 7 else None
        outputs = step(processor, [token_id], finish_reason=finish).request_outputs
        if outputs:
            sent_at.append(index + 1)
            done = done + len(outputs[0].outputs[0].token_ids) if kind is OutputKind.DELTA else len(outputs[0].outputs[0].token_ids)
    assert sent_at == [1, 4, 7, 8]
    assert done == 8


def test_unfinished_prompt_gives_no_output(processor):
    processor.add_request(request())
    assert step(processor, []).request_outputs == []


@pytest.mark.parametrize(("include", "text"), [(False, "x"), (True, "xDEFGHIJ")])
@pytest.mark.parametrize("kind", list(OutputKind))
def test_stop_string_ends_the_output_and_asks_the_core_to_abort(processor, ids_of, kind, include, text):
    processor.add_request(request(stop=["DEFGHIJ"], include_stop_str_in_output=include, output_kind=kind))
    token_ids = ids_of("xDEFGHIJy")
    outputs, aborts = play(processor, [[token_id] for token_id in token_ids], finish=None)
    joined = "".join(output.outputs[0].text for output in outputs) if kind is OutputKind.DELTA else outputs[-1].outputs[0].text
    last = outputs[-1].outputs[0]
    assert joined == text
    assert (last.finish_reason, last.stop_reason, outputs[-1].finished) == ("stop", "DEFGHIJ", True)
    assert aborts == ["r"]
    assert not processor.has_unfinished()
    assert step(processor, token_ids).request_outputs == []  # The core ran one step more.


def test_stop_string_in_the_last_step_needs_no_abort(processor, ids_of):
    processor.add_request(request(stop=["world"]))
    outputs, aborts = play(processor, [ids_of("Hello "), ids_of("world")])
    assert (outputs[-1].outputs[0].text, outputs[-1].outputs[0].finish_reason, aborts) == ("Hello ", "stop", [])


@pytest.mark.parametrize("together", [False, True])
def test_ids_end_with_the_token_that_completes_a_stop_string(processor, ids_of, together):
    """However many came at once; the text ends before it."""
    processor.add_request(request(stop=[" world"]))
    ids = ids_of("Hello world, the")
    stopped = ids[: next(count for count in range(len(ids)) if "world" in processor._decoder._tokenizer.decode(ids[:count]))]
    outputs, _ = play(processor, [ids] if together else [[token_id] for token_id in stopped], finish=None)
    assert (outputs[-1].outputs[0].text, outputs[-1].outputs[0].token_ids) == ("Hello", stopped)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_stop_string_before_min_tokens_is_passed_over(processor, ids_of, include, together):
    pieces = [ids_of(text) for text in ("a", "\n", "b", "c", "\n", "d")]
    assert all(len(piece) == 1 for piece in pieces)
    processor.add_request(request(stop=["\n"], min_tokens=4, include_stop_str_in_output=include))
    steps = [[token_id for piece in pieces for token_id in piece]] if together else pieces
    outputs, _ = play(processor, steps, finish=None)
    assert outputs[-1].outputs[0].text == ("a\nbc\n" if include else "a\nbc")
    assert outputs[-1].outputs[0].stop_reason == "\n"


def test_held_back_text_comes_out_when_the_output_ends_without_a_stop(processor, ids_of):
    processor.add_request(request(stop=["Hello world!"], output_kind=OutputKind.DELTA))
    outputs, _ = play(processor, [ids_of("Hello"), ids_of(" world")])
    assert [output.outputs[0].text for output in outputs] == ["", "Hello world"]


def test_unfinished_character_is_flushed_once_at_the_end(processor, ids_of):
    processor.add_request(request(output_kind=OutputKind.DELTA))
    outputs, _ = play(processor, [[token_id] for token_id in ids_of("a😀")[:-1]])
    assert "".join(output.outputs[0].text for output in outputs) == "a\ufffd"


@pytest.mark.parametrize("include", [False, True])
def test_stop_token_is_shown_only_when_asked(processor, ids_of, byte_level, include):
    stop_id = ids_of("q")[0]
    processor.add_request(request(stop_token_ids=[stop_id], include_stop_str_in_output=include))
    done = step(processor, [*ids_of("Hello"), stop_id], finish_reason=FinishReason.STOP, stop_reason=stop_id)
    completion = done.request_outputs[0].outputs[0]
    assert completion.text == ("Helloq" if include else "Hello")
    assert completion.token_ids[-1] == stop_id
    assert completion.stop_reason == stop_id


def test_ordinary_last_token_of_a_stopped_output_is_shown(processor, ids_of):
    """The core may stop for repetition, too; then the last token belongs to the text."""
    processor.add_request(request())
    done = step(processor, ids_of("Hello"), finish_reason=FinishReason.STOP)
    assert done.request_outputs[0].outputs[0].text == "Hello"


def test_logprobs_have_the_sampled_token_first_then_the_likely_ones(processor, byte_level, ids_of):
    processor.add_request(request(logprobs=2))
    a, b, c = (ids_of(char)[0] for char in "abc")
    positions = [
        TokenLogprobs(token_ids=[c, a, b], logprobs=[-3.0, -0.5, -1.0], rank=7),
        TokenLogprobs(token_ids=[a, a, b], logprobs=[-0.5, -0.5, float("-inf")], rank=1),
    ]
    outputs = step(processor, [c, a], new_logprobs=positions).request_outputs
    first, second = outputs[0].outputs[0].logprobs
    assert [(token_id, entry.logprob, entry.rank) for token_id, entry in first.items()] == [(c, -3.0, 7), (a, -0.5, 1), (b, -1.0, 2)]
    assert [(token_id, entry.rank) for token_id, entry in second.items()] == [(a, 1), (b, 2)]
    assert second[b].logprob == float("-inf")
    assert first[c].decoded_token == "c"
    assert outputs[0].outputs[0].cumulative_logprob == -3.5


def test_fewer_logprobs_than_the_batch_computed(processor, ids_of):
    a, b, c = (ids_of(char)[0] for char in "abc")
    processor.add_request(request(logprobs=0))
    outputs = step(processor, [c], new_logprobs=[TokenLogprobs(token_ids=[c, a, b], logprobs=[-3.0, -0.5, -1.0], rank=3)]).request_outputs
    assert list(outputs[0].outputs[0].logprobs[0]) == [c]


def test_delta_logprobs_are_those_of_the_new_tokens(processor, ids_of):
    a, b = (ids_of(char)[0] for char in "ab")
    processor.add_request(request(logprobs=0, output_kind=OutputKind.DELTA))
    for token_id in (a, b):
        position = TokenLogprobs(token_ids=[token_id], logprobs=[-1.0], rank=1)
        completion = step(processor, [token_id], new_logprobs=[position]).request_outputs[0].outputs[0]
        assert [list(entries) for entries in completion.logprobs] == [[token_id]]
    assert completion.cumulative_logprob == -2.0


@pytest.mark.parametrize(("kind", "times"), [(OutputKind.DELTA, 1), (OutputKind.CUMULATIVE, 2)])
def test_prompt_logprobs_begin_with_none(processor, ids_of, kind, times):
    a, b = (ids_of(char)[0] for char in "ab")
    processor.add_request(request(prompt_logprobs=1, output_kind=kind, prompt_token_ids=(a, b)))
    position = TokenLogprobs(token_ids=[b, a], logprobs=[-2.0, -0.1], rank=2)
    outputs = step(processor, [a], new_prompt_logprobs=[position]).request_outputs
    outputs += step(processor, [b], finish_reason=FinishReason.LENGTH).request_outputs
    given = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert len(given) == times
    assert given[0][0] is None
    assert [(token_id, entry.rank) for token_id, entry in given[0][1].items()] == [(b, 2), (a, 1)]


def test_n_completions_are_children_with_their_own_seeds(processor):
    children = processor.add_request(request(n=3, seed=5, prompt_logprobs=1))
    assert [child.request_id for child in children] == ["0_r", "1_r", "2_r"]
    assert [child.sampling_params.seed for child in children] == [5, 6, 7]
    assert [child.sampling_params.n for child in children] == [1, 1, 1]
    assert [child.sampling_params.prompt_logprobs for child in children] == [1, None, None]


def test_final_only_waits_for_all_completions(processor, ids_of):
    processor.add_request(request(n=2, output_kind=OutputKind.FINAL_ONLY))
    assert play(processor, [ids_of("b")], "1_r") == ([], [])
    outputs, _ = play(processor, [ids_of("a")], "0_r")
    assert [(completion.index, completion.text) for completion in outputs[0].outputs] == [(0, "a"), (1, "b")]
    assert outputs[0].finished


def test_cumulative_outputs_carry_all_completions(processor, ids_of):
    processor.add_request(request(n=2))
    play(processor, [ids_of("b")], "1_r")
    outputs, _ = play(processor, [ids_of("a"), ids_of("c")], "0_r")
    assert [[completion.text for completion in output.outputs] for output in outputs] == [["a", "b"], ["ac", "b"]]
    assert [output.finished for output in outputs] == [False, True]


def test_one_step_gives_one_output_per_request(processor, ids_of):
    processor.add_request(request(n=2, output_kind=OutputKind.DELTA))
    core_outputs = [EngineCoreOutput(request_id=f"{index}_r", new_token_ids=ids_of(char)) for index, char in enumerate("ab")]
    (output,) = processor.process(core_outputs).request_outputs
    assert [(completion.index, completion.text) for completion in output.outputs] == [(0, "a"), (1, "b")]


def test_abort_by_the_parents_id_ends_all_children(processor, ids_of):
    processor.add_request(request(n=3, external="mine"))
    play(processor, [ids_of("a")], "0_r")
    assert sorted(processor.abort(["mine"])) == ["1_r", "2_r"]
    assert processor.has_unfinished()
    (output,) = processor.process([]).request_outputs
    assert [completion.finish_reason for completion in output.outputs] == ["length", "abort", "abort"]
    assert output.finished
    assert not processor.has_unfinished()


def test_abort_hits_every_request_of_a_callers_id(processor):
    processor.add_request(request("x-1", external="x"))
    processor.add_request(request("x-2", external="x"))
    processor.add_request(request("y-1", external="y"))
    assert processor.abort(["x"]) == ["x-1", "x-2"]
    assert processor.num_unfinished == 1
    assert processor.abort(["x", "x-1", "unknown"]) == []
    assert processor.abort(["y-1"]) == ["y-1"]


def test_late_abort_of_a_reused_id_spares_the_new_request(processor, ids_of):
    processor.add_request(request("x-1", external="x"))
    processor.abort(["x-1"])
    processor.add_request(request("x-2", external="x"))
    assert processor.abort(["x-1"]) == []
    outputs, _ = play(processor, [ids_of("a")], "x-2")
    assert outputs[-1].outputs[0].finish_reason == "length"


def test_aborted_output_keeps_its_text(processor, ids_of):
    sink = RequestOutputCollector(OutputKind.DELTA)
    processor.add_request(request(stop=["Hello world!"], output_kind=OutputKind.DELTA), sink)
    step(processor, ids_of("Hello"))
    processor.abort(["r"])
    output = sink.get_nowait()
    assert (output.outputs[0].text, output.outputs[0].finish_reason, output.finished) == ("Hello", "abort", True)


def test_core_error_reaches_the_output(processor):
    processor.add_request(request())
    (output,) = step(processor, [], finish_reason=FinishReason.ERROR, error="unusable logits").request_outputs
    assert (output.error, output.outputs[0].finish_reason, output.finished) == ("unusable logits", "error", True)


def test_a_fault_in_one_request_spares_the_others(processor, ids_of, monkeypatch, caplog):
    class Broken:
        def append(self, token_ids):
            raise RuntimeError("boom")

    monkeypatch.setattr(TextDecoder, "stream", lambda self, *args, **kwargs: Broken())
    processor.add_request(request("bad"))
    monkeypatch.undo()
    processor.add_request(request("good"))
    done = processor.process([EngineCoreOutput(request_id=name, new_token_ids=ids_of("a")) for name in ("bad", "good")])
    assert done.request_ids_to_abort == ["bad"]
    assert [output.outputs[0].finish_reason for output in done.request_outputs] == ["error", None]
    assert "boom" in done.request_outputs[0].error
    assert done.request_outputs[1].outputs[0].text == "a"


def test_an_abort_ends_all_of_its_requests_though_one_has_no_last_text(processor, ids_of, monkeypatch):
    class Broken:
        def append(self, token_ids):
            return ""

        def flush(self):
            raise RuntimeError("boom")

    monkeypatch.setattr(TextDecoder, "stream", lambda self, *args, **kwargs: Broken())
    processor.add_request(request("bad"))
    monkeypatch.undo()
    processor.add_request(request("good"))
    processor.process([EngineCoreOutput(request_id=name, new_token_ids=ids_of("a")) for name in ("bad", "good")])
    assert processor.abort(["bad", "good"]) == ["bad", "good"]
    bad, good = processor.process([]).request_outputs
    assert (bad.outputs[0].finish_reason, good.outputs[0].finish_reason) == ("error", "abort")
    assert "boom" in bad.error
    assert not processor.has_unfinished()


async def test_fail_all_raises_in_every_consumer(processor):
    sinks = [RequestOutputCollector(OutputKind.DELTA) for _ in range(2)]
    for index, sink in enumerate(sinks):
        processor.add_request(request(f"r{index}"), sink)
    assert processor.fail_all(EngineDeadError("the engine died")) == ["r0", "r1"]
    for sink in sinks:
        with pytest.raises(EngineDeadError, match="died"):
            await sink.get()
    assert not processor.has_unfinished()


@pytest.mark.parametrize("name", ["r", "1_r"])
def test_a_refused_request_leaves_nothing_but_the_error(processor, name):
    sink = RequestOutputCollector(OutputKind.DELTA)
    processor.add_request(request(n=2, output_kind=OutputKind.DELTA), sink)
    assert processor.fail(name, ValueError("queue is full")) == ["0_r", "1_r"]
    with pytest.raises(ValueError, match="queue is full"):
        sink.get_nowait()
    assert not processor.has_unfinished()
    assert processor.fail(name, ValueError("again")) == []


def test_metrics_follow_the_clock(processor, clock, ids_of):
    processor.add_request(request())
    clock.now = 11.0
    step(processor, ids_of("a"))
    clock.now = 12.0
    (output,) = step(processor, ids_of("b"), finish_reason=FinishReason.LENGTH, num_cached_tokens=4).request_outputs
    assert (output.metrics.time_to_first_token, output.metrics.finished_time) == (2.0, 12.0)
    assert output.num_cached_tokens == 4


def test_without_detokenization_there_are_ids_and_no_text(processor, ids_of):
    processor.add_request(request(detokenize=False))
    (output,) = step(processor, ids_of("Hello"), finish_reason=FinishReason.LENGTH).request_outputs
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", ids_of("Hello"))


def test_outputs_given_before_do_not_change(processor, ids_of):
    processor.add_request(request())
    (first,) = step(processor, ids_of("a")).request_outputs
    before = list(first.outputs[0].token_ids)
    step(processor, ids_of("b"))
    assert first.outputs[0].token_ids == before
