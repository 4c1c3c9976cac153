"""Loading a tokenizer: the model's own or another, with an optional chat template from a file.

Nothing is downloaded, and no code that comes with a model is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slotwise.errors import ConfigError, ModelLoadError
from slotwise.model_source import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


def load_tokenizer(source: ModelSource, override: str | None = None, chat_template: str | None = None) -> PreTrainedTokenizerBase | None:
    """The tokenizer of `source`, or of the directory `override`; None if the model has none (then only token ids are served).

    chat_template: path of a Jinja file that replaces the tokenizer's template. Raises ConfigError for a path that leads nowhere,
    ModelLoadError for tokenizer files that cannot be read.
    """
    folder = _override_folder(override) if override is not None else source.tokenizer_path
    template = None if chat_template is None else _read_template(chat_template)
    if override is None and not _has_tokenizer(folder):
        if template is not None:
            raise ConfigError(
                f"model.chat_template is set, but {folder} holds no tokenizer to use it. Set model.tokenizer to a directory with one.",
                key="model.chat_template",
            )
        return None
    tokenizer = _load(folder)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def _override_folder(override: str) -> Path:
    folder = Path(override).expanduser()
    if not folder.is_dir() or not _has_tokenizer(folder):
        reason = "is not a directory" if not folder.is_dir() else f"holds none of {', '.join(_TOKENIZER_FILES)}"
        raise ConfigError(f"model.tokenizer: {folder} {reason}. Give a directory with a tokenizer's files.", key="model.tokenizer")
    return folder


def _read_template(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"model.chat_template: {path} cannot be read: {reason}. Give the path of a Jinja file.", key="model.chat_template"
        ) from error


def _load(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelLoadError(
            f"The tokenizer in {folder} cannot be loaded ({type(error).__name__}: {error}). Fetch its files again, or set model.tokenizer."
        ) from error
