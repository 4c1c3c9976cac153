"""`AsyncLLM`: streams, abort by leaving, and what waiting callers hear when the engine dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from slotwise import AsyncLLM, OutputKind, SamplingParams
from slotwise.errors import EngineDeadError, InvalidRequestError, QueueFullError

if TYPE_CHECKING:
    from conftest import SharedModel


def params(max_tokens: int = 8, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **more)


@pytest.fixture
async def engine(tiny: SharedModel) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM.from_front_end(tiny.engine().front_end) as llm:
        yield llm
        await until_idle(llm)


async def until_idle(llm: AsyncLLM) -> None:
    """Ends with a failure, by the test's time limit, if the engine never becomes idle."""
    while llm.is_alive and not llm.stats().is_idle:
        await asyncio.sleep(0.001)


async def collect(llm: AsyncLLM, prompt: Any, sampling: SamplingParams, **more: Any) -> tuple[str, list[int], str | None]:
    """Joined deltas and the finish reason."""
    text, ids, reason = "", [], None
    async for output in llm.generate(prompt, sampling, **more):
        for completion in output.outputs:
            text += completion.text
            ids += completion.token_ids
            reason = completion.finish_reason or reason
    return text, ids, reason


async def test_joined_deltas_equal_the_final_output(engine: AsyncLLM, tiny: SharedModel) -> None:
    expected = tiny.engine().generate("hello", params(20))[0].outputs[0]
    assert await collect(engine, "hello", params(20, output_kind=OutputKind.DELTA)) == (expected.text, expected.token_ids, "length")


async def test_concurrent_requests_get_what_they_get_alone(engine: AsyncLLM, tiny: SharedModel) -> None:
    prompts = [[index] * (3 * index + 1) for index in range(10)]
    expected = [output.outputs[0].token_ids for output in tiny.engine().generate(prompts, params())]
    found = await asyncio.gather(*(collect(engine, prompt, params(output_kind=OutputKind.DELTA)) for prompt in prompts))
    assert [ids for _, ids, _ in found] == expected


async def test_leaving_the_stream_aborts_the_request(engine: AsyncLLM) -> None:
    stream = engine.generate("hello", params(200, output_kind=OutputKind.DELTA))
    await anext(stream)
    await stream.aclose()
    await until_idle(engine)


async def test_cancelling_the_task_aborts_all_completions(engine: AsyncLLM) -> None:
    sampling = SamplingParams(n=3, temperature=1.0, max_tokens=200, ignore_eos=True, output_kind=OutputKind.DELTA)
    task = asyncio.create_task(collect(engine, "hello", sampling))
    while engine.stats().num_running < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(engine)


async def test_abort_by_id_ends_the_stream_with_reason_abort(engine: AsyncLLM) -> None:
    reasons = []
    async for output in engine.generate("hello", params(200, output_kind=OutputKind.DELTA), request_id="mine"):
        reasons.append(output.outputs[0].finish_reason)
        await engine.abort("mine")
        await engine.abort("mine")
        await engine.abort("nobody")
    assert reasons[-1] == "abort"


async def test_a_stop_string_ends_the_request_in_the_core_too(engine: AsyncLLM, tiny: SharedModel) -> None:
    letter = tiny.engine().generate("hello", params(20))[0].outputs[0].text[4]
    text, _, reason = await collect(engine, "hello", params(200, stop=[letter], output_kind=OutputKind.DELTA))
    assert reason == "stop"
    assert letter not in text


async def test_a_bad_request_raises_for_its_caller_alone(engine: AsyncLLM) -> None:
    good = asyncio.create_task(collect(engine, "hello", params(output_kind=OutputKind.DELTA)))
    with pytest.raises(InvalidRequestError):
        await collect(engine, "", params())
    assert (await good)[2] == "length"


async def test_a_full_queue_refuses_the_newest(tiny: SharedModel) -> None:
    async with AsyncLLM.from_front_end(tiny.engine(max_num_seqs=1, scheduler={"max_num_waiting": 1}).front_end) as llm:
        results = await asyncio.gather(*(collect(llm, "hello", params(50)) for _ in range(6)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, QueueFullError)]
        assert refused
        assert all(result[2] == "length" for result in results if not isinstance(result, BaseException))
        await until_idle(llm)


async def test_death_of_the_engine_reaches_waiting_and_new_requests(tiny: SharedModel) -> None:
    """Known bug 73: nobody waits in silence."""
    llm = AsyncLLM.from_front_end(tiny.engine().front_end)
    waiting = asyncio.create_task(collect(llm, "hello", params(200)))
    while not llm.stats().num_running:
        await asyncio.sleep(0.001)

    def explode(*_: object) -> None:
        raise RuntimeError("the device caught fire")

    llm.front_end.core.executor.execute_model = explode  # type: ignore[method-assign]
    with pytest.raises(EngineDeadError, match="caught fire"):
        await waiting
    assert not llm.is_alive
    assert isinstance(llm.error, RuntimeError)
    with pytest.raises(EngineDeadError):
        await collect(llm, "hello", params())
    llm.shutdown()


async def test_shutdown_ends_what_is_in_flight(tiny: SharedModel) -> None:
    llm = AsyncLLM.from_front_end(tiny.engine().front_end)
    task = asyncio.create_task(collect(llm, "hello", params(200)))
    while not llm.stats().num_running:
        await asyncio.sleep(0.001)
    llm.shutdown()
    with pytest.raises(EngineDeadError):
        await task
    assert not llm.is_alive
