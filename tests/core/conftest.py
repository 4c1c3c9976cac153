"""The command line run in this process, and a tiny model to run it on: one printable character per token, two layers, fixed weights."""

from __future__ import annotations

import io
import string
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CHAT_TEMPLATE = """\
{% for message in messages %}[{{ message.role }}]{{ message.content }}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs `slotwise ARGUMENTS` -> exit code, stdout, stderr."""
    from slotwise.cli import main

    def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory whose tokenizer has a chat template."""
    return _save_model(tmp_path_factory.mktemp("chat_model"), CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory whose tokenizer has none."""
    return _save_model(tmp_path_factory.mktemp("plain_model"), None)


def _save_model(path: Path, chat_template: str | None) -> Path:
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    characters = [*string.digits, *string.ascii_letters, *string.punctuation, " ", "\n"]
    vocab = {token: index for index, token in enumerate(["<unk>", "</s>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", chat_template=chat_template, clean_up_tokenization_spaces=False
    )
    fast.save_pretrained(path)
    config = LlamaConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[:2] = 0.0  # greedy text then has one character per token: no special token is ever the most likely one
    model.save_pretrained(path)
    return path
