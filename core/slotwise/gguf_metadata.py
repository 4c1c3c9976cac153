"""Config and tokenizer of a GGUF file as Hugging Face files.

transformers can derive both, but reads the vocabulary entry by entry, which takes seconds; so it is done once per file and the result is
kept (`derived_files`). The tokenizer is made through its own class, since `AutoTokenizer` would derive the config a second time. What
this file does not know: tensors.
"""

from __future__ import annotations

import logging
from importlib import metadata
from pathlib import Path

from slotwise.derived_files import derived_folder
from slotwise.errors import ModelLoadError, WeightsError

logger = logging.getLogger(__name__)

_FORMAT = "1"
"""Raise it when what is written here changes."""
_MAGIC = b"GGUF"


def derived_model_files(path: Path) -> Path:
    """Folder with config.json and, where the file has a vocabulary, the tokenizer's files. Raises WeightsError for a broken file."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise WeightsError(f"{path} is not a GGUF file: it does not begin with the letters GGUF. Fetch it again.")
    version = f"{_FORMAT}/transformers {metadata.version('transformers')}/gguf {metadata.version('gguf')}"
    return derived_folder("gguf", path, version, lambda folder: _derive(path, folder))


def _derive(path: Path, folder: Path) -> None:
    from transformers import AutoConfig, PreTrainedTokenizerFast

    logger.info("reading config and vocabulary of %s, once", path)
    try:
        config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
        config.save_pretrained(folder)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if "is not supported yet" in str(error):
            raise ModelLoadError(f"{path}: {error} Use the model's safetensors files instead.") from error
        raise WeightsError(
            f"{path} is not a readable GGUF file ({type(error).__name__}: {error}). The download is probably incomplete; fetch it again."
        ) from error
