"""`slotwise generate` on a tiny model: streaming, order, files, JSON, exit codes, Ctrl-C."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.cli.generation import run_prompts
from slotwise.cli.prompts import PromptEntry, collect_prompts
from slotwise.cli.run_parameters import sampling_params
from slotwise.cli.run_summary import components_line, measure, run_record, summary_line
from slotwise.cli.run_view import printable
from slotwise.engine.llm import LLM
from slotwise.engine.speculation_stats import SpeculationStats
from slotwise.errors import InvalidRequestError
from slotwise.interfaces.observer import ComponentInUse
from slotwise.sampling_params import OutputKind, SamplingParams

SIX = ("--max-tokens", "6", "--ignore-eos")


class Terminal(io.StringIO):
    """A stdout that remembers its writes, and may be a terminal or press Ctrl-C at the first one."""

    encoding = "utf-8"

    def __init__(self, *, is_terminal: bool = False, interrupts: bool = False) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._is_terminal = is_terminal
        self._interrupts = interrupts

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.pieces.append(text)
        if self._interrupts and len(self.pieces) == 1:
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def strict(text: str):
    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def llm(chat_model: Path):
    with LLM(model=str(chat_model), max_num_seqs=1) as made:
        yield made


def greedy_text(llm: LLM, prompt, num_tokens: int = 6) -> str:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text


def test_one_prompt_is_written_token_by_token_as_it_is_generated(cli, llm, chat_model, monkeypatch):
    stdout = Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)
    code, _, _ = cli("generate", "-m", chat_model, "Hello", *SIX)
    assert code == 0
    assert stdout.getvalue() == greedy_text(llm, "Hello") + "\n"
    assert len([piece for piece in stdout.pieces if piece != "\n"]) == 6


def test_no_stream_writes_the_text_at_once(cli, llm, chat_model, monkeypatch):
    stdout = Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)
    cli("generate", "-m", chat_model, "Hello", "--no-stream", *SIX)
    assert stdout.pieces == [greedy_text(llm, "Hello"), "\n"]


def test_a_pipe_carries_the_text_alone_and_the_summary_goes_to_stderr(cli, llm, chat_model):
    code, out, err = cli("generate", "-m", chat_model, "Hello", *SIX)
    assert (code, out) == (0, greedy_text(llm, "Hello") + "\n")
    (line,) = err.strip().splitlines()
    assert line.startswith("5 prompt + 6 new tokens | first token ")
    assert "tokens/s | 0 cached | attention=" in line
    assert " scheduler=fcfs kv_cache=paged eviction=lru sampler=torch grammar=llguidance model=fused linear=dense" in line


def test_on_a_terminal_the_summary_follows_the_text(cli, chat_model, monkeypatch):
    stdout = Terminal(is_terminal=True)
    monkeypatch.setattr(sys, "stdout", stdout)
    _, _, err = cli("generate", "-m", chat_model, "Hello", *SIX)
    assert err == ""
    assert "5 prompt + 6 new tokens" in stdout.getvalue().splitlines()[-1]


def test_several_prompts_are_printed_in_order_and_as_each_alone(cli, llm, chat_model):
    prompts = ["Hello", "a much longer prompt than the others", "x"]
    code, out, err = cli("generate", "-m", chat_model, *prompts, *SIX)
    expected = "".join(f"[{number}/3] {prompt}\n{greedy_text(llm, prompt)}\n\n" for number, prompt in enumerate(prompts, 1))
    assert (code, out) == (0, expected)
    assert "42 prompt + 18 new tokens | median first token" in err


def test_json_is_one_strict_document_with_outputs_metrics_and_components(cli, llm, chat_model):
    code, out, err = cli("generate", "-m", chat_model, "Hello", "x", "--json", *SIX)
    record = strict(out)
    assert (code, err) == (0, "")
    assert [item["prompt"] for item in record["outputs"]] == ["Hello", "x"]
    assert [item["text"] for item in record["outputs"]] == [greedy_text(llm, "Hello"), greedy_text(llm, "x")]
    assert [item["finish_reason"] for item in record["outputs"]] == ["length", "length"]
    assert [len(item["token_ids"]) for item in record["outputs"]] == [6, 6]
    metrics = record["metrics"]
    assert (metrics["num_prompts"], metrics["num_prompt_tokens"], metrics["num_new_tokens"]) == (2, 6, 12)
    assert 0 < metrics["time_to_first_token_s"] <= metrics["duration_s"]
    assert metrics["tokens_per_s"] == pytest.approx(12 / metrics["duration_s"])
    assert {item["slot"]: item["name"] for item in record["components"]} == {item.slot: item.name for item in llm.components}
    assert record["interrupted"] is False


def test_logprobs_put_the_sampled_token_first_and_write_an_infinite_one_as_null(cli, chat_model):
    _, out, _ = cli(
        *("generate", "-m", chat_model, "Hello", "--json", "--logprobs", "3", "--top-k", "1", "--temperature", "1", *SIX),
        *("--set", "sampler.logprobs_mode=processed_logprobs"),
    )
    (answer,) = strict(out)["outputs"]
    assert [position[0]["token_id"] for position in answer["logprobs"]] == answer["token_ids"]
    assert all(position[0]["logprob"] == pytest.approx(0.0) for position in answer["logprobs"])
    assert all(len(position) == 3 and position[-1]["logprob"] is None for position in answer["logprobs"])


def test_logprobs_without_json_is_an_error(cli, chat_model):
    code, _, err = cli("generate", "-m", chat_model, "Hello", "--logprobs", "3")
    assert code == 2
    assert "--json" in err


def test_chat_sends_the_prompt_through_the_chat_template(cli, llm, chat_model):
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    _, out, _ = cli("generate", "-m", chat_model, "--chat", "--system", "Be brief", "Hi", "--json", *SIX)
    (answer,) = strict(out)["outputs"]
    ids = llm.encode_chat(messages)
    assert answer["messages"] == messages
    assert (answer["num_prompt_tokens"], answer["text"]) == (len(ids), greedy_text(llm, ids))


def test_system_without_chat_is_an_error(cli, chat_model):
    code, _, err = cli("generate", "-m", chat_model, "--system", "Be brief", "Hi")
    assert code == 2
    assert "--chat" in err


def test_stop_ends_before_the_text(cli, llm, chat_model):
    text = greedy_text(llm, "Hello", 12)
    stop = text[5:7]
    _, out, _ = cli("generate", "-m", chat_model, "Hello", "--json", "--stop", stop, "--max-tokens", "12", "--ignore-eos")
    (answer,) = strict(out)["outputs"]
    assert answer["text"] == text[: text.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)


def test_the_same_seed_gives_the_same_text_and_another_one_another(cli, chat_model):
    def text(seed: str) -> str:
        return cli("generate", "-m", chat_model, "Hello", "--seed", seed, "--max-tokens", "24", "--ignore-eos")[1]

    assert text("1") == text("1")
    assert text("1") != text("2")


@given(
    st.sets(st.sampled_from(["top_p", "top_k", "min_p", "seed"])),
    st.none() | st.floats(min_value=0.01, max_value=2.0),
)
def test_without_a_temperature_a_run_is_greedy_unless_an_option_needs_draws(names, temperature):
    params = sampling_params(temperature=temperature, **{name: (0.5 if name.endswith("_p") else 3) for name in names})
    assert params.temperature == (temperature if temperature is not None else 1.0 if names else 0.0)
    assert (params.top_p == 0.5) == ("top_p" in names)


def test_prompts_of_a_text_file_are_its_lines_after_those_of_the_command_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufefffirst\r\n\n  second \u2028still\n".encode())
    assert [entry.text for entry in collect_prompts(["zero"], str(path))] == ["zero", "first", "  second \u2028still"]


def test_prompts_of_a_jsonl_file_are_strings_ids_or_conversations(tmp_path):
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "a\nb"}]
    path.write_text('"one"\n{"prompt": "two"}\n\n{"prompt_token_ids": [1, 2]}\n' + json.dumps({"messages": messages}) + "\n")
    entries = collect_prompts([], str(path))
    assert [entry.to_dict() for entry in entries] == [
        {"prompt": "one"},
        {"prompt": "two"},
        {"prompt_token_ids": [1, 2]},
        {"messages": messages},
    ]
    assert entries[-1].where == f"{path}:5"
    assert entries[-1].title == "a b"


@pytest.mark.parametrize("line", ['{"prompt": "a\\ud800"}', '{"messages": [{"role": "user", "content": "\\ud800"}]}'])
def test_text_that_is_no_unicode_is_refused_before_loading(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(InvalidRequestError, match=r"prompts\.jsonl:1 is not valid text: it holds '\\ud800'"):
        collect_prompts([], str(path))
    with pytest.raises(InvalidRequestError, match="prompt 1 is not valid text"):
        collect_prompts(["caf\udce9"], None)


@pytest.mark.parametrize(
    "line",
    ["{", "3", "[]", "{}", '{"prompt": 3}', '{"prompt": ["a"]}', '{"messages": "a"}', '{"prompt": "a", "max_tokens": 3}', '{"promt": "a"}'],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(InvalidRequestError, match=r"prompts\.jsonl:2"):
        collect_prompts([], str(path))


def test_a_system_message_goes_before_messages_that_have_none():
    entry = PromptEntry(where="", messages=[{"role": "user", "content": "a"}])
    own = PromptEntry(where="", messages=[{"role": "system", "content": "mine"}, {"role": "user", "content": "a"}])
    assert entry.as_chat("Be brief").messages == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "a"}]
    assert own.as_chat("Be brief") == own


def test_standard_input_gives_prompts(cli, llm, chat_model):
    code, out, _ = cli("generate", "-m", chat_model, "--file", "-", "--format", "jsonl", *SIX, stdin='"Hello"\n{"prompt": "x"}\n')
    assert code == 0
    assert out == f"[1/2] Hello\n{greedy_text(llm, 'Hello')}\n\n[2/2] x\n{greedy_text(llm, 'x')}\n\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "A prompt is needed"),
        (("--file", "absent.txt"), "absent.txt cannot be read"),
        (("--file", "empty.txt"), "No prompt was found in empty.txt"),
        (("--file", "latin.txt"), "latin.txt is not UTF-8"),
        (("--file", "empty.txt", "--format", "jsonn"), 'did you mean "jsonl"'),
        (("Hello", "--format", "text"), "no --file"),
    ],
)
def test_a_missing_prompt_or_an_unusable_file_says_what_to_do(cli, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    code, out, err = cli("generate", "-m", "never_opened", *arguments)
    assert (code, out) == (2, "")
    assert words.lower() in err.lower()


def test_a_refused_prompt_hurts_no_other(cli, llm, chat_model):
    too_long = "y" * 300
    code, out, err = cli("generate", "-m", chat_model, too_long, "Hello", *SIX, "--set", "model.max_model_len=64")
    assert code == 2
    assert out == f"[2/2] Hello\n{greedy_text(llm, 'Hello')}\n\n"
    assert "Error: prompt 1: The prompt has 300 tokens" in err
    code, out, _ = cli("generate", "-m", chat_model, too_long, "Hello", *SIX, "--set", "model.max_model_len=64", "--json")
    refused, served = strict(out)["outputs"]
    assert code == 2
    assert (refused["error"]["type"], refused["text"], refused["finish_reason"]) == ("PromptTooLongError", "", None)
    assert (served["error"], served["text"]) == (None, greedy_text(llm, "Hello"))


def test_one_refused_prompt_is_the_error_of_the_command(cli, chat_model):
    code, out, err = cli("generate", "-m", chat_model, "", "--json")
    assert (code, out) == (2, "")
    assert strict(err)["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("generate", "Hello"), 2, "slotwise models"),
        (("chat",), 2, "slotwise models"),
        (("generate", "-m", "{model}", "Hello", "--top-p", "3"), 2, "top_p"),
        (("generate", "-m", "{model}", "Hello", "--set", "attention.use=torch_sdpaa"), 2, "torch_sdpa"),
        (("generate", "-m", "{model}", "Hello", "--set", "kv_cache.block_sizes=3"), 2, "block_size"),
        (("generate", "-m", "{model}/absent", "Hello"), 2, "absent"),
    ],
)
def test_errors_name_the_cure_and_have_their_exit_code(cli, chat_model, arguments, code, words):
    got, out, err = cli(*(word.replace("{model}", str(chat_model)) for word in arguments))
    assert (got, out) == (code, "")
    assert words in err
    assert "Traceback" not in err


def test_a_configuration_file_chooses_model_and_components(cli, chat_model, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\nsource = "{chat_model}"\n[attention]\nuse = "reference"\n[scheduler]\nuse = "priority"\n')
    code, _, err = cli("generate", "-c", path, "Hello", *SIX)
    assert code == 0
    assert "attention=reference scheduler=priority" in err


def test_ctrl_c_ends_the_answer_with_the_text_so_far(cli, chat_model, llm, monkeypatch):
    stdout = Terminal(interrupts=True)
    monkeypatch.setattr(sys, "stdout", stdout)
    before = signal.getsignal(signal.SIGINT)
    code, _, err = cli("generate", "-m", chat_model, "Hello", "--max-tokens", "200", "--ignore-eos")
    assert code == 130
    text = stdout.getvalue().rstrip("\n")
    assert 0 < len(text) < 5
    assert greedy_text(llm, "Hello").startswith(text)
    assert err.startswith("interrupted | 5 prompt + ")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_keeps_finished_answers_and_drops_those_not_begun(llm):
    params = sampling_params(max_tokens=4, ignore_eos=True)
    params.output_kind = OutputKind.FINAL_ONLY
    entries = [PromptEntry(where=str(number), text="abc") for number in range(4)]
    run = run_prompts(llm, entries, params, lambda answer: signal.raise_signal(signal.SIGINT) if answer.entry.where == "0" else None)
    assert run.was_interrupted
    assert [answer.finish_reason for answer in run.answers] == ["length", "abort", "abort", "abort"]
    assert not llm.engine.has_unfinished_requests
    stats = llm.engine.core.stats()
    assert stats.num_free_blocks == stats.num_usable_blocks


def test_a_second_ctrl_c_does_not_wait(llm):
    def press(_) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_prompts(
            llm, [PromptEntry(where="", text="abc")], SamplingParams(temperature=0.0, max_tokens=50), lambda _: (press(_), press(_))
        )
    llm.engine.abort_requests(["prompt-0"])
    llm.engine.step()
    assert not llm.engine.has_unfinished_requests


def test_more_prompts_than_the_queue_holds_are_all_answered(cli, chat_model):
    prompts = [f"prompt {number}" for number in range(7)]
    limits = ("--set", "scheduler.max_num_waiting=2", "--set", "scheduler.max_num_seqs=1")
    code, out, _ = cli("generate", "-m", chat_model, *prompts, "--json", *SIX, *limits)
    assert code == 0
    assert [len(item["token_ids"]) for item in strict(out)["outputs"]] == [6] * 7


def test_conversations_of_a_model_without_template_are_refused_one_by_one(cli, chat_model, tmp_path, plain_model):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n"Hello"\n')
    code, out, _ = cli("generate", "-m", plain_model, "--file", path, "--json", *SIX)
    refused, served = strict(out)["outputs"]
    assert code == 2
    assert "chat template" in refused["error"]["message"]
    assert len(served["token_ids"]) == 6


def test_control_characters_are_made_visible_on_a_terminal_only(monkeypatch):
    text = "a\x1b[2J\rb\n\tc\x9b"
    monkeypatch.setattr(sys, "stdout", Terminal(is_terminal=True))
    assert printable(text) == "a␛[2J␍b\n\tc\ufffd"
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert printable(text) == text


def test_text_that_stdout_cannot_encode_is_replaced(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert printable("naïve") == "na?ve"


def test_components_stand_in_the_order_of_the_contracts_with_parts():
    components = [
        ComponentInUse(slot=slot, part=part, name=name, distribution="d", version="1")
        for slot, part, name in [("model", "", "m"), ("attention", "", "a"), ("attention", "decode", "b"), ("scheduler", "", "s")]
    ]
    assert components_line(components) == "attention=a attention[decode]=b scheduler=s model=m"


def test_the_summary_of_nothing_has_no_times():
    assert summary_line(measure([])) == "0 prompt + 0 new tokens | 0 cached"


def test_the_summary_tells_of_drafts_where_there_were_any():
    speculation = SpeculationStats()
    speculation.note(num_drafts=4, num_accepted=3)
    speculation.note(num_drafts=2, num_accepted=0)
    assert summary_line(measure([], speculation)).endswith(" | 3 of 6 drafts accepted")
    assert run_record("m", [], [], was_interrupted=False, speculation=speculation)["metrics"]["num_accepted_draft_tokens"] == 3


def test_an_error_before_loading_imports_no_torch():
    script = "import sys; from slotwise.cli import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    assert run([sys.executable, "-c", script, "generate", "--help"], capture_output=True, text=True).returncode == 0
    assert run([sys.executable, "-c", script, "generate", "Hello"], capture_output=True, text=True).returncode == 2
    assert run([sys.executable, "-c", script, "chat", "-m", "x", "--top-p", "7"], capture_output=True, text=True).returncode == 2
