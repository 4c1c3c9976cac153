"""`slotwise serve`: the settings it takes, and a real process that stops when told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from slotwise.cli import main
from slotwise.errors import ConfigError
from slotwise_contrib.server.cli import is_config, load_settings
from slotwise_contrib.server.listener import bind, url_of

if TYPE_CHECKING:
    from conftest import TinyModel


@pytest.mark.parametrize(
    ("target", "expected"), [("a.toml", True), ("a.YAML", True), ("b.json", True), ("c.gguf", False), ("smollm2", False)]
)
def test_a_configuration_is_known_by_its_suffix(target: str, expected: bool) -> None:
    assert is_config(target) is expected


def test_a_directory_is_a_model_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "model.json"
    folder.mkdir()
    assert not is_config(str(folder))
    assert load_settings(str(folder), {}, ()).config.model.source == str(folder)


def test_options_win_over_set_values_and_the_file(tmp_path: Path) -> None:
    file = tmp_path / "prod.toml"
    file.write_text('[model]\nsource = "smollm2"\n[server]\nport = 1\nhost = "::1"\n')
    config = load_settings(str(file), {"server.port": 3}, ["server.port=2", "kv_cache.block_size=32"]).config
    assert (config.server.port, config.server.host, config.kv_cache.block_size) == (3, "::1", 32)


def test_a_file_without_a_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prod.toml"
    file.write_text("[server]\nport = 1\n")
    with pytest.raises(ConfigError, match=r"model\.source"):
        load_settings(str(file), {}, ())


def test_a_port_in_use_is_an_error_before_the_model_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code = main(["serve", str(tmp_path / "nothing"), "--port", str(taken.getsockname()[1]), "--json"])
    assert code == 2
    assert json.loads(capsys.readouterr().err)["error"]["key"] == "server.port"


def test_a_host_that_is_no_address_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"server\.host"):
        bind("not an address", 0)


def test_urls_of_both_families() -> None:
    with bind("127.0.0.1", 0) as bound:
        assert url_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"
    if socket.has_ipv6:
        with bind("::1", 0) as bound:
            assert url_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"


@pytest.mark.slow
def test_serves_until_sigterm_and_finishes_the_stream_in_flight(tiny_model: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "prod.toml"
    file.write_text(f'[model]\nsource = "{tiny_model.path}"\nserved_name = "tiny"\n[server]\nport = 0\n[kv_cache]\nnum_blocks = 300\n')
    command = [
        sys.executable,
        "-c",
        "import sys; from slotwise.cli import main; sys.exit(main())",
        "serve",
        str(file),
        "--api-key",
        "k",
        "--json",
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["model"] == "tiny"
            client = httpx.Client(base_url=ready["url"], headers={"Authorization": "Bearer k"}, timeout=60)
            body = {"prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                assert [line for line in lines if line][-1] == "data: [DONE]"
            process.wait()
            assert process.returncode in (0, -signal.SIGTERM)
            assert process.stdout.read() == ""
        finally:
            process.kill()
