"""Requests that cannot be served: 4xx, an OpenAI error object that names the field, strict JSON, and an engine that goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx

    from conftest import RunningServer, TinyModel


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def check_error(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["message"]
    assert error["param"] == param
    return error


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["the", ""], [[5], []], None, {"a": 1}, 3, ["the", [1]], [["the"]]])
def test_refuses_prompts_that_are_empty_or_no_prompts(server: RunningServer, prompt: Any) -> None:
    check_error(server.post("completions", {"prompt": prompt}), 400, "prompt")


def test_refuses_a_missing_prompt_and_empty_messages(server: RunningServer) -> None:
    check_error(server.post("completions", {}), 400, "prompt")
    check_error(server.post("chat/completions", {}), 400, "messages")
    check_error(server.post("chat/completions", {"messages": []}), 400, "messages")
    check_error(server.post("chat/completions", {"messages": [{"role": "user"}]}), 400, "messages")


def test_refuses_token_ids_outside_the_models_rows(server: RunningServer, tiny_model: TinyModel) -> None:
    size = tiny_model.vocab_size
    for bad in (size, -1, 2**63 - 1, 2**64, 1.0, True):
        for prompt in ([bad], [[5, 6], [5, bad]]):
            error = check_error(server.post("completions", {"prompt": prompt, "max_tokens": 2}), 400, "prompt")
            assert str(bad) in error["message"]
    for good in (size - 1, tiny_model.num_tokens):
        assert len(server.complete(prompt=[good], max_tokens=2)["choices"]) == 1


def test_a_bad_prompt_refuses_its_request_and_no_other(server: RunningServer, tiny_model: TinyModel) -> None:
    """Also as a stream: what is refused before the first token gets its status, not an event."""
    for stream in (False, True):
        body = {"prompt": [[5, 6], [tiny_model.vocab_size]], "max_tokens": 50, "ignore_eos": True, "stream": stream}
        check_error(server.post("completions", body), 400, "prompt")


def test_context_limit(server: RunningServer) -> None:
    limit = server.engine.max_model_len
    last = server.complete(prompt=[5] * (limit - 1), max_tokens=10)
    assert last["usage"]["completion_tokens"] == 1
    assert last["choices"][0]["finish_reason"] == "length"
    for length in (limit, limit + 1):
        error = check_error(server.post("completions", {"prompt": [5] * length, "max_tokens": 1}), 400, "prompt")
        assert error["code"] == "context_length_exceeded"
        assert str(limit) in error["message"]
        assert str(length) in error["message"]


def test_max_tokens_left_out_or_null_means_the_rest_of_the_context(server: RunningServer) -> None:
    limit = server.engine.max_model_len
    for body in ({}, {"max_tokens": None}):
        response = server.post("completions", {"prompt": [5] * (limit - 7), "temperature": 0, "ignore_eos": True, **body})
        assert response.json()["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty", "logprobs", "n", "seed"])
def test_refuses_numbers_that_are_none(server: RunningServer, field: str) -> None:
    for value in ("NaN", "Infinity", "-Infinity", "1e999", '"NaN"', "true", "[]"):
        body = f'{{"prompt": "the", "{field}": {value}}}'
        response = server.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        strict_json(response.text)
        check_error(response, 400, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 5),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", 2),
        ("top_k", -2),
        ("top_k", 1.0),
        ("repetition_penalty", 0),
        ("frequency_penalty", 100),
        ("presence_penalty", -3),
        ("logprobs", 10**9),
        ("logprobs", 1.0),
        ("prompt_logprobs", 10**9),
        ("n", 0),
        ("max_tokens", 0),
        ("max_tokens", "4"),
        ("min_tokens", -1),
        ("stop", 3),
        ("stop", ["a", ""]),
        ("stop_token_ids", [10**9]),
        ("stop_token_ids", ["a"]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"99999999": 1}),
        ("logit_bias", [1]),
        ("allowed_token_ids", []),
        ("bad_words", [1]),
        ("seed", 2**64),
        ("stream", "yes"),
        ("echo", 1),
        ("cache_salt", ""),
        ("user", 3),
        ("best_of", 2),
        ("stream_options", {}),
        ("stream_options", {"include_usage": True}),
        ("model", 3),
    ],
)
def test_refuses_values_out_of_range_or_of_a_wrong_type(server: RunningServer, field: str, value: Any) -> None:
    check_error(server.post("completions", {"prompt": "the", field: value}), 400, field)


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("top_logprobs", {"top_logprobs": 3}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 10**6}),
        ("logprobs", {"logprobs": 3}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("max_tokens", {"max_tokens": 0}),
        ("continue_final_message", {"continue_final_message": True}),
        ("echo", {"echo": True}),
        ("n", {"n": 3, "temperature": 0}),
    ],
)
def test_chat_errors_name_the_chat_field(server: RunningServer, field: str, more: dict[str, Any]) -> None:
    check_error(server.post("chat/completions", {"messages": [{"role": "user", "content": "the"}], **more}), 400, field)


def test_refuses_a_prompt_that_fills_the_context_under_the_name_messages(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "漢" * server.engine.max_model_len}]}
    assert check_error(server.post("chat/completions", body), 400, "messages")["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "foo"}),
        ("response_format", "json"),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("audio", {}),
        ("modalities", ["text", "audio"]),
        ("structured_outputs", {"json": {}}),
        ("guided_regex", "a*"),
        ("suffix", "end"),
        ("use_beam_search", True),
        ("chat_template", "{{ messages }}"),
    ],
)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_refuses_what_it_does_not_support(server: RunningServer, path: str, field: str, value: Any) -> None:
    body = {"prompt": "the"} if path == "completions" else {"messages": [{"role": "user", "content": "the"}]}
    check_error(server.post(path, {**body, field: value}), 400, field)


def test_accepts_fields_that_ask_for_nothing_and_ignores_unknown_ones(server: RunningServer) -> None:
    server.complete(
        prompt="the", response_format={"type": "text"}, tools=[], suffix="", tool_choice=None, best_of=1, metadata={"a": "b"}, foo=1
    )


@pytest.mark.parametrize("body", [b"", b"{", b'{"prompt": "the"', b"[1]", b'"text"', b"null", b"\xff\xfe", b"[" * 2_000_000, b"9" * 5000])
def test_refuses_bodies_that_are_no_json_object(server: RunningServer, body: bytes) -> None:
    response = server.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    check_error(response, 400)


def test_refuses_nested_brackets_inside_a_field(server: RunningServer) -> None:
    for depth in (900, 1_000_000):
        body = b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"
        response = server.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 400


@pytest.mark.parametrize("field", ["prompt", "stop", "user"])
def test_refuses_lone_surrogates(server: RunningServer, field: str) -> None:
    body = json.dumps({"prompt": "the", field: "\ud800"})
    response = server.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    check_error(response, 400, field)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_refuses_other_content_types(server: RunningServer, content_type: str) -> None:
    response = server.http.post(
        "/v1/completions", content=b'{"prompt": "the"}', headers={"Content-Type": content_type} if content_type else {}
    )
    check_error(response, 415)


def test_unknown_routes_methods_and_models(server: RunningServer) -> None:
    check_error(server.http.get("/v1/nothing"), 404)
    response = server.http.get("/v1/completions")
    check_error(response, 405)
    assert response.headers["allow"] == "POST"
    check_error(server.post("completions", {"prompt": "the", "model": "nobody"}), 404, "model")
    check_error(server.post("completions", {"prompt": "the", "model": "\u2028\n"}), 404, "model")


def test_refuses_more_choices_than_one_request_may_have(server: RunningServer) -> None:
    check_error(server.post("completions", {"prompt": [[5]] * 1000, "n": 5}), 400, "prompt")
