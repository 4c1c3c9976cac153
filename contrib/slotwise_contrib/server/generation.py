"""One HTTP request at work in the engine: a prompt is one engine request, all run together, and leaving early aborts every one of them.

What this file does not know: JSON, HTTP, how choices are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from slotwise.engine.outputs import FinishReason, RequestOutput
from slotwise.engine.prompt_checks import Prompt
from slotwise.sampling_params import SamplingParams
from slotwise_contrib.server.errors import APIError

if TYPE_CHECKING:
    from slotwise.engine.async_llm import AsyncLLM

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What the engine is asked for."""

    prompts: Sequence[Prompt]
    params: SamplingParams
    priority: int = 0
    client_id: str | None = None
    cache_salt: str | None = None
    add_special_tokens: bool = True


async def run(engine: AsyncLLM, work: Work, request_id: str) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of all prompts as they come, each with its prompt's index. Raises what the engine raises, and APIError for a completion that
    could not be finished; then, and when the generator is closed, all that still runs is aborted."""
    streams = [
        engine.generate(
            prompt,
            work.params,
            f"{request_id}-{index}",
            priority=work.priority,
            client_id=work.client_id,
            cache_salt=work.cache_salt,
            add_special_tokens=work.add_special_tokens,
        )
        for index, prompt in enumerate(work.prompts)
    ]
    async with aclosing(_merged(streams)) as outputs:
        async for index, output in outputs:
            _check(output)
            yield index, output


def _check(output: RequestOutput) -> None:
    reasons = {completion.finish_reason for completion in output.outputs}
    if FinishReason.ERROR in reasons:
        raise APIError(500, f"The request failed: {output.error or 'the model gave no usable output'}.", code="generation_failed")
    if FinishReason.ABORT in reasons:
        raise APIError(503, "The request was aborted by the server.", code="aborted")


async def _merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of several generators, each with its generator's index. However it ends, all of them are closed."""
    tasks = {asyncio.ensure_future(_next(stream)): index for index, stream in enumerate(streams)}
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finished = sorted(done, key=tasks.__getitem__)
            # All results before the first is passed on: a prompt that is refused must be heard of before any other's output.
            items = await asyncio.gather(*finished)
            for task, item in zip(finished, items, strict=True):
                index = tasks.pop(task)
                if item is not None:
                    tasks[asyncio.ensure_future(_next(streams[index]))] = index
                    yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


async def _next(stream: AsyncGenerator[T, None]) -> T | None:
    """The next item, None at the end."""
    return await anext(stream, None)
