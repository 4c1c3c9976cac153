"""`slotwise chat` on a tiny model, through a pipe and on a terminal: turns, commands, limits, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import subprocess
import sys

import pytest

from slotwise.cli.chat_session import ChatSession
from slotwise.engine.llm import LLM
from slotwise.errors import InvalidRequestError
from slotwise.sampling_params import SamplingParams

ON_TERMINAL = """
import fcntl, sys, termios
from slotwise.cli import main
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.exit(main())
"""
"""Makes standard input the terminal that controls the process, so that Ctrl-C typed there reaches it."""
CTRL_C, CTRL_D = b"\x03", b"\x04"
EIGHT = ("--max-tokens", "8", "--ignore-eos")


class InterruptingStdout(io.StringIO):
    """Presses Ctrl-C while its first text is written."""

    encoding = "utf-8"
    is_pressed = False

    def write(self, text: str) -> int:
        if not self.is_pressed:
            self.is_pressed = True
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def records(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="module")
def llm(chat_model):
    with LLM(model=str(chat_model)) as made:
        yield made


@pytest.fixture
def session(llm):
    return ChatSession(llm, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))


def answer_to(llm, *messages: str) -> str:
    """Greedy answer to messages of user and assistant in turn."""
    roles = ("user", "assistant")
    conversation = [{"role": roles[number % 2], "content": text} for number, text in enumerate(messages)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    return llm.chat(conversation, params, use_tqdm=False)[0].outputs[0].text


def test_answers_go_to_stdout_and_everything_else_to_stderr(cli, llm, chat_model):
    code, out, err = cli("chat", "-m", chat_model, *EIGHT, stdin="Hi\n\nHo\n")
    first = answer_to(llm, "Hi")
    second = answer_to(llm, "Hi", first, "Ho")
    assert code == 0
    assert out == "".join(text if text.endswith("\n") else text + "\n" for text in (first, second))
    banner, *summaries = err.splitlines()
    assert "context 512 tokens | attention=" in banner
    assert [line.partition("first token")[0] for line in summaries] == [
        "cut by --max-tokens | 20 prompt + 8 new tokens | ",
        f"cut by --max-tokens | {20 + 8 + 1 + 9 + 11} prompt + 8 new tokens | ",
    ]


def test_the_second_turn_finds_the_first_in_the_prefix_cache(cli, chat_model):
    code, out, _ = cli("chat", "-m", chat_model, "--json", *EIGHT, "--set", "kv_cache.block_size=4", stdin="Hello there\nAnd more\n")
    first, second = records(out)
    assert code == 0
    assert first["num_cached_tokens"] == 0
    # All of the first turn but its last block, of which at most the last answer token was never computed.
    assert second["num_cached_tokens"] >= first["num_prompt_tokens"] + 8 - 4
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == first["text"]
    assert {item["slot"] for item in second["components"]} >= {"attention", "scheduler", "kv_cache", "sampler", "model", "weights"}


def test_the_summary_shows_the_cache_hit(cli, chat_model):
    _, _, err = cli("chat", "-m", chat_model, *EIGHT, "--set", "kv_cache.block_size=4", stdin="Hello there\nAnd more\n")
    cached = [int(line.split(" | ")[-1].removesuffix(" cached")) for line in err.splitlines()[1:]]
    assert cached[0] == 0
    assert cached[1] > 0


def test_reset_forgets_the_conversation_and_keeps_the_system_message(cli, chat_model):
    lines = "Hi\n/reset\nHo\n/system\nHa\n"
    _, out, err = cli("chat", "-m", chat_model, "--system", "Be brief", "--json", *EIGHT, stdin=lines)
    system = {"role": "system", "content": "Be brief"}
    first, second, third = records(out)
    assert second["messages"] == [system, {"role": "user", "content": "Ho"}]
    assert [message["role"] for message in third["messages"]] == ["user", "assistant", "user"]
    assert "The conversation is forgotten." in err
    assert "There is no system message now." in err
    assert first["messages"][0] == system


def test_system_sets_the_message_and_exit_leaves_the_rest_unread(cli, chat_model):
    _, out, _ = cli("chat", "-m", chat_model, "--json", *EIGHT, stdin="/system Speak like a pirate\nHi\n/exit\nHo\n")
    (only,) = records(out)
    assert only["messages"] == [{"role": "system", "content": "Speak like a pirate"}, {"role": "user", "content": "Hi"}]


def test_help_and_unknown_commands_are_told_on_stderr(cli, chat_model):
    code, out, err = cli("chat", "-m", chat_model, stdin="/help\n/rest\n")
    assert (code, out) == (0, "")
    for command in ("/help", "/reset", "/system TEXT", "/exit", "Ctrl-C"):
        assert command in err
    assert 'There is no command /rest. Did you mean "/reset"?' in err


def test_two_slashes_send_a_message_that_begins_with_one(session, llm, capsys):
    session.run(["//help"])
    assert session.history == [{"role": "user", "content": "/help"}, {"role": "assistant", "content": answer_to(llm, "/help")}]


def test_a_conversation_that_outgrew_the_context_is_told_how_to_go_on(cli, chat_model):
    lines = f"Hi\n{'y' * 90}\nHo\n/reset\nHo\n"
    code, out, err = cli("chat", "-m", chat_model, "--json", *EIGHT, "--set", "model.max_model_len=100", stdin=lines)
    first, refused, after, fresh = records(out)
    assert code == 0
    assert refused["error"]["type"] == "PromptTooLongError"
    assert [message["content"] for message in after["messages"]] == ["Hi", first["text"], "Ho"]
    assert [message["content"] for message in fresh["messages"]] == ["Ho"]
    _, _, err = cli("chat", "-m", chat_model, *EIGHT, "--set", "model.max_model_len=100", stdin=lines)
    assert "Your message was not sent: The prompt has " in err
    assert "/reset forgets the conversation so far." in err


def test_a_first_message_that_is_too_long_asks_for_a_shorter_one(cli, chat_model):
    _, out, err = cli("chat", "-m", chat_model, "--set", "model.max_model_len=50", stdin="y" * 60 + "\n")
    assert out == ""
    assert "Send a shorter one." in err


def test_an_answer_that_filled_the_context_says_so(cli, chat_model):
    _, _, err = cli("chat", "-m", chat_model, "--ignore-eos", "--set", "model.max_model_len=40", stdin="Hi\n")
    assert err.splitlines()[-1].startswith("the context is full, /reset starts anew | 20 prompt + 20 new tokens")


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(llm, monkeypatch, capsys):
    stdout = InterruptingStdout()
    monkeypatch.setattr(sys, "stdout", stdout)
    session = ChatSession(llm, SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    session.send("Hi")
    partial = session.history[1]["content"]
    assert 0 < len(partial) < 5
    assert capsys.readouterr().err.startswith("stopped | 20 prompt + ")
    assert not llm.engine.has_unfinished_requests
    session.send("Ho")
    assert [message["role"] for message in session.history] == ["user", "assistant"] * 2
    assert capsys.readouterr().err.startswith("cut by --max-tokens | ")
    assert len(session.history[3]["content"]) == 200


def test_a_message_that_is_no_unicode_is_refused_and_the_next_answered(cli, chat_model):
    code, out, _ = cli("chat", "-m", chat_model, "--json", *EIGHT, stdin="caf\udce9\nHi\n")
    refused, answered = records(out)
    assert code == 0
    assert refused["error"]["type"] == "InvalidRequestError"
    assert [message["content"] for message in answered["messages"]] == ["Hi"]
    assert cli("chat", "-m", chat_model, "--system", "caf\udce9", stdin="Hi\n")[0] == 2


def test_a_model_without_chat_template_is_refused_at_the_start(cli, plain_model):
    code, out, err = cli("chat", "-m", plain_model, stdin="Hi\n")
    assert (code, out) == (2, "")
    assert "chat template" in err
    assert "model.chat_template" in err


def test_a_template_that_takes_no_system_message_is_refused_at_the_start(llm):
    with pytest.raises(InvalidRequestError):
        ChatSession(_WithTemplate(llm, "{{ raise_exception('no system message') }}"), SamplingParams(), system="Be brief")


class _WithTemplate:
    """The engine with another chat template."""

    def __init__(self, llm: LLM, chat_template: str) -> None:
        self._llm, self._chat_template = llm, chat_template

    def encode_chat(self, messages):
        return self._llm.encode_chat(messages, chat_template=self._chat_template)


def test_the_end_of_the_input_leaves(cli, chat_model):
    assert cli("chat", "-m", chat_model, stdin="")[:2] == (0, "")


def test_a_conversation_is_greedy_so_that_it_repeats(cli, chat_model):
    runs = [cli("chat", "-m", chat_model, *EIGHT, stdin="Hi\nHo\n")[1] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_on_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves(chat_model):
    import pty

    parent, child = pty.openpty()
    arguments = ["chat", "-m", str(chat_model), "--max-tokens", "400", "--ignore-eos"]
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *arguments], stdin=child, stdout=child, stderr=child, start_new_session=True
    )
    os.close(child)
    screen = Screen(parent)
    try:
        screen.read_until(rb"loading.*/help.*> ")
        os.write(parent, b"Hi\n")
        screen.read_until(rb"Hi\r\n.*\w")
        os.write(parent, CTRL_C)
        screen.read_until(rb"stopped \| 20 prompt \+ .* cached.*> ")
        screen.press_until(CTRL_C, rb"Ctrl-D or /exit leaves.*> ")
        os.write(parent, CTRL_D)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)


class Screen:
    """What a terminal showed and nobody has read yet."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = b""

    def read_until(self, pattern: bytes) -> None:
        """Wait for the pattern; what stands up to its end counts as read."""
        assert self._wait(pattern, timeout_s=60), f"waited for {pattern!r}, got {self._unread!r}"

    def press_until(self, key: bytes, pattern: bytes) -> None:
        """Press a key, again if need be: readline overlooks a signal that comes just before it begins to wait."""
        for _ in range(30):
            os.write(self._descriptor, key)
            if self._wait(pattern, timeout_s=2):
                return
        raise AssertionError(f"waited for {pattern!r}, got {self._unread!r}")

    def _wait(self, pattern: bytes, timeout_s: float) -> bool:
        while not (match := re.search(pattern, self._unread, re.DOTALL)):
            if not select.select([self._descriptor], [], [], timeout_s)[0]:
                return False
            self._unread += os.read(self._descriptor, 4096)
        self._unread = self._unread[match.end() :]
        return True
