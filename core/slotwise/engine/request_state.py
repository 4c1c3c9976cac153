"""What the output processor keeps of one caller's request: its n completions, and how they become `RequestOutput`s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.detokenizer import TextDecoder
from slotwise.engine.logprobs import prompt_logprobs
from slotwise.engine.output_state import CompletionState
from slotwise.engine.outputs import CompletionOutput, EngineCoreOutput, Logprob, RequestMetrics, RequestOutput
from slotwise.sampling_params import OutputKind


class OutputSink(Protocol):
    """Where a request's outputs go, such as a `RequestOutputCollector`; called on the thread that processes outputs."""

    def put(self, output: RequestOutput | BaseException) -> None: ...


class RequestState:
    """One request as its caller sees it."""

    def __init__(
        self, request: EngineCoreRequest, children: list[EngineCoreRequest], decoder: TextDecoder | None, sink: OutputSink | None
    ) -> None:
        self.request_id = request.request_id
        self.external_id = request.external_id
        self.sink = sink
        self.states = [CompletionState(child, index, decoder) for index, child in enumerate(children)]
        self.num_unfinished = len(children)
        self.error: str | None = None
        self._request = request
        kind = request.sampling_params.output_kind
        self._is_delta = kind is OutputKind.DELTA
        self._is_final_only = kind is OutputKind.FINAL_ONLY
        self._token_text: Callable[[int], str] | None = None if decoder is None else decoder.token_text
        self._last_sent: list[CompletionOutput | None] = [None] * len(children)
        """For CUMULATIVE and FINAL_ONLY outputs, which carry all completions."""
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._embedding: list[float] | None = None
        self._num_cached_tokens = 0
        self._metrics = RequestMetrics(arrival_time=request.arrival_time)

    def note(self, state: CompletionState, output: EngineCoreOutput, now: float) -> None:
        """Takes in what concerns the request as a whole. Cached tokens are those of completion 0: the others find what it computed."""
        if self._metrics.first_token_time is None and output.new_token_ids:
            self._metrics.first_token_time = now
        if state.index == 0 and output.num_cached_tokens >= 0:
            self._num_cached_tokens = output.num_cached_tokens
        if output.error is not None:
            self.error = output.error
        if output.embedding is not None:
            self._embedding = output.embedding
        if output.new_prompt_logprobs is not None:
            wanted = self._request.sampling_params.prompt_logprobs
            if wanted is not None:
                self._prompt_logprobs = prompt_logprobs(output.new_prompt_logprobs, wanted, self._token_text)

    def note_finished(self, now: float) -> None:
        """One more completion has ended."""
        self.num_unfinished -= 1
        self._metrics.finished_time = now

    def next_output(self) -> RequestOutput | None:
        """What is to be sent now, None if nothing. DELTA: completions with something new. CUMULATIVE: all that have begun, as last sent.
        FINAL_ONLY: all, when the last has ended."""
        is_last = self.num_unfinished == 0
        if self._is_final_only and not is_last:
            return None
        outputs = [completion for state in self.states if (completion := state.next_completion()) is not None]
        if not outputs:
            return None
        if not self._is_delta and len(self.states) > 1:
            outputs = self._with_last_sent(outputs)
        output = RequestOutput(
            request_id=self.external_id,
            prompt=self._request.prompt,
            prompt_token_ids=self._request.prompt_token_ids,
            outputs=outputs,
            finished=is_last,
            num_cached_tokens=self._num_cached_tokens,
            prompt_logprobs=self._prompt_logprobs,
            embedding=self._embedding,
            error=self.error,
            metrics=self._metrics,
        )
        if self._is_delta:
            self._prompt_logprobs = None
        return output

    def _with_last_sent(self, news: list[CompletionOutput]) -> list[CompletionOutput]:
        """`news`, and the others as they were last sent."""
        for completion in news:
            self._last_sent[completion.index] = completion
        return [completion for completion in self._last_sent if completion is not None]
