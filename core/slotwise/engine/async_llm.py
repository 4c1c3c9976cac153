"""`AsyncLLM`: streaming inference for an event loop, in one process; the core runs in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from slotwise.engine.chat_template import apply_chat_template
from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.engine_core import EngineStats
from slotwise.engine.engine_thread import EngineThread
from slotwise.engine.front_end import FrontEndOwner
from slotwise.engine.output_collector import RequestOutputCollector
from slotwise.engine.outputs import EmbeddingRequestOutput, EngineCoreOutput, RequestOutput
from slotwise.engine.prompt_checks import Prompt
from slotwise.errors import EngineDeadError
from slotwise.pooling_params import PoolingParams
from slotwise.sampling_params import SamplingParams


class AsyncLLM(FrontEndOwner):
    """Arguments as for `LLM`. Belongs to the event loop in which the first request is made.

    Text is made on the event loop, tokens in the engine's thread. If a step raises, all requests end with EngineDeadError and `is_alive`
    becomes False.
    """

    def _set_up(self) -> None:
        self._output_processor = self.front_end.output_processor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = EngineThread(
            self.front_end.core,
            on_outputs=lambda outputs: self._on_loop(self._process, outputs),
            on_refused=lambda request_id, error: self._on_loop(self._refuse, request_id, error),
            on_death=lambda error: self._on_loop(self._die, error),
        )
        self._thread.start()

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether requests can be served."""
        return self._thread.is_alive

    @property
    def error(self) -> BaseException | None:
        """What ended the engine, if a step raised."""
        return self._thread.error

    def stats(self) -> EngineStats:
        """What the core is busy with, between two steps or in the middle of one."""
        return self.front_end.core.stats()

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation; options as for `chat_template.apply_chat_template`. Raises InvalidRequestError."""
        return apply_chat_template(self.tokenizer, messages, **options)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        client_id: str | None = None,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs as `sampling_params.output_kind` says, the last one with `finished`.

        Leaving the generator early (close, cancel) aborts the request. Raises InvalidRequestError, QueueFullError or EngineDeadError.
        """
        self._bind_loop()
        request = self.front_end.input_processor.process(
            prompt,
            sampling_params or SamplingParams(),
            request_id=request_id,
            priority=priority,
            client_id=client_id,
            cache_salt=cache_salt,
            add_special_tokens=add_special_tokens,
        )
        async with aclosing(self._stream(request)) as outputs:
            async for output in outputs:
                yield output

    async def embed(
        self, prompt: Prompt, pooling_params: PoolingParams | None = None, request_id: str | None = None, **options: Any
    ) -> EmbeddingRequestOutput:
        """The vector of one prompt. options: priority, client_id, cache_salt, add_special_tokens, as for `generate`; raises as it does."""
        self._bind_loop()
        request = self.front_end.input_processor.process_pooling(
            prompt, pooling_params or PoolingParams(), request_id=request_id, **options
        )
        async with aclosing(self._stream(request)) as outputs:
            return EmbeddingRequestOutput.of([output async for output in outputs][-1])

    async def _stream(self, request: EngineCoreRequest) -> AsyncGenerator[RequestOutput, None]:
        """Its outputs; closing the generator before the last one aborts the request."""
        collector = RequestOutputCollector(request.sampling_params.output_kind)
        children = self._output_processor.add_request(request, collector)
        finished = False
        try:
            for child in children:
                self._thread.add_request(child)
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self._abort([request.request_id])

    async def generate_session(
        self, inputs: AsyncIterable[Prompt], sampling_params: SamplingParams | None = None, request_id: str | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """One request whose input comes piece by piece: each piece is a turn, answered with the context of all before.

        Outputs as for `generate`; the last one follows the end of the input. Raises also what `inputs` raises.
        """
        self._bind_loop()
        pieces = aiter(inputs)
        request = self.front_end.input_processor.process(
            await anext(pieces), sampling_params or SamplingParams(), request_id=request_id, is_session=True
        )
        collector = RequestOutputCollector(request.sampling_params.output_kind)
        self._output_processor.add_request(request, collector)
        feeder = asyncio.create_task(self._feed(request.request_id, pieces, collector))
        finished = False
        try:
            self._thread.add_request(request)
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            feeder.cancel()
            if not finished:
                self._abort([request.request_id])

    async def _feed(self, request_id: str, pieces: AsyncIterator[Prompt], collector: RequestOutputCollector) -> None:
        try:
            async for piece in pieces:
                self._extend(request_id, self.front_end.input_processor.more_input(piece))
            self._extend(request_id, None)
        except Exception as error:
            collector.put(error)

    def _extend(self, request_id: str, token_ids: list[int] | None) -> None:
        self._thread.call(lambda core: core.extend_session(request_id, token_ids))

    async def abort(self, request_id: str) -> None:
        """End all requests of that id; each yields a last output with reason `abort`. Unknown ids are ignored."""
        self._abort([request_id])

    def shutdown(self) -> None:
        """Abort what is left and end the engine's thread; requests in flight end with EngineDeadError."""
        self._thread.stop()
        self._output_processor.fail_all(EngineDeadError("The engine was shut down."))

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.shutdown()

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def _bind_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("This AsyncLLM belongs to another event loop; make one per loop.")

    def _on_loop(self, function: Any, *arguments: Any) -> None:
        """Called from the engine's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _process(self, outputs: Sequence[EngineCoreOutput]) -> None:
        processed = self._output_processor.process(outputs)
        if processed.request_ids_to_abort:
            self._thread.abort_requests(processed.request_ids_to_abort)

    def _abort(self, request_ids: Sequence[str]) -> None:
        ended = self._output_processor.abort(request_ids)
        if ended:
            self._thread.abort_requests(ended)

    def _refuse(self, request_id: str, error: Exception) -> None:
        lost = self._output_processor.fail(request_id, error)
        self._thread.abort_requests(lost)

    def _die(self, error: BaseException) -> None:
        failure = EngineDeadError(f"The engine ended with {type(error).__name__}: {error}")
        failure.__cause__ = error
        self._output_processor.fail_all(failure)
