"""Merging several generators, and pieces that wait for the prompt's logprobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from slotwise.engine.outputs import CompletionOutput, Logprob, RequestOutput
from slotwise_contrib.server.chat_logprobs import ChatLogprobWriter
from slotwise_contrib.server.completion_logprobs import CompletionLogprobWriter
from slotwise_contrib.server.generation import _merged
from slotwise_contrib.server.pieces import PieceMaker
from slotwise_contrib.server.usage import UsageCounter


class Source:
    """Generators that note when they were closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    async def items(self, name: str, count: int, error: Exception | None = None) -> AsyncGenerator[str, None]:
        try:
            for index in range(count):
                yield f"{name}{index}"
            if error is not None:
                raise error
            await asyncio.Event().wait()
        finally:
            self.closed.append(name)

    async def finite(self, name: str, count: int) -> AsyncGenerator[str, None]:
        for index in range(count):
            yield f"{name}{index}"


async def test_merged_items_keep_each_generators_order() -> None:
    source = Source()
    found = [item async for item in _merged([source.finite("a", 3), source.finite("b", 0), source.finite("c", 5)])]
    assert [text for index, text in found if index == 0] == ["a0", "a1", "a2"]
    assert [text for index, text in found if index == 2] == ["c0", "c1", "c2", "c3", "c4"]
    assert len(found) == 8


async def test_an_error_of_one_generator_is_raised_before_anothers_item_and_closes_all() -> None:
    source = Source()
    merged = _merged([source.items("a", 1), source.items("b", 0, error=ValueError("refused"))])
    with pytest.raises(ValueError, match="refused"):
        await anext(merged)
    assert sorted(source.closed) == ["a", "b"]


async def test_closing_the_merged_generator_closes_all_before_it_returns() -> None:
    source = Source()
    merged = _merged([source.items(name, 2) for name in "abc"])
    await anext(merged)
    await merged.aclose()
    assert sorted(source.closed) == ["a", "b", "c"]


async def test_cancelling_the_consumer_closes_all() -> None:
    source = Source()

    async def consume() -> None:
        async for _ in _merged([source.items("a", 1), source.items("b", 1)]):
            pass

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(source.closed) == ["a", "b"]


def output(index: int, text: str, token_id: int, prompt_logprobs: Any = None) -> RequestOutput:
    completion = CompletionOutput(
        index=index, text=text, token_ids=[token_id], logprobs=[{token_id: Logprob(logprob=-1.0, rank=1, decoded_token=text)}]
    )
    return RequestOutput(
        request_id="r",
        prompt="P",
        prompt_token_ids=[9],
        outputs=[completion],
        finished=False,
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=1,
    )


def test_echoing_choices_wait_for_the_prompts_logprobs() -> None:
    """With n > 1 they come with choice 0 only, which may be later than choice 1's first tokens."""
    maker = PieceMaker(
        first_index=4,
        has_echo=True,
        needs_prompt_logprobs=True,
        shows_prompt_logprobs=False,
        writer=lambda ids: CompletionLogprobWriter(None, ids, has_echo=True, skip_special_tokens=True, shows_stop_token=False),
        prompt_text=lambda ids: "",
    )
    assert maker.take(output(1, "x", 3)) == []
    assert maker.take(output(1, "y", 4)) == []
    pieces = maker.take(output(0, "z", 5, prompt_logprobs=[None]))
    assert [(piece.index, piece.text, piece.is_first) for piece in pieces] == [(5, "Px", True), (5, "y", False), (4, "Pz", True)]
    assert [piece.logprobs["tokens"] for piece in pieces if piece.logprobs] == [
        ["token_id:9", "token_id:3"],
        ["token_id:4"],
        ["token_id:9", "token_id:5"],
    ]


def test_bytes_of_a_token_that_is_part_of_a_character_are_unknown() -> None:
    entries = {1: Logprob(logprob=-2.0, rank=2, decoded_token="\ufffd"), 2: Logprob(logprob=float("-inf"), rank=9, decoded_token="é")}
    completion = CompletionOutput(index=0, text="", token_ids=[1], logprobs=[entries])
    (token,) = ChatLogprobWriter(2).write(completion)["content"]
    assert token["bytes"] is None
    assert [top["bytes"] for top in token["top_logprobs"]] == [None, list("é".encode())]
    assert token["top_logprobs"][1]["logprob"] == -9999.0


def test_usage_counts_a_prompt_once_and_every_new_token() -> None:
    usage = UsageCounter()
    for index in (0, 1, 0):
        usage.add(index, output(0, "x", 3))
    record = usage.record()
    assert (record["prompt_tokens"], record["completion_tokens"], record["total_tokens"]) == (2, 3, 5)
    assert record["prompt_tokens_details"] == {"cached_tokens": 2}
