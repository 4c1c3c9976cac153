"""Logprobs over HTTP: strict JSON, offsets that fit the text, the same whole and in streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import RunningServer, StartServer

FLOOR = -9999.0


def values(logprobs: dict[str, Any]) -> list[float]:
    """Every number in a completion's logprobs."""
    return [value for value in logprobs["token_logprobs"] if value is not None] + [
        value for top in logprobs["top_logprobs"] if top is not None for value in top.values()
    ]


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_masked_tokens_have_the_floor_and_chosen_ones_a_finite_value(start_server: StartServer, mode: str) -> None:
    server = start_server(sampler={"logprobs_mode": mode})
    masks = {"temperature": 1.0, "top_k": 1}, {"allowed_token_ids": [40, 41]}
    for more in (*masks, {"temperature": 0.01, "seed": 1}, {"echo": True}):
        body = {"prompt": "Hello", "logprobs": 5, "max_tokens": 3, **more}
        logprobs = server.complete(**body)["choices"][0]["logprobs"]
        assert all(FLOOR <= value <= 1e-6 for value in values(logprobs))
        assert all(value is None or value > FLOOR for value in logprobs["token_logprobs"])
        assert (FLOOR in values(logprobs)) == (mode == "processed_logprobs" and more in masks)
        streamed = [chunk["choices"][0]["logprobs"] for chunk in server.chunks("completions", **body)]
        assert [text for part in streamed for text in part["tokens"]] == logprobs["tokens"]
        assert [value for part in streamed for value in part["token_logprobs"]] == pytest.approx(logprobs["token_logprobs"], abs=1e-4)


def test_masked_tokens_have_the_floor_in_chat_too(start_server: StartServer) -> None:
    server = start_server(sampler={"logprobs_mode": "processed_logprobs"})
    body = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 5, "max_tokens": 2, "top_k": 1}
    for token in server.post("chat/completions", body).json()["choices"][0]["logprobs"]["content"]:
        assert token["logprob"] > FLOOR
        assert [top["logprob"] for top in token["top_logprobs"]][1:] == [FLOOR] * 4


@pytest.mark.parametrize("n", [1, 2])
def test_offsets_with_echo_fit_the_text_whole_and_streamed(server: RunningServer, n: int) -> None:
    body = {"prompt": "Hello wörld 🙂", "echo": True, "logprobs": 1, "max_tokens": 6, "n": n, "temperature": 1.0, "seed": 7}
    chunks = server.chunks("completions", **body)
    for choice in server.complete(**body)["choices"]:
        logprobs = choice["logprobs"]
        offsets, tokens = logprobs["text_offset"], logprobs["tokens"]
        assert offsets[0] == 0
        assert "".join(tokens) == choice["text"]
        assert choice["text"].startswith("Hello wörld 🙂")
        assert [offset + len(token) for offset, token in zip(offsets, tokens, strict=True)] == [*offsets[1:], len(choice["text"])]
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        for token, logprob, top in list(zip(tokens, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))[1:]:
            assert top[token] == logprob
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert [offset for piece in mine for offset in piece["logprobs"]["text_offset"]] == offsets
        assert [token for piece in mine for token in piece["logprobs"]["tokens"]] == tokens


def test_offsets_without_echo_start_with_the_output(server: RunningServer) -> None:
    choice = server.complete(prompt="the cat", logprobs=0, max_tokens=5)["choices"][0]
    assert choice["logprobs"]["text_offset"][0] == 0
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [1] * 5


@pytest.mark.parametrize("shown", [False, True])
def test_a_stop_token_adds_to_the_text_only_where_it_is_shown(server: RunningServer, shown: bool) -> None:
    assert server.engine.tokenizer is not None
    stop_token = server.engine.tokenizer.encode("x")[0]
    body = {"prompt": [5, 6, 7], "logprobs": 0, "stop_token_ids": [stop_token], "logit_bias": {str(stop_token): 100}}
    choice = server.complete(**body, include_stop_str_in_output=shown)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop_token
    assert bool(choice["text"]) == shown
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_prompt_logprobs_are_the_same_cold_warm_echoed_and_streamed(server: RunningServer) -> None:
    ids = list(range(5, 45))
    body = {"prompt": ids, "prompt_logprobs": 2, "max_tokens": 1, "cache_salt": "prompt-logprobs"}
    cold = server.complete(**body)["choices"][0]["prompt_logprobs"]
    assert len(cold) == 40
    assert cold[0] is None
    assert all(str(token_id) in entry for token_id, entry in zip(ids[1:], cold[1:], strict=True))
    assert server.complete(**{**body, "prompt_logprobs": None})["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    warm = server.complete(**body)["choices"][0]["prompt_logprobs"]
    streamed = server.chunks("completions", **body)[0]["choices"][0]["prompt_logprobs"]
    echoed = server.complete(prompt=ids, echo=True, logprobs=2, max_tokens=1)["choices"][0]["logprobs"]["token_logprobs"][:40]
    expected = [None if entry is None else entry[str(token_id)]["logprob"] for token_id, entry in zip(ids, cold, strict=True)]
    for found in (warm, streamed):
        assert [
            None if entry is None else entry[str(token_id)]["logprob"] for token_id, entry in zip(ids, found, strict=True)
        ] == pytest.approx(expected, abs=1e-4)
    assert echoed == pytest.approx(expected, abs=1e-4)
    for stream in (False, True):
        scored = {"prompt": ids, "echo": True, "logprobs": 2, "max_tokens": 0, "stream": stream}
        choice = (server.chunks("completions", **scored) if stream else [server.complete(**scored)])[0]["choices"][0]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-4)
        assert choice["finish_reason"] == "length"
