"""A client that leaves ends its request, plain or streaming, whatever n; the engine becomes idle and serves on."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import RunningServer

ENDLESS = {"prompt": "the cat", "max_tokens": 3900, "ignore_eos": True, "temperature": 1.0}
"""Longer than any test would wait for."""


class Aborts:
    """The ids that the front end told the core to abort."""

    def __init__(self, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[str] = []
        self.done = threading.Event()
        core = server.engine.front_end.core
        abort = core.abort_requests

        def record(request_ids: Any) -> None:
            ids = list(request_ids)
            self.ids += ids
            abort(ids)
            self.done.set()

        monkeypatch.setattr(core, "abort_requests", record)


@pytest.fixture
def aborts(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Aborts:
    return Aborts(server, monkeypatch)


def send(server: RunningServer, body: dict[str, Any]) -> socket.socket:
    """A raw connection on which a request was sent."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_a_stream_aborts_every_choice(server: RunningServer, aborts: Aborts, n: int) -> None:
    with server.http.stream("POST", "/v1/completions", json={**ENDLESS, "n": n, "stream": True}) as response:
        lines = response.iter_lines()
        for _ in range(6):
            next(lines)
    aborts.done.wait()
    assert len(aborts.ids) == n
    server.check_idle()


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_a_plain_request_aborts_every_choice(server: RunningServer, aborts: Aborts, n: int) -> None:
    server.gate.close()
    connection = send(server, {**ENDLESS, "n": n})
    server.gate.reached.wait()
    connection.close()
    server.gate.open()
    aborts.done.wait()
    assert len(aborts.ids) == n
    server.check_idle()


def test_leaving_a_stream_before_its_first_token_aborts_it(server: RunningServer, aborts: Aborts) -> None:
    server.gate.close()
    connection = send(server, {**ENDLESS, "prompt": ["the cat", "a hat"], "stream": True})
    server.gate.reached.wait()
    connection.close()
    server.gate.open()
    while len(aborts.ids) < 2:
        aborts.done.wait()
    server.check_idle()


def test_leaving_one_request_leaves_the_others_alone(server: RunningServer, aborts: Aborts) -> None:
    expected = server.complete(prompt="a hat", max_tokens=60)["choices"][0]["text"]
    server.gate.close()
    connection = send(server, ENDLESS)
    server.gate.reached.wait()
    answers: list[str] = []
    other = threading.Thread(target=lambda: answers.append(server.complete(prompt="a hat", max_tokens=60)["choices"][0]["text"]))
    other.start()
    connection.close()
    server.gate.open()
    other.join()
    assert answers == [expected]
    aborts.done.wait()
    assert len(aborts.ids) == 1


def test_two_requests_with_one_request_id_both_run(server: RunningServer) -> None:
    """Leaving the first does not end the second."""
    headers = {"X-Request-Id": "twin"}
    expected = server.complete(prompt="a hat", max_tokens=30)["choices"][0]["text"]
    with server.http.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}, headers=headers) as response:
        next(response.iter_lines())
        body = {"prompt": "a hat", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        second = server.http.post("/v1/completions", json=body, headers=headers)
    assert second.json()["choices"][0]["text"] == expected
    assert second.headers["X-Request-Id"] == "twin"
    third = server.http.post("/v1/completions", json=body, headers=headers)
    assert third.json()["choices"][0]["text"] == expected
