"""`LLMEngine`: text in, `RequestOutput` out, one step at a time, in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.front_end import FrontEnd
from slotwise.engine.outputs import RequestOutput
from slotwise.engine.prompt_checks import Prompt
from slotwise.errors import EngineDeadError
from slotwise.pooling_params import PoolingParams
from slotwise.sampling_params import SamplingParams


class LLMEngine:
    """A front end stepped by its caller.

    If a step raises, every request is lost, the exception reaches the caller, and the engine serves on.
    """

    def __init__(self, front_end: FrontEnd) -> None:
        self.front_end = front_end
        self.core = front_end.core
        self._input_processor = front_end.input_processor
        self._output_processor = front_end.output_processor
        self._is_shut_down = False

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        client_id: str | None = None,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
        is_session: bool = False,
    ) -> str:
        """Let a request wait. Returns its internal id. Raises InvalidRequestError or QueueFullError; then nothing was added.

        is_session: where a plain request would end, this one waits for `extend_session`; max_tokens counts per turn.
        """
        return self._submit(
            self._input_processor.process(
                prompt,
                params or SamplingParams(),
                request_id=request_id,
                priority=priority,
                client_id=client_id,
                cache_salt=cache_salt,
                add_special_tokens=add_special_tokens,
                is_session=is_session,
            )
        )

    def add_pooling_request(self, prompt: Prompt, params: PoolingParams | None = None, **options: Any) -> str:
        """Let a request for a prompt's vector wait; its one output has it as `embedding`. options: request_id, priority, client_id,
        cache_salt, add_special_tokens, as for `add_request`."""
        return self._submit(self._input_processor.process_pooling(prompt, params or PoolingParams(), **options))

    def _submit(self, request: EngineCoreRequest) -> str:
        if self._is_shut_down:
            raise EngineDeadError("The engine was shut down; make a new one.")
        try:
            for child in self._output_processor.add_request(request):
                self.core.add_request(child)
        except BaseException as error:
            self.discard_requests([request.request_id], error)
            raise
        return request.request_id

    @property
    def has_unfinished_requests(self) -> bool:
        return self._output_processor.has_unfinished()

    def step(self) -> list[RequestOutput]:
        """One step of the core, its outputs as text. Requests that a stop string ended leave the core at once."""
        try:
            outputs = self.core.step() if self.core.has_work and not self._is_shut_down else []
        except BaseException as error:
            self.core.abort_all()
            self._output_processor.fail_all(error)
            raise
        processed = self._output_processor.process(outputs)
        if processed.request_ids_to_abort:
            self.core.abort_requests(processed.request_ids_to_abort)
        return processed.request_outputs

    def extend_session(self, request_id: str, prompt: Prompt | None) -> None:
        """More input for a session, by the id `add_request` returned, or None for the end of its input; also before the turn is over.

        The sequence so far, without the last sampled token, is the context of the new input. Raises InvalidRequestError.
        """
        self.core.extend_session(request_id, None if prompt is None else self._input_processor.more_input(prompt))

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests by the caller's or the internal id; each gives a last output with reason `abort`. Unknown ids are ignored."""
        self.core.abort_requests(self._output_processor.abort(request_ids))

    def discard_requests(self, request_ids: Iterable[str], error: BaseException) -> None:
        """End requests by their internal ids without an output."""
        for request_id in request_ids:
            self.core.abort_requests(self._output_processor.fail(request_id, error))

    def shutdown(self) -> None:
        """End what is left without an output, and tell the observers. The engine takes no more requests; doing it again changes nothing."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._output_processor.fail_all(EngineDeadError("The engine was shut down."))
            self.core.close()
