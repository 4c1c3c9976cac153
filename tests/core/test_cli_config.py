from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotwise.cli import main

Run = Callable[..., tuple[int, str, str]]
TOML = 'device = "cpu"\n[kv_cache]\nblock-size = 32\nenable-prefix-caching = false\n[attention]\nuse = "reference"\n'


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    from slotwise.config.environment import PREFIX, process_environ

    for name in [name for name in process_environ() if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prod.toml"
    path.write_text(TOML)
    return path


def as_json(result: tuple[int, str, str]) -> Any:
    assert result[0] == 0, result[2]
    return json.loads(result[1])


@pytest.mark.parametrize("suffix", ["toml", "yaml", "yml", "json"])
def test_init_writes_a_file_that_passes_check(suffix: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / f"new.{suffix}"
    assert run("config", "init", path)[0] == 0
    assert run("config", "check", path) == (0, f"{path}: ok\n", "")


def test_init_overwrites_only_when_told(file: Path, run: Run) -> None:
    code, _, error = run("config", "init", file)
    assert (code, "--force" in error, file.read_text()) == (2, True, TOML)
    assert as_json(run("config", "init", file, "--force", "--json")) == {"format": "toml", "path": str(file)}
    assert file.read_text() != TOML


def test_init_without_path_writes_to_stdout(run: Run) -> None:
    assert json.loads(run("config", "init", "--format", "json")[1])["kv_cache"]["block_size"] == 16
    assert as_json(run("config", "init", "--json"))["format"] == "toml"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["a.ini"], "none of .toml"), (["a.toml", "--format", "yaml"], "make them agree"), (["--format", "tmol"], 'Did you mean "toml"?')],
)
def test_init_refuses_unclear_formats(arguments: list[str], text: str, run: Run) -> None:
    code, _, error = run("config", "init", *arguments)
    assert (code, text in error) == (2, True)


def test_check_names_everything_wrong_in_file_and_components(file: Path, run: Run) -> None:
    file.write_text(TOML.replace("block-size", "blocksize"))
    code, output, error = run("config", "check", file)
    assert (code, output) == (2, "")
    assert error.startswith(f"Error: {file}:3: unknown key 'kv_cache.blocksize'. Did you mean \"block_size\"?")
    file.write_text(TOML.replace("reference", "referense"))
    code, _, error = run("config", "check", file, "--json")
    (problem,) = json.loads(error)["error"]["problems"]
    assert (code, problem["key"], problem["where"]) == (2, "attention.use", f"{file}:6")
    assert 'Did you mean "reference"?' in problem["message"]


def test_check_looks_at_variables_and_flags_too(file: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("config", "check", file, "--set", "scheduler=fair-ish")[0] == 2
    monkeypatch.setenv("SLOTWISE_SEED", "x")
    assert "SLOTWISE_SEED: seed: given text 'x'" in run("config", "check", file)[2]


def test_check_imports_no_torch_and_no_implementation(file: Path) -> None:
    code = (
        "import sys; from slotwise.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'numpy', 'slotwise_backends.reference'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, "config", "check", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_tells_which_options_take_no_effect(file: Path, run: Run) -> None:
    file.write_text("[scheduler]\nuse = 'fcfs'\noptions.x = 1\n")
    code, output, _ = run("config", "check", file, "--set", "scheduler=priority")
    assert code == 0
    assert (
        f"Note: scheduler.options.x ({file}:3) was written for 'fcfs' and is dropped: --set scheduler chooses another component" in output
    )


def test_show_prints_value_and_origin(file: Path, run: Run) -> None:
    code, output, _ = run("config", "show", file, "--set", "seed=3")
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in output.splitlines()}
    assert code == 0
    assert [part.strip() for part in lines["kv_cache.enable_prefix_caching"]] == ["false", f"{file}:4"]
    assert [part.strip() for part in lines["seed"]] == ["3", "--set seed"]
    assert [part.strip() for part in lines["num_threads"]] == ["null", "default"]


def test_show_as_json_has_values_origins_and_no_secret(file: Path, run: Run) -> None:
    record = as_json(run("config", "show", file, "--set", "server.api_key=hunter2", "--json"))
    assert record["config"]["kv_cache"]["enable_prefix_caching"] is False
    assert record["origins"]["kv_cache.block_size"] == {"kind": "file", "where": f"{file}:3"}
    assert record["dropped"] == []
    assert "hunter2" not in json.dumps(record)


def test_show_without_file_is_the_defaults(run: Run) -> None:
    record = as_json(run("config", "show", "--json"))
    assert {origin["kind"] for origin in record["origins"].values()} == {"default"}


def test_schema_holds_the_options_of_installed_components(run: Run) -> None:
    schema = as_json(run("config", "schema"))
    names = [rule["if"]["properties"]["use"]["const"] for rule in schema["$defs"]["SchedulerConfigTable"]["allOf"]]
    assert {"fcfs", "priority"} <= set(names)


def test_diff_shows_only_what_differs(file: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("device: cpu\nkv_cache: {block_size: 32, enable_prefix_caching: true}\nattention: reference\n")
    monkeypatch.setenv("SLOTWISE_KV_CACHE__ENABLE_PREFIX_CACHING", "true")
    code, output, _ = run("config", "diff", file, other)
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()[1:]] == ["kv_cache.enable_prefix_caching"]
    (found,) = as_json(run("config", "diff", file, other, "--json"))["differences"]
    assert (found["a"]["value"], found["b"]["value"], found["a"]["origin"]["where"]) == (False, True, f"{file}:4")
    assert run("config", "diff", file, other, "--exit-code")[0] == 1
    assert run("config", "diff", file, file, "--exit-code") == (0, "No difference.\n", "")
