"""Streams: usage where it was asked for, nothing lost, errors in the middle, always an end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from slotwise.engine.outputs import FinishReason

if TYPE_CHECKING:
    from conftest import RunningServer

CHAT = {"messages": [{"role": "user", "content": "the cat"}]}
TEXT = {"prompt": ["the cat", "a hat"]}


@pytest.mark.parametrize(("path", "body"), [("completions", TEXT), ("chat/completions", CHAT)])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_a_stream_has_no_usage_unless_asked(server: RunningServer, path: str, body: dict[str, Any], options: Any) -> None:
    for chunk in server.chunks(path, **body, stream_options=options):
        assert "usage" not in chunk
        assert len(chunk["choices"]) == 1


@pytest.mark.parametrize(("path", "body"), [("completions", TEXT), ("chat/completions", CHAT)])
@pytest.mark.parametrize("n", [1, 2])
def test_include_usage_adds_one_last_chunk_without_choices(server: RunningServer, path: str, body: dict[str, Any], n: int) -> None:
    body = {**body, "n": n, "temperature": 1.0, "seed": 5, "cache_salt": f"{path}-{n}"}
    *chunks, last = server.chunks(path, **body, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    plain = server.post(path, {"max_tokens": 4, "ignore_eos": True, **body}).json()["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == plain[name]


@pytest.mark.parametrize(("path", "body"), [("completions", TEXT), ("chat/completions", CHAT)])
def test_continuous_usage_never_decreases_and_ends_with_the_total(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = server.chunks(path, **body, n=2, temperature=1.0, stream_options=options)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        counts = [chunk["usage"][name] for chunk in chunks]
        assert counts == sorted(counts)
    assert chunks[-1]["usage"] == chunks[-2]["usage"]


def test_continuous_usage_needs_include_usage(server: RunningServer) -> None:
    response = server.post("completions", {"prompt": "a", "stream": True, "stream_options": {"continuous_usage_stats": True}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"stop": "e"}, {"prompt": "wörld 🙂"}, {"n": 3, "temperature": 1.0, "seed": 2}])
def test_joined_chunks_equal_the_plain_answer(server: RunningServer, more: dict[str, Any]) -> None:
    body = {"prompt": "the cat", "max_tokens": 40, **more}
    plain = server.complete(**body)["choices"]
    chunks = server.chunks("completions", **body)
    for choice in plain:
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in mine) == choice["text"]
        assert [piece["finish_reason"] for piece in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        assert mine[-1]["stop_reason"] == choice["stop_reason"]


def test_chunks_of_one_stream_share_id_time_and_model(server: RunningServer) -> None:
    chunks = server.chunks("chat/completions", **CHAT)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_an_error_in_the_middle_is_an_event_and_the_stream_still_ends(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine ends a request with reason `error`, as for NaN logits."""
    scheduler = server.engine.front_end.core.scheduler
    update = scheduler.update_from_output

    def fail_the_third_token(*arguments: Any) -> Any:
        outputs = update(*arguments)
        for output in outputs:
            request = scheduler.requests.get(output.request_id)
            if request is not None and request.num_output_tokens == 3:
                time.sleep(0.5)  # or the error would overtake the first chunk, and be an answer of its own instead of an event
                output.finish_reason, output.error = FinishReason.ERROR, "the logits of this request are not finite"
        return outputs

    monkeypatch.setattr(scheduler, "update_from_output", fail_the_third_token)
    body = {"prompt": "the cat", "max_tokens": 50}
    chunks = server.chunks("completions", **body)
    assert chunks[0]["choices"][0]["finish_reason"] is None
    assert "not finite" in chunks[-1]["error"]["message"]
    plain = server.post("completions", {**body, "ignore_eos": True})
    assert plain.status_code == 500
    assert "not finite" in plain.json()["error"]["message"]
    monkeypatch.undo()
    server.engine.front_end.core.abort_all()
