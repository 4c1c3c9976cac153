"""Routes around generation: health, keys, limits, request ids, overload, the end."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from slotwise.errors import ConfigError
from slotwise_contrib.server.app import create_app

if TYPE_CHECKING:
    from conftest import RunningServer, StartServer

BODY = {"prompt": "the cat", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
KEY = {"Authorization": "Bearer secret"}


class Pending:
    """A request that is sent from a thread."""

    def __init__(self, server: RunningServer, **more: Any) -> None:
        self.response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._send, args=(server, {**BODY, **more}))
        self._thread.start()

    def _send(self, server: RunningServer, body: dict[str, Any]) -> None:
        self.response = server.http.post("/v1/completions", json=body)

    def result(self) -> httpx.Response:
        self._thread.join()
        assert self.response is not None
        return self.response


def test_health_is_good_while_the_engine_is_busy(server: RunningServer) -> None:
    server.gate.close()
    pending = [Pending(server) for _ in range(4)]
    server.gate.reached.wait()
    assert server.http.get("/health").json() == {"status": "ok"}
    server.gate.open()
    assert [each.result().status_code for each in pending] == [200] * 4


@pytest.mark.parametrize("stream", [False, True])
def test_when_the_engine_dies_pending_and_new_requests_hear_of_it(start_server: StartServer, stream: bool) -> None:
    server = start_server()
    assert server.http.get("/health").status_code == 200
    server.gate.close()
    pending = Pending(server, stream=stream)
    server.gate.reached.wait()
    server.gate.error = RuntimeError("the card fell off the bus")
    server.gate.open()
    answer = pending.result()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_dead"
    assert "fell off the bus" in answer.json()["error"]["message"]
    for path in ("completions", "chat/completions"):
        body = {**BODY, "stream": stream, "messages": [{"role": "user", "content": "a"}]}
        body.pop("prompt" if "chat" in path else "messages")
        assert server.post(path, body).status_code == 503
    health = server.http.get("/health")
    assert health.status_code == 503
    assert "fell off the bus" in health.json()["error"]["message"]
    assert server.http.get("/v1/models").status_code == 200


def test_when_the_engine_dies_in_the_middle_of_a_stream_the_stream_says_so_and_ends(start_server: StartServer) -> None:
    server = start_server()
    with server.http.stream("POST", "/v1/completions", json={**BODY, "stream": True, "max_tokens": 3000}) as response:
        lines = response.iter_lines()
        assert "choices" in next(lines)
        server.gate.error = RuntimeError("gone")
        *_, error, done = [line for line in lines if line]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_dead"
    assert done == "data: [DONE]"


def test_asks_for_the_key_on_v1_routes_only(start_server: StartServer) -> None:
    server = start_server(app={"api_key": "secret"})
    assert server.http.get("/health").status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}, {"Authorization": "Bearer sécret".encode()}):
        for response in (server.http.post("/v1/completions", json=BODY, headers=headers), server.http.get("/v1/models", headers=headers)):
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
    assert server.http.post("/v1/completions", json=BODY, headers=KEY).status_code == 200


def test_an_empty_key_is_a_mistake(server: RunningServer) -> None:
    with pytest.raises(ConfigError, match="api_key is empty"):
        create_app(server.engine, api_key=" ")


def test_refuses_bodies_over_the_limit_declared_or_not(start_server: StartServer) -> None:
    server = start_server(app={"max_body_bytes": 200})
    large = json.dumps({**BODY, "prompt": "a" * 300}).encode()
    headers = {"Content-Type": "application/json"}
    assert server.http.post("/v1/completions", content=large, headers=headers).status_code == 413
    parts = (large[start : start + 50] for start in range(0, len(large), 50))
    assert server.http.post("/v1/completions", content=parts, headers=headers).status_code == 413
    assert server.http.post("/v1/completions", json=BODY).status_code == 200


def test_echoes_the_request_id_or_makes_one(server: RunningServer) -> None:
    for response in (
        server.http.get("/health", headers={"X-Request-Id": "mine"}),
        server.http.get("/nowhere", headers={"X-Request-Id": "mine"}),
        server.http.post("/v1/completions", json={**BODY, "stream": True}, headers={"X-Request-Id": "mine"}),
    ):
        assert response.headers["X-Request-Id"] == "mine"
    made = {server.http.get("/health", headers={"X-Request-Id": sent}).headers["X-Request-Id"] for sent in ("", "a" * 200)}
    assert len(made) == 2
    assert all(len(request_id) == 32 for request_id in made)


def test_a_fault_of_the_server_is_a_500_without_details(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("private")

    monkeypatch.setattr(server.engine.front_end.input_processor, "process", fail)
    for stream in (False, True):
        response = server.http.post("/v1/completions", json={**BODY, "stream": stream}, headers={"X-Request-Id": "mine"})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "private" not in response.text
        assert response.headers["X-Request-Id"] == "mine"
    monkeypatch.undo()


def test_a_full_queue_answers_429_and_says_when_to_come_back(start_server: StartServer) -> None:
    server = start_server(scheduler={"max_num_seqs": 1, "max_num_waiting": 1})
    server.gate.close()
    pending = [Pending(server)]
    server.gate.reached.wait()
    # A step is held before its model; requests that came meanwhile are taken in together after it, and one of them may wait.
    pending += [Pending(server, stream=stream) for stream in (False, True, False)]
    while server.engine.front_end.output_processor.num_unfinished < 4:
        threading.Event().wait(0.002)
    server.gate.open()
    answers = [each.result() for each in pending]
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert answer.headers["retry-after"] == "1"
    server.check_idle()


def test_a_stopping_server_finishes_what_is_in_flight_then_ends_the_engine(start_server: StartServer) -> None:
    server = start_server()
    server.gate.close()
    pending = Pending(server, max_tokens=40, stream=True)
    server.gate.reached.wait()
    server.server.should_exit = True
    server.gate.open()
    answer = pending.result()
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")
    server.thread.join()
    assert not server.engine.is_alive
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
