"""Requests whose input comes piece by piece: each turn sees all turns before it, and blocks are reused through the prefix cache."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

from slotwise import LLM, AsyncLLM, OutputKind, RequestOutput, SamplingParams
from slotwise.errors import InvalidRequestError

if TYPE_CHECKING:
    from conftest import SharedModel

TURN = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, output_kind=OutputKind.DELTA)
PLAIN = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
INPUTS = [[1] * 20, [2] * 5, [3] * 7]


def expected_turns(tiny: SharedModel) -> list[list[int]]:
    """The same as separate requests: each prompt is everything so far without the last sampled token, and the new input."""
    llm, context, turns = tiny.engine(), [], []
    for piece in INPUTS:
        context = [*context[:-1], *piece] if context else list(piece)
        turns.append(llm.generate([context], PLAIN)[0].outputs[0].token_ids)
        context = [*context, *turns[-1]]
    return turns


def run(llm: LLM, outputs: list[RequestOutput]) -> None:
    for _ in range(60):
        outputs += llm.engine.step()


@pytest.mark.parametrize("settings", [{}, {"scheduler": {"async_scheduling": True}}, {"max_num_batched_tokens": 8, "max_num_seqs": 4}])
@pytest.mark.parametrize("early", [True, False], ids=["input queued early", "input after each turn"])
def test_each_turn_sees_the_turns_before(
    settings: dict[str, Any], early: bool, tiny: SharedModel, assert_idle: Callable[[LLM], None]
) -> None:
    llm = tiny.engine(**settings)
    outputs: list[RequestOutput] = []
    request_id = llm.engine.add_request(INPUTS[0], TURN, is_session=True)
    for piece in (*INPUTS[1:], None):
        if not early:
            run(llm, outputs)
            assert not outputs[-1].finished
        llm.engine.extend_session(request_id, piece)
    run(llm, outputs)
    tokens = [token for output in outputs for completion in output.outputs for token in completion.token_ids]
    assert tokens == [token for turn in expected_turns(tiny) for token in turn]
    assert [output.finished for output in outputs].count(True) == 1
    assert outputs[-1].outputs[0].finish_reason == "stop"
    assert_idle(llm)
    llm.shutdown()


def test_a_session_that_waits_for_input_holds_no_block_and_gives_no_work(tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> None:
    llm = tiny.engine()
    outputs: list[RequestOutput] = []
    llm.engine.add_request(INPUTS[0], TURN, is_session=True, request_id="talk")
    run(llm, outputs)
    assert not llm.engine.core.has_work
    assert_idle(llm)
    assert len(llm.generate("others are served", TURN)) == 1
    llm.engine.abort_requests(["talk"])
    assert not llm.engine.core.scheduler.requests


def test_the_context_s_end_ends_a_session_with_length(tiny: SharedModel) -> None:
    llm = tiny.engine(max_model_len=32)
    outputs: list[RequestOutput] = []
    request_id = llm.engine.add_request(INPUTS[0], TURN, is_session=True)
    llm.engine.extend_session(request_id, [4] * 20)
    run(llm, outputs)
    assert outputs[-1].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("params", [{"n": 2}, {"stop": ["x"]}, {"prompt_logprobs": 1}])
def test_what_makes_no_sense_in_a_session_is_refused(params: dict[str, Any], tiny: SharedModel) -> None:
    with pytest.raises(InvalidRequestError):
        tiny.engine().engine.add_request("hello", SamplingParams(**params), is_session=True)


async def test_the_async_front_end_takes_an_iterator_of_inputs(tiny: SharedModel) -> None:
    async def pieces() -> AsyncIterator[list[int]]:
        for piece in INPUTS:
            yield piece

    async with AsyncLLM.from_front_end(tiny.engine().front_end) as llm:
        tokens = [token async for output in llm.generate_session(pieces(), TURN) for part in output.outputs for token in part.token_ids]
        assert tokens == [token for turn in expected_turns(tiny) for token in turn]


async def test_a_bad_piece_of_input_ends_its_session_alone(tiny: SharedModel) -> None:
    async def pieces() -> AsyncIterator[list[int]]:
        yield INPUTS[0]
        yield [9999]

    async with AsyncLLM.from_front_end(tiny.engine().front_end) as llm:
        with pytest.raises(InvalidRequestError, match="9999"):
            async for _ in llm.generate_session(pieces(), TURN):
                pass
        assert [output.finished async for output in llm.generate("hello", TURN)][-1]
