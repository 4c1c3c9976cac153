"""What the chat endpoint gives the model: the template's tokens, one BOS, the same as the library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from slotwise.errors import ConfigError

if TYPE_CHECKING:
    from conftest import RunningServer, SaveTokenizer, StartServer

MESSAGES = [{"role": "user", "content": "the cat"}]


def prompts_seen(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Filled with the prompt of every request that the core gets."""
    seen: list[list[int]] = []
    scheduler = server.engine.front_end.core.scheduler
    add = scheduler.add_request

    def record(request: Any) -> None:
        seen.append(list(request.all_token_ids))
        add(request)

    monkeypatch.setattr(scheduler, "add_request", record)
    return seen


def chat(server: RunningServer, **more: Any) -> Any:
    return server.post("chat/completions", {"messages": MESSAGES, "max_tokens": 1, "ignore_eos": True, **more})


@pytest.mark.parametrize("start", ["{{ bos_token }}", ""])
def test_chat_ids_are_the_templates_with_no_second_bos(
    start_server: StartServer, save_tokenizer: SaveTokenizer, chatml: str, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    server = start_server(tokenizer=save_tokenizer(chat_template=start + chatml, adds_bos=True))
    tokenizer = server.engine.tokenizer
    assert tokenizer is not None
    seen = prompts_seen(server, monkeypatch)
    assert chat(server).status_code == 200
    expected = tokenizer.apply_chat_template(MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert seen == [expected]
    assert seen[0].count(tokenizer.bos_token_id) == bool(start)
    assert server.engine.encode_chat(MESSAGES) == expected


def test_completions_follow_add_special_tokens(
    start_server: StartServer, save_tokenizer: SaveTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(tokenizer=save_tokenizer(adds_bos=True))
    tokenizer = server.engine.tokenizer
    assert tokenizer is not None
    seen = prompts_seen(server, monkeypatch)
    for more in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        server.complete(prompt="the cat", **more)
    assert [ids[0] == tokenizer.bos_token_id for ids in seen] == [True, True, False]
    assert seen[0][1:] == seen[2]
    assert server.complete(prompt="")["usage"]["prompt_tokens"] == 1


def test_continues_the_final_message(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = prompts_seen(server, monkeypatch)
    messages = [*MESSAGES, {"role": "assistant", "content": "sat on"}]
    answer = chat(server, messages=messages, add_generation_prompt=False, continue_final_message=True)
    assert answer.status_code == 200
    assert server.engine.tokenizer is not None
    assert str(server.engine.tokenizer.decode(seen[0])).endswith("assistant\nsat on")


def test_without_a_template_completions_work_and_chat_names_the_setting(start_server: StartServer, save_tokenizer: SaveTokenizer) -> None:
    server = start_server(tokenizer=save_tokenizer(chat_template=None))
    server.complete(prompt="the cat")
    for stream in (False, True):
        refused = chat(server, stream=stream)
        assert refused.status_code == 400
        assert "model.chat_template" in refused.json()["error"]["message"]


def test_a_template_file_makes_chat_work_and_a_wrong_path_fails_at_start(
    start_server: StartServer, save_tokenizer: SaveTokenizer, chatml: str, tmp_path: Path
) -> None:
    folder = save_tokenizer(chat_template=None)
    template = tmp_path / "chat.jinja"
    template.write_text(chatml)
    assert chat(start_server(tokenizer=folder, chat_template=str(template))).status_code == 200
    with pytest.raises(ConfigError, match=r"missing\.jinja"):
        start_server(tokenizer=folder, chat_template=str(tmp_path / "missing.jinja"))


def test_a_template_that_refuses_messages_gives_its_reason(start_server: StartServer, save_tokenizer: SaveTokenizer, chatml: str) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + chatml
    server = start_server(tokenizer=save_tokenizer(chat_template=template))
    refused = chat(server, messages=[{"role": "system", "content": "be kind"}])
    assert refused.status_code == 400
    assert "no system role" in refused.json()["error"]["message"]
    assert chat(server).status_code == 200
