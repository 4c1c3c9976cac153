"""`OutputProcessor`: the core's outputs -> text, stop strings, logprobs, streams.

Lives with the front end, one per engine, on one thread. A fault while handling one request ends that request only. What this file does not
know: how requests are computed, or how outputs travel to their consumers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.detokenizer import TextDecoder
from slotwise.engine.output_state import CompletionState
from slotwise.engine.outputs import EngineCoreOutput, FinishReason, RequestOutput
from slotwise.engine.parallel_sampling import fan_out
from slotwise.engine.request_state import OutputSink, RequestState

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class ProcessedOutputs:
    """Result of `OutputProcessor.process`."""

    request_outputs: list[RequestOutput] = field(default_factory=list)
    """Of requests without a sink, in the order the core gave them."""
    request_ids_to_abort: list[str] = field(default_factory=list)
    """Internal ids that ended here, by a stop string or a fault, and that the core still computes."""


class OutputProcessor:
    """Keeps the state of every unfinished request."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """tokenizer None: outputs have ids and no text. clock: the one that made `arrival_time`."""
        self._decoder = None if tokenizer is None else TextDecoder(tokenizer)
        self._clock = clock
        self._completions: dict[str, tuple[RequestState, CompletionState]] = {}
        """Internal id, as the core knows it -> unfinished completion."""
        self._requests: dict[str, RequestState] = {}
        self._of_external_id: dict[str, list[RequestState]] = {}
        self._waiting: list[RequestOutput] = []
        """Outputs of aborted requests without a sink; the next `process` returns them."""

    @property
    def num_unfinished(self) -> int:
        """Callers' requests; n completions count once."""
        return len(self._requests)

    def has_unfinished(self) -> bool:
        """Whether `process` has still something to return."""
        return bool(self._requests or self._waiting)

    def add_request(self, request: EngineCoreRequest, sink: OutputSink | None = None) -> list[EngineCoreRequest]:
        """Expects outputs of a request; with a sink they go there, else `process` returns them. Returns what to give to the core: the
        request itself, or its n children."""
        children = fan_out(request)
        state = RequestState(request, children, self._decoder, sink)
        self._requests[request.request_id] = state
        self._of_external_id.setdefault(request.external_id, []).append(state)
        for completion in state.states:
            self._completions[completion.request_id] = (state, completion)
        return children

    def process(self, outputs: Sequence[EngineCoreOutput]) -> ProcessedOutputs:
        """Takes one step's outputs. Those of unknown requests (aborted meanwhile) are ignored."""
        processed = ProcessedOutputs(request_outputs=self._waiting)
        self._waiting = []
        now = self._clock()
        touched: dict[str, RequestState] = {}
        for output in outputs:
            known = self._completions.get(output.request_id)
            if known is None:
                continue
            request, completion = known
            touched[request.request_id] = request
            if self._update(request, completion, output, now) and output.finish_reason is None:
                processed.request_ids_to_abort.append(output.request_id)
            if completion.finish_reason is not None:
                self._finished(request, completion, now)
        for request in touched.values():
            self._deliver(request, processed.request_outputs)
        return processed

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """Ends requests with reason `abort`; each id is a caller's (all its requests end) or an internal one, unknown ones are ignored.

        Their final outputs, with all text so far, go to the sinks, or come from the next `process`. Returns the internal ids that the core
        must abort."""
        now = self._clock()
        aborted: list[str] = []
        for request_id in request_ids:
            for request, completions in self._matching(request_id):
                for completion in completions:
                    self._end_aborted(request, completion)
                    self._finished(request, completion, now)
                    aborted.append(completion.request_id)
                self._deliver(request, self._waiting)
        return aborted

    def fail(self, request_id: str, error: BaseException) -> list[str]:
        """Drops one request that the core refused, named by its internal id or a child's: its sink gets the error, and nothing else comes
        of it. Returns the internal ids that were unfinished; empty for an unknown id."""
        request = self._requests.get(request_id)
        if request is None and request_id in self._completions:
            request = self._completions[request_id][0]
        if request is None:
            return []
        lost = [completion for completion in request.states if not completion.is_finished]
        for completion in lost:
            completion.fail()
            self._finished(request, completion, self._clock())
        if request.sink is not None:
            request.sink.put(error)
        return [completion.request_id for completion in lost]

    def fail_all(self, error: BaseException) -> list[str]:
        """Ends every request because the engine died: sinks get the error, all state is dropped. Returns the internal ids."""
        lost = list(self._completions)
        requests = list(self._requests.values())
        for table in (self._completions, self._requests, self._of_external_id):
            table.clear()
        for request in requests:
            if request.sink is not None:
                request.sink.put(error)
        return lost

    def _update(self, request: RequestState, completion: CompletionState, output: EngineCoreOutput, now: float) -> bool:
        """Returns whether the completion ended for a reason the core does not know."""
        try:
            request.note(completion, output, now)
            return completion.update(output)
        except Exception as error:
            _logger.exception("request %s: its output could not be processed; only this request ends", request.external_id)
            request.error = f"the output could not be processed: {type(error).__name__}: {error}"
            completion.fail()
            return True

    @staticmethod
    def _end_aborted(request: RequestState, completion: CompletionState) -> None:
        """One whose last text cannot be made ends all the same, and the others that are aborted with it."""
        try:
            completion.finish(FinishReason.ABORT)
        except Exception as error:
            _logger.exception("request %s: its last text could not be made", request.external_id)
            request.error = f"the output could not be processed: {type(error).__name__}: {error}"
            completion.fail()

    def _matching(self, request_id: str) -> list[tuple[RequestState, list[CompletionState]]]:
        """Unfinished completions that an id names, by request."""
        named = list(self._of_external_id.get(request_id, ()))
        if request_id in self._requests and self._requests[request_id] not in named:
            named.append(self._requests[request_id])
        if named:
            return [(request, [state for state in request.states if not state.is_finished]) for request in named]
        child = self._completions.get(request_id)
        return [] if child is None else [(child[0], [child[1]])]

    def _finished(self, request: RequestState, completion: CompletionState, now: float) -> None:
        del self._completions[completion.request_id]
        request.note_finished(now)
        if request.num_unfinished:
            return
        del self._requests[request.request_id]
        same_id = self._of_external_id[request.external_id]
        same_id.remove(request)
        if not same_id:
            del self._of_external_id[request.external_id]

    @staticmethod
    def _deliver(request: RequestState, unsunk: list[RequestOutput]) -> None:
        output = request.next_output()
        if output is None:
            return
        if request.sink is None:
            unsunk.append(output)
            return
        try:
            request.sink.put(output)
        except Exception:
            _logger.exception("request %s: its consumer did not take an output; the others go on", request.external_id)
