"""A real server on a real engine: a tiny random Llama, uvicorn in a thread on a free port of this machine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from slotwise import AsyncLLM
from slotwise.engine.front_end import front_end_of, resolve_config
from slotwise.engine.plan import plan_engine
from slotwise.interfaces.model import Model
from slotwise_contrib.server.app import create_app
from slotwise_contrib.server.listener import bind, make_server, url_of

CORPUS = ["Hello world, the quick brown fox jumps over the lazy dog.", "the cat sat on the mat with a hat", "wörld 🙂 漢字"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUM_EXTRA_ROWS = 8
"""Rows of the model beyond the tokenizer's ids."""
SERVED_NAME = "tiny"


def byte_level_tokenizer(*, chat_template: str | None = CHATML, adds_bos: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE of about 300 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>", "<|im_start|>", "<|im_end|>")])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    made.chat_template = chat_template
    return made


class TinyModel:
    """Weights on disk, loaded once for all engines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        tokenizer = byte_level_tokenizer()
        tokenizer.save_pretrained(path)
        self.num_tokens = len(tokenizer)
        self.vocab_size = self.num_tokens + NUM_EXTRA_ROWS
        config = LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)
        self._model: Model | None = None

    def engine(self, **overrides: Any) -> AsyncLLM:
        settings = {"served_model_name": SERVED_NAME, "kv_cache": {"num_blocks": 900}, **overrides}
        plan = plan_engine(resolve_config(str(self.path), None, settings))
        front_end = front_end_of(plan, loaded_model=self._model)
        if self._model is None and plan.model_plan is not None:
            self._model = plan.model_plan.instance
        return AsyncLLM.from_front_end(front_end)


class Gate:
    """Stands before every step of an engine's model: open, closed, or broken."""

    def __init__(self, engine: AsyncLLM) -> None:
        executor = engine.front_end.core.executor
        self._execute = executor.execute_model
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()
        self.error: BaseException | None = None
        executor.execute_model = self._pass  # type: ignore[method-assign]

    def close(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def _pass(self, scheduled: Any) -> None:
        self.reached.set()
        self._open.wait()
        if self.error is not None:
            raise self.error
        self._execute(scheduled)


class RunningServer:
    """A server that answers, and clients for it."""

    def __init__(self, engine: AsyncLLM, **app_options: Any) -> None:
        self.engine = engine
        self.gate = Gate(engine)
        self._ready = threading.Event()
        listening = bind("127.0.0.1", 0)
        self.url = url_of(listening)
        self.server = make_server(create_app(engine, shuts_down_engine=True, **app_options), announce=self._ready.set)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[listening])), daemon=True)
        self.thread.start()
        self._ready.wait()
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, timeout=60)

    def post(self, path: str, body: Any) -> httpx.Response:
        """POST to /v1/<path>; the answer, whatever its status, is checked to be strict JSON."""
        response = self.http.post(f"/v1/{path}", json=body)
        strict(response.text)
        return response

    def complete(self, **body: Any) -> dict[str, Any]:
        """The JSON of a completion that must succeed."""
        response = self.post("completions", {"temperature": 0, "max_tokens": 4, "ignore_eos": True, **body})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def chunks(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that must begin well and end with [DONE]."""
        body = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "stream": True, **body}
        with self.http.stream("POST", f"/v1/{path}", json=body) as response:
            text = response.read().decode()
            assert response.status_code == 200, text
            assert response.headers["content-type"].startswith("text/event-stream")
        events = text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [strict(event.removeprefix("data: ")) for event in events[:-2]]

    def check_idle(self) -> None:
        """Waits, by the test's time limit, until nothing runs, waits or holds a block; then one more request must work."""
        while not self.engine.stats().is_idle:
            threading.Event().wait(0.002)
        assert self.complete(prompt="hello")["choices"][0]["finish_reason"] == "length"

    def stop(self) -> None:
        self.gate.open()
        self.http.close()
        self.openai.close()
        self.server.should_exit = True
        self.thread.join()


def strict(text: str) -> Any:
    """JSON without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


StartServer = Callable[..., RunningServer]
SaveTokenizer = Callable[..., str]


@pytest.fixture
def chatml() -> str:
    """A chat template without BOS."""
    return CHATML


@pytest.fixture
def save_tokenizer(tmp_path: Path) -> SaveTokenizer:
    """save_tokenizer(options of byte_level_tokenizer) -> the directory it lies in."""

    def save(**options: Any) -> str:
        folder = tmp_path / "tokenizer"
        byte_level_tokenizer(**options).save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel(tmp_path_factory.mktemp("tiny_llama"))


@contextmanager
def _stopped(started: list[RunningServer]) -> Iterator[None]:
    try:
        yield
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="session")
def shared_server(tiny_model: TinyModel) -> Iterator[RunningServer]:
    server = RunningServer(tiny_model.engine())
    with _stopped([server]):
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> Iterator[RunningServer]:
    """The server most tests share. After each test it must be idle and working."""
    yield shared_server
    shared_server.check_idle()


@pytest.fixture
def start_server(tiny_model: TinyModel) -> Iterator[StartServer]:
    """Starts a server of the test's own: start_server(engine settings, app=options of create_app)."""
    started: list[RunningServer] = []

    def start(app: dict[str, Any] | None = None, **engine: Any) -> RunningServer:
        started.append(RunningServer(tiny_model.engine(**engine), **(app or {})))
        return started[-1]

    with _stopped(started):
        yield start
