from __future__ import annotations

import asyncio
import threading

import pytest

from slotwise.engine.output_collector import RequestOutputCollector
from slotwise.engine.outputs import CompletionOutput, Logprob, RequestOutput
from slotwise.sampling_params import OutputKind


def output(*completions, finished=False, **fields):
    return RequestOutput(request_id="r", prompt=None, prompt_token_ids=[1], outputs=list(completions), finished=finished, **fields)


def completion(text, token_ids, index=0, **fields):
    return CompletionOutput(index=index, text=text, token_ids=list(token_ids), **fields)


async def test_waiting_deltas_are_joined_per_choice():
    collector = RequestOutputCollector(OutputKind.DELTA)
    entry = {1: Logprob(logprob=-1.0, rank=1, decoded_token="a")}
    collector.put(output(completion("a", [1], logprobs=[entry], cumulative_logprob=-1.0), prompt_logprobs=[None]))
    collector.put(output(completion("x", [9], index=1)))
    collector.put(output(completion("b", [2], logprobs=[entry], cumulative_logprob=-2.0, finish_reason="stop"), finished=True))
    merged = await collector.get()
    assert [(item.index, item.text, item.token_ids) for item in merged.outputs] == [(0, "ab", [1, 2]), (1, "x", [9])]
    assert merged.outputs[0].logprobs == [entry, entry]
    assert merged.outputs[0].cumulative_logprob == -2.0
    assert (merged.outputs[0].finish_reason, merged.finished, merged.prompt_logprobs) == ("stop", True, [None])
    assert collector.get_nowait() is None


@pytest.mark.parametrize("kind", [OutputKind.CUMULATIVE, OutputKind.FINAL_ONLY])
async def test_other_kinds_are_replaced_per_choice(kind):
    collector = RequestOutputCollector(kind)
    collector.put(output(completion("a", [1]), completion("x", [9], index=1)))
    collector.put(output(completion("ab", [1, 2])))
    merged = await collector.get()
    assert [(item.index, item.text) for item in merged.outputs] == [(0, "ab"), (1, "x")]


async def test_get_waits_for_a_put_from_another_thread():
    collector = RequestOutputCollector(OutputKind.DELTA)
    loop = asyncio.get_running_loop()
    thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(collector.put, output(completion("a", [1]))))
    waiting = asyncio.ensure_future(collector.get())
    thread.start()
    assert (await waiting).outputs[0].text == "a"
    thread.join()


async def test_an_exception_is_raised_from_then_on():
    collector = RequestOutputCollector(OutputKind.DELTA)
    collector.put(output(completion("a", [1])))
    collector.put(ValueError("broken"))
    collector.put(output(completion("b", [2])))
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await collector.get()
