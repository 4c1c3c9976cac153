"""What the output processor keeps of one completion: ids, text and logprobs so far, and how much of them was sent.

What this file does not know: other completions of the request, collectors, the core.
"""

from __future__ import annotations

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.detokenizer import TextDecoder
from slotwise.engine.logprobs import OutputLogprobs
from slotwise.engine.outputs import CompletionOutput, EngineCoreOutput, FinishReason
from slotwise.engine.stop_strings import StopStringFilter
from slotwise.engine.text_stream import TextStream
from slotwise.sampling_params import OutputKind


class CompletionState:
    """One completion. Work per token does not grow with the output, except that CUMULATIVE outputs copy what they carry."""

    __slots__ = (
        "_end_sent",
        "_is_delta",
        "_is_final_only",
        "_logprobs",
        "_num_sent",
        "_params",
        "_pieces",
        "_stop_filter",
        "_stop_ids",
        "_stream",
        "_text",
        "finish_reason",
        "index",
        "request_id",
        "stop_reason",
        "token_ids",
    )

    def __init__(self, request: EngineCoreRequest, index: int, decoder: TextDecoder | None) -> None:
        params = request.sampling_params
        self.request_id = request.request_id
        self.index = index
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._params = params
        self._is_delta = params.output_kind is OutputKind.DELTA
        self._is_final_only = params.output_kind is OutputKind.FINAL_ONLY
        self._stop_ids = request.stop_token_ids
        self._stream: TextStream | None = None
        if decoder is not None and params.detokenize:
            self._stream = decoder.stream(request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens)
        self._stop_filter = StopStringFilter(params.stop, include_in_output=params.include_stop_str_in_output) if params.stop else None
        self._logprobs: OutputLogprobs | None = None
        if params.logprobs is not None:
            self._logprobs = OutputLogprobs(params.logprobs, None if decoder is None else decoder.token_text)
        self._text = ""
        self._pieces: list[str] = []
        """Text not sent yet."""
        self._num_sent = 0
        """Tokens sent."""
        self._end_sent = False

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def update(self, output: EngineCoreOutput) -> bool:
        """Takes in one step's output. Returns whether a stop string ended the completion, which the core cannot know."""
        new_ids = output.new_token_ids
        stop_filter = self._stop_filter
        if self._stream is not None and new_ids:
            shown_ids = new_ids if output.finish_reason is None else self._shown_ids(new_ids, output.finish_reason)
            if stop_filter is None:
                self._pieces.append(self._stream.append(shown_ids))
            else:
                num_searched = self._search_text(self._stream, stop_filter, shown_ids)
                if stop_filter.matched is not None:
                    new_ids = new_ids[:num_searched]
        self.token_ids.extend(new_ids)
        if self._logprobs is not None and output.new_logprobs:
            self._logprobs.append(output.new_logprobs[: len(new_ids)])
        if output.finish_reason is not None and (stop_filter is None or stop_filter.matched is None):
            self.finish(output.finish_reason, output.stop_reason)
        elif output.turn_ended and self._stream is not None:
            self._show(self._stream.flush(), searched=False)
        if stop_filter is None or stop_filter.matched is None:
            return False
        self.finish_reason, self.stop_reason = FinishReason.STOP, stop_filter.matched
        return True

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """Ends the completion with all text it has."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        if self._stream is not None:
            self._show(self._stream.flush(), searched=len(self.token_ids) > self._params.min_tokens)
            if self._stop_filter is not None:
                self._pieces.append(self._stop_filter.flush())

    def fail(self) -> None:
        """Ends the completion with the text shown so far; touches nothing that may be broken."""
        self.finish_reason, self.stop_reason = FinishReason.ERROR, None

    def next_completion(self) -> CompletionOutput | None:
        """What is to be sent now, None if nothing; counts as sent. FINAL_ONLY: nothing before the end. Others: at the first token, whenever
        stream_interval tokens are unsent, and at the end. Nothing after the end."""
        num_tokens, num_sent = len(self.token_ids), self._num_sent
        finish_reason = None
        if self.finish_reason is None:
            if self._is_final_only or num_tokens - num_sent < (self._params.stream_interval if num_sent else 1):
                return None
        elif self._end_sent:
            return None
        else:
            self._end_sent = True
            finish_reason = self.finish_reason.value
        self._num_sent = num_tokens
        start = num_sent if self._is_delta else 0
        output = CompletionOutput(
            index=self.index,
            text="" if self._stream is None else self._next_text(),
            token_ids=self.token_ids[start:],
            finish_reason=finish_reason,
            stop_reason=self.stop_reason,
        )
        if self._logprobs is not None:
            output.cumulative_logprob = self._logprobs.cumulative
            output.logprobs = self._logprobs.positions[start:]
        return output

    def _shown_ids(self, new_ids: list[int], finish_reason: FinishReason) -> list[int]:
        """New ids without a stop token that ended the output, which is shown only on request."""
        if finish_reason is FinishReason.STOP and new_ids[-1] in self._stop_ids and not self._params.include_stop_str_in_output:
            return new_ids[:-1]
        return new_ids

    def _search_text(self, stream: TextStream, stop_filter: StopStringFilter, new_ids: list[int]) -> int:
        """Token by token, so that what a stop string does not depend on how many came at once. It may end at the token after the first
        min_tokens. Returns how many tokens there are up to a match, or all."""
        num_before = len(self.token_ids)
        for count, token_id in enumerate(new_ids, start=1):
            self._show(stream.append([token_id]), searched=num_before + count > self._params.min_tokens)
            if stop_filter.matched is not None:
                return count
        return len(new_ids)

    def _show(self, piece: str, *, searched: bool) -> None:
        if self._stop_filter is not None:
            piece = self._stop_filter.feed(piece, searched=searched)
        self._pieces.append(piece)

    def _next_text(self) -> str:
        text = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
        self._pieces.clear()
        if self._is_delta:
            return text
        self._text += text
        return self._text
