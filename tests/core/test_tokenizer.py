"""Loading tokenizers: the model's own, another, none, and chat templates from files."""

from __future__ import annotations

import pytest
import tokenizers
import transformers

from slotwise.errors import ConfigError, ModelLoadError
from slotwise.model_source import find_model
from slotwise.tokenizer import load_tokenizer


def save_tokenizer(folder, words):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=words[0]).save_pretrained(folder)


@pytest.fixture
def directory(tmp_path):
    folder = tmp_path / "model"
    config = transformers.LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config.save_pretrained(folder)
    return folder


def test_loads_the_models_own(directory):
    save_tokenizer(directory, ["?", "hello", "world"])
    assert load_tokenizer(find_model(str(directory))).encode("hello world") == [1, 2]


def test_a_model_without_tokenizer_files_has_none(directory):
    assert load_tokenizer(find_model(str(directory))) is None


def test_another_directory_replaces_it(directory, tmp_path):
    save_tokenizer(directory, ["?", "hello", "world"])
    save_tokenizer(tmp_path / "other", ["?", "world", "hello"])
    assert load_tokenizer(find_model(str(directory)), override=str(tmp_path / "other")).encode("hello world") == [2, 1]


def test_a_template_file_replaces_the_template(directory, tmp_path):
    save_tokenizer(directory, ["?", "hello"])
    (tmp_path / "template.jinja").write_text("{{ messages[0]['content'] }}!")
    tokenizer = load_tokenizer(find_model(str(directory)), chat_template=str(tmp_path / "template.jinja"))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


def test_a_wrong_template_path_is_an_error_with_the_path(directory, tmp_path):
    save_tokenizer(directory, ["?"])
    with pytest.raises(ConfigError, match=r"absent\.jinja") as error:
        load_tokenizer(find_model(str(directory)), chat_template=str(tmp_path / "absent.jinja"))
    assert error.value.key == "model.chat_template"


def test_a_template_without_a_tokenizer_is_an_error(directory, tmp_path):
    (tmp_path / "template.jinja").write_text("x")
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer(find_model(str(directory)), chat_template=str(tmp_path / "template.jinja"))


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_without_a_tokenizer_is_an_error_with_the_path(directory, tmp_path, exists):
    other = tmp_path / "other"
    if exists:
        other.mkdir()
    with pytest.raises(ConfigError, match="other") as error:
        load_tokenizer(find_model(str(directory)), override=str(other))
    assert error.value.key == "model.tokenizer"


def test_broken_tokenizer_files_are_an_error_with_the_path(directory):
    (directory / "tokenizer.json").write_text('{"added_tokens": []}')
    with pytest.raises(ModelLoadError, match="model"):
        load_tokenizer(find_model(str(directory)))
