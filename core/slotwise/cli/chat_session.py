"""One conversation: messages and commands in, streamed answers out; a message that cannot be answered leaves the conversation as it was.

What this file does not know: where lines come from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slotwise.cli.failures import error_record
from slotwise.cli.generation import Answer, run_prompts
from slotwise.cli.prompts import PromptEntry, conversation
from slotwise.cli.run_summary import answer_record, measure, summary_line
from slotwise.cli.run_view import AnswerView, notice, show_summary
from slotwise.errors import InvalidRequestError, PromptTooLongError
from slotwise.plugin.suggestions import did_you_mean
from slotwise.sampling_params import OutputKind

if TYPE_CHECKING:
    from slotwise.engine.llm import LLM
    from slotwise.sampling_params import SamplingParams

HELP = """\
/help          this text
/reset         forget the conversation; the system message stays
/system TEXT   set the system message; without TEXT remove it
/exit          leave, as Ctrl-D does
Ctrl-C         stop the answer; what was said so far stays in the conversation
A message that begins with a slash is written with two: //like this"""


class ChatSession:
    """Keeps the history. Answers go to stdout, everything else to stderr."""

    def __init__(self, llm: LLM, params: SamplingParams, *, system: str | None = None, as_json: bool = False) -> None:
        """as_json: one JSON object per answer and line instead of streamed text. Raises InvalidRequestError if the model cannot chat."""
        self.history: list[Mapping[str, Any]] = []
        self.system = system
        self._llm = llm
        self._params = params.clone()
        self._params.output_kind = OutputKind.FINAL_ONLY if as_json else OutputKind.CUMULATIVE
        self._as_json = as_json
        self._commands: dict[str, Callable[[str], None]] = {"/help": self._help, "/reset": self._reset, "/system": self._set_system}
        entry = self._entry("Hello")
        entry.check_text()
        llm.encode_chat(entry.messages or [])

    def run(self, lines: Iterable[str]) -> None:
        """Answer every line until /exit or the end."""
        for line in lines:
            command, _, rest = line.strip().partition(" ")
            if command == "/exit":
                return
            if command.startswith("/") and not command.startswith("//"):
                self._command(command, rest.strip())
            elif command:
                self.send(line.replace("//", "/", 1) if command.startswith("//") else line)

    def send(self, text: str) -> None:
        """Answer one message."""
        view = AnswerView()
        entry = self._entry(text)
        try:
            entry.check_text()
        except InvalidRequestError as error:
            self._refused(error)
            return
        run = run_prompts(self._llm, [entry], self._params, (lambda _: None) if self._as_json else view.show)
        answer = run.answers[0]
        if answer.error is not None:
            self._refused(answer.error)
            return
        if answer.text:
            self.history = [*self.history, {"role": "user", "content": text}, {"role": "assistant", "content": answer.text}]
        if self._as_json:
            self._write_line({**answer_record(answer), "components": [asdict(item) for item in self._llm.components]})
            return
        view.end()
        show_summary(" | ".join([*self._remarks(answer), summary_line(measure([answer]))]))

    def _entry(self, text: str) -> PromptEntry:
        messages = conversation(self.system, [*self.history, {"role": "user", "content": text}])
        return PromptEntry(where="The message", messages=messages)

    def _refused(self, error: InvalidRequestError) -> None:
        if self._as_json:
            self._write_line({"error": error_record(error)})
            return
        hint = ""
        if isinstance(error, PromptTooLongError):
            hint = " /reset forgets the conversation so far." if self.history else " Send a shorter one."
        notice(f"Your message was not sent: {error}{hint}")

    def _remarks(self, answer: Answer) -> list[str]:
        """What the user should know of how the answer ended."""
        output = answer.output
        if answer.finish_reason == "abort":
            return ["stopped"]
        if output is not None and answer.finish_reason == "error":
            return [f"failed: {output.error or 'the engine gave no reason'}"]
        if output is None or answer.finish_reason != "length":
            return []
        if len(output.prompt_token_ids) + len(output.outputs[0].token_ids) >= self._llm.max_model_len:
            return ["the context is full, /reset starts anew"]
        return ["cut by --max-tokens"]

    def _command(self, command: str, rest: str) -> None:
        act = self._commands.get(command)
        if act is None:
            known = [*self._commands, "/exit"]
            notice(f"There is no command {command}.{did_you_mean(command, known)} Commands: {', '.join(known)}.")
        else:
            act(rest)

    def _help(self, rest: str) -> None:
        notice(HELP)

    def _reset(self, rest: str) -> None:
        self.history = []
        notice("The conversation is forgotten.")

    def _set_system(self, rest: str) -> None:
        self.system = rest or None
        notice("The system message is set; the conversation goes on." if rest else "There is no system message now.")

    @staticmethod
    def _write_line(record: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        sys.stdout.flush()
