"""Runs prompts on an engine to their end. A prompt that is refused hurts no other; Ctrl-C ends all with the text they have.

What this file does not know: where prompts come from, how results are shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotwise.cli.interruption import Interruption
from slotwise.cli.prompts import PromptEntry
from slotwise.errors import InvalidRequestError, QueueFullError

if TYPE_CHECKING:
    from slotwise.engine.llm import LLM
    from slotwise.engine.outputs import RequestOutput
    from slotwise.sampling_params import SamplingParams


@dataclass(kw_only=True, slots=True)
class Answer:
    """What became of one prompt. Neither output nor error: it was interrupted before it began."""

    entry: PromptEntry
    output: RequestOutput | None = None
    error: InvalidRequestError | None = None
    """Why the engine refused it."""

    @property
    def text(self) -> str:
        return "" if self.output is None else self.output.outputs[0].text

    @property
    def finish_reason(self) -> str | None:
        """`abort` for one that was interrupted, None for one that was refused."""
        if self.output is not None:
            return self.output.outputs[0].finish_reason
        return "abort" if self.error is None else None


@dataclass(kw_only=True, slots=True)
class Run:
    """Answers in the order of the prompts."""

    answers: list[Answer]
    was_interrupted: bool


def run_prompts(
    llm: LLM, entries: Sequence[PromptEntry], params: SamplingParams, on_output: Callable[[Answer], None] = lambda _: None
) -> Run:
    """Compute all prompts together.

    on_output is called after each step for every answer that has something new, as `params.output_kind` says, with an output that
    carries all text so far; DELTA outputs are of no use here. Raises what a step raises, and KeyboardInterrupt at the second Ctrl-C.
    """
    answers = [Answer(entry=entry) for entry in entries]
    waiting = deque(range(len(answers)))
    engine = llm.engine
    with Interruption() as interruption:
        while waiting or engine.has_unfinished_requests:
            if interruption.is_wanted:
                waiting.clear()
                engine.abort_requests([_request_id(index) for index in range(len(answers))])
            _submit(llm, answers, waiting, params, on_output)
            for output in engine.step():
                answer = answers[_index(output.request_id)]
                answer.output = output
                on_output(answer)
        return Run(answers=answers, was_interrupted=interruption.is_wanted)


def _submit(llm: LLM, answers: Sequence[Answer], waiting: deque[int], params: SamplingParams, on_output: Callable[[Answer], None]) -> None:
    """Hand over as many waiting prompts as the engine accepts."""
    while waiting:
        answer = answers[waiting[0]]
        try:
            llm.engine.add_request(_prompt(llm, answer.entry), params, request_id=_request_id(waiting[0]))
        except InvalidRequestError as error:
            answer.error = error
            on_output(answer)
        except QueueFullError:
            if not llm.engine.has_unfinished_requests:
                raise
            return
        waiting.popleft()


def _prompt(llm: LLM, entry: PromptEntry) -> Any:
    if entry.messages is not None:
        return {"prompt_token_ids": llm.encode_chat(entry.messages)}
    return {"prompt_token_ids": entry.token_ids} if entry.token_ids is not None else entry.text


def _request_id(index: int) -> str:
    return f"prompt-{index}"


def _index(request_id: str) -> int:
    return int(request_id.removeprefix("prompt-"))
