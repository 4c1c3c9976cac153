"""From what the user calls a model to its files and facts: a directory, a .gguf file, or a known name. Nothing is ever downloaded, and no
code that comes with a model is run.

What this file does not know: parameters, how a model is built.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slotwise.errors import ModelLoadError, ModelNotFoundError
from slotwise.known_models import KNOWN_MODELS
from slotwise.plugin.suggestions import did_you_mean
from slotwise.startup import stage

if TYPE_CHECKING:
    from transformers import PretrainedConfig

GGUF_SUFFIX = ".gguf"
SAFETENSORS_SUFFIX = ".safetensors"
DEFAULT_MAX_MODEL_LEN = 2048
"""For the few configs that state no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """A model's files, and what its config says."""

    name: str
    """What the user asked for."""
    path: Path
    """The directory or the .gguf file."""
    kind: Literal["directory", "gguf"]
    hf_config: PretrainedConfig
    weights_path: Path | None
    """What a weights component opens: the directory, or the .gguf file. None if there are no weight files."""
    weights_suffix: str | None
    tokenizer_path: Path
    """Directory with the tokenizer's files, if there are any."""
    eos_token_ids: frozenset[int]
    """Every id that ends a sequence: of the generation config, the config and the tokenizer."""

    @property
    def architecture(self) -> str:
        """Hugging Face's name of the model class, e.g. `LlamaForCausalLM`."""
        named = getattr(self.hf_config, "architectures", None)
        if named:
            return str(named[0])
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(self.hf_config.model_type, self.hf_config.model_type))

    @property
    def vocab_size(self) -> int:
        return int(self.hf_config.get_text_config().vocab_size)

    @property
    def max_model_len(self) -> int:
        """The model's own limit in positions. Where the rotary embedding is scaled the config states the scaled limit already."""
        limit = getattr(self.hf_config.get_text_config(), "max_position_embeddings", None)
        return int(limit) if limit else DEFAULT_MAX_MODEL_LEN

    @property
    def dtype(self) -> str:
        """The dtype the checkpoint was made in, float32 where the config does not say."""
        stated = getattr(self.hf_config, "dtype", None)
        return "float32" if stated is None else str(stated).removeprefix("torch.")


def find_model(source: str) -> ModelSource:
    """Look a model up. Raises ModelLoadError: unknown name, nothing there, or a config that cannot be read."""
    if source in KNOWN_MODELS:
        return _from_gguf(source, KNOWN_MODELS[source].locate())
    path = _existing_path(source)
    if path is not None and path.is_dir():
        return _from_directory(source, path)
    if path is not None and path.suffix == GGUF_SUFFIX:
        return _from_gguf(source, path)
    if path is not None:
        raise ModelLoadError(f"Model {source!r} is a file, but no {GGUF_SUFFIX} file; give such a file, or the model's directory.")
    raise ModelNotFoundError(
        f"There is no model {source[:200]!r}.{did_you_mean(source, KNOWN_MODELS)} A model is a directory with config.json, a "
        f"{GGUF_SUFFIX} file, or a known name ({', '.join(KNOWN_MODELS)}). Models are never downloaded: fetch its files first and give "
        "their directory."
    )


def _existing_path(source: str) -> Path | None:
    try:
        path = Path(source).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, no such user, a NUL byte
        return None


def _from_gguf(name: str, path: Path) -> ModelSource:
    from slotwise.gguf_metadata import derived_model_files

    return _source(name, path, "gguf", derived_model_files(path), (path, GGUF_SUFFIX))


def _from_directory(name: str, path: Path) -> ModelSource:
    if not (path / "config.json").is_file():
        ggufs = sorted(path.glob(f"*{GGUF_SUFFIX}"))
        hint = f"give one of its files: {', '.join(str(file) for file in ggufs)}" if ggufs else "give the directory that holds it"
        raise ModelLoadError(f"Model directory {path} holds no config.json; {hint}.")
    return _source(name, path, "directory", path, _weight_files(path))


def _source(
    name: str, path: Path, kind: Literal["directory", "gguf"], folder: Path, weights: tuple[Path | None, str | None]
) -> ModelSource:
    """`folder` holds config and tokenizer."""
    return ModelSource(
        name=name,
        path=path,
        kind=kind,
        hf_config=_read_config(folder),
        weights_path=weights[0],
        weights_suffix=weights[1],
        tokenizer_path=folder,
        eos_token_ids=_eos_token_ids(folder),
    )


def _weight_files(path: Path) -> tuple[Path | None, str | None]:
    if any(path.glob(f"*{SAFETENSORS_SUFFIX}*")):
        return path, SAFETENSORS_SUFFIX
    ggufs = sorted(path.glob(f"*{GGUF_SUFFIX}"))
    return (ggufs[0], GGUF_SUFFIX) if len(ggufs) == 1 else (None, None)


def _read_config(folder: Path) -> PretrainedConfig:
    with stage("import of transformers"):
        from transformers import AutoConfig

    try:
        with stage("model config"):
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        _check_stated_sizes(folder / "config.json")
        raise ModelLoadError(
            f"{folder / 'config.json'} cannot be used: {error} Known are the model types of the installed transformers; code that comes "
            "with a model is never run."
        ) from error
    _check_sizes(config.get_text_config(), folder / "config.json")
    return config


_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")


def _check_sizes(config: Any, path: Path) -> None:
    """Raises ModelLoadError for numbers that no model can have, before anything is built from them."""
    for name in (*_SIZES, "max_position_embeddings"):
        _check_size(name, getattr(config, name, None), path)


def _check_stated_sizes(path: Path) -> None:
    """The same for a file that transformers refuses, since it fails over such a number without naming the key."""
    content = _read_json(path)
    for name in (*_SIZES, "max_position_embeddings"):
        _check_size(name, content.get(name), path)


def _check_size(name: str, value: Any, path: Path) -> None:
    if isinstance(value, int) and not 1 <= value < 2**31:
        raise ModelLoadError(f"{path}: {name} is {value}; it must be at least 1 and below 2**31. Fetch the file again.")


def _eos_token_ids(folder: Path) -> frozenset[int]:
    ids: set[int] = set()
    for file_name in ("generation_config.json", "config.json"):
        ids |= _ids(_read_json(folder / file_name).get("eos_token_id"))
    return frozenset(ids | _tokenizer_eos_ids(folder))


def _ids(value: Any) -> set[int]:
    return {item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int) and not isinstance(item, bool)}


def _tokenizer_eos_ids(folder: Path) -> set[int]:
    """Id of the tokenizer's EOS token, which is named in one file and numbered in another."""
    token = _read_json(folder / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return set()
    return {entry["id"] for entry in _added_tokens(folder) if entry.get("content") == text and isinstance(entry.get("id"), int)}


def _added_tokens(folder: Path) -> Iterable[dict[str, Any]]:
    entries = _read_json(folder / "tokenizer.json").get("added_tokens")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} where there is no such file. Raises ModelLoadError naming a file that is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}. Fetch the file again.") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} is not a JSON object. Fetch the file again.")
    return content
