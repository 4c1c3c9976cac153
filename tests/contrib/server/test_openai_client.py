"""The official client works against the server, its typed errors included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

if TYPE_CHECKING:
    from conftest import RunningServer

GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}
MESSAGES = [{"role": "user", "content": "the cat"}]


def test_completion(server: RunningServer) -> None:
    answer = server.openai.completions.create(model="tiny", prompt="the cat", max_tokens=8, **GREEDY)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text == server.complete(prompt="the cat", max_tokens=8)["choices"][0]["text"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_streamed_completion_joins_to_the_whole(server: RunningServer) -> None:
    whole = server.openai.completions.create(model="tiny", prompt="the cat", max_tokens=20, **GREEDY)
    stream = server.openai.completions.create(model="tiny", prompt="the cat", max_tokens=20, stream=True, **GREEDY)
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]


def test_chat(server: RunningServer) -> None:
    answer = server.openai.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=6, **GREEDY)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


def test_streamed_chat_has_the_role_first_and_one_finish_reason_per_choice(server: RunningServer) -> None:
    stream = server.openai.chat.completions.create(
        model="tiny", messages=MESSAGES, n=2, seed=3, max_tokens=6, temperature=1.0, stream=True, extra_body={"ignore_eos": True}
    )
    choices = [choice for chunk in stream for choice in chunk.choices]
    for index in range(2):
        mine = [choice for choice in choices if choice.index == index]
        assert [choice.delta.role for choice in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["length"]


def test_n_choices_of_several_prompts_are_numbered_by_prompt(server: RunningServer) -> None:
    answer = server.openai.completions.create(
        model="tiny", prompt=["the cat", "a hat"], n=2, seed=1, max_tokens=5, temperature=1.0, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text.startswith("the cat") for choice in answer.choices] == [True, True, False, False]
    assert answer.choices[0].text != answer.choices[1].text


def test_chat_logprobs(server: RunningServer) -> None:
    answer = server.openai.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=3, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 5
    for token in logprobs.content:
        assert [top.logprob for top in token.top_logprobs] == sorted((top.logprob for top in token.top_logprobs), reverse=True)
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob
        assert token.bytes is None or bytes(token.bytes).decode() == token.token


def test_stop_string_ends_the_text_before_it(server: RunningServer) -> None:
    whole = server.complete(prompt="the cat", max_tokens=12)["choices"][0]["text"]
    stop = whole[4:6]
    answer = server.openai.completions.create(model="tiny", prompt="the cat", max_tokens=12, stop=stop, **GREEDY)
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_models(server: RunningServer) -> None:
    assert [model.id for model in server.openai.models.list()] == ["tiny"]
    assert server.openai.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        server.openai.models.retrieve("other/model")


def test_error_types(server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.openai.completions.create(model="tiny", prompt="the", temperature=5)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        server.openai.completions.create(model="nobody", prompt="the")
    assert unknown.value.code == "model_not_found"


def test_salt_separates_prefix_caches(server: RunningServer) -> None:
    prompt = "the quick brown fox jumps over the lazy dog. " * 8

    def cached(salt: str) -> int:
        answer = server.complete(prompt=prompt, max_tokens=1, cache_salt=salt)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert (cached("a"), cached("b")) == (0, 0)
    assert cached("a") > 0


def test_user_and_priority_reach_the_scheduler(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = server.engine.front_end.core.scheduler
    seen = []
    add = scheduler.add_request
    monkeypatch.setattr(scheduler, "add_request", lambda request: (seen.append((request.client_id, request.priority)), add(request)))
    server.complete(prompt="the cat", user="someone", priority=-2)
    assert seen == [("someone", -2)]
