"""`RequestOutputCollector`: one request's outputs on their way to one consumer that may be slower than the engine."""

from __future__ import annotations

import asyncio

from slotwise.engine.outputs import CompletionOutput, RequestOutput
from slotwise.sampling_params import OutputKind


class RequestOutputCollector:
    """One slot and an event. Outputs not yet taken are merged with the next one, per choice index: DELTA outputs joined, others replaced.

    Belongs to one event loop: call `put` there, from another thread through `loop.call_soon_threadsafe(collector.put, output)`.
    """

    __slots__ = ("_delta", "_ready", "_slot")

    def __init__(self, output_kind: OutputKind) -> None:
        self._delta = output_kind is OutputKind.DELTA
        self._slot: RequestOutput | BaseException | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput | BaseException) -> None:
        """Takes ownership of the output. An exception takes the place of whatever waits, and of whatever comes later."""
        if isinstance(self._slot, RequestOutput) and isinstance(output, RequestOutput):
            _merge(self._slot, output, self._delta)
        elif not isinstance(self._slot, BaseException):
            self._slot = output
        self._ready.set()

    async def get(self) -> RequestOutput:
        """Waits for the next output. Raises the exception that was put, every time from then on."""
        while self._slot is None:
            await self._ready.wait()
        output = self.get_nowait()
        assert output is not None
        return output

    def get_nowait(self) -> RequestOutput | None:
        """The waiting output, or None."""
        output = self._slot
        if isinstance(output, BaseException):
            raise output
        self._slot = None
        self._ready.clear()
        return output


def _merge(waiting: RequestOutput, new: RequestOutput, delta: bool) -> None:
    by_index = {completion.index: completion for completion in waiting.outputs}
    for completion in new.outputs:
        older = by_index.get(completion.index)
        by_index[completion.index] = completion if older is None or not delta else _joined(older, completion)
    waiting.outputs = [by_index[index] for index in sorted(by_index)]
    waiting.finished |= new.finished
    waiting.num_cached_tokens = new.num_cached_tokens
    waiting.error = new.error or waiting.error
    waiting.metrics = new.metrics
    waiting.embedding = new.embedding or waiting.embedding
    if new.prompt_logprobs is not None:
        waiting.prompt_logprobs = new.prompt_logprobs


def _joined(older: CompletionOutput, newer: CompletionOutput) -> CompletionOutput:
    older.text += newer.text
    older.token_ids.extend(newer.token_ids)
    if newer.logprobs:
        older.logprobs = [*(older.logprobs or ()), *newer.logprobs]
    older.cumulative_logprob = newer.cumulative_logprob
    older.finish_reason = newer.finish_reason
    older.stop_reason = newer.stop_reason
    return older
