"""`safetensors` weights: one file, or a directory of shards with or without an index.

Opening reads the headers alone and checks that every byte they promise is there, so that an incomplete download is told before
memory is taken. What this file does not know: models, devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from slotwise.errors import WeightsError
from slotwise.interfaces.model import Weights, WeightsSetup

_SUFFIX = ".safetensors"
_INDEX_SUFFIX = ".safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


class SafetensorsWeights(Weights):
    """Tensors of one or several safetensors files, mapped lazily."""

    def __init__(self, setup: WeightsSetup) -> None:
        """Raises WeightsError naming the file that is missing, truncated or contradicts the index."""
        super().__init__(setup)
        if setup.path is None:
            raise WeightsError("`safetensors` weights need a file or a directory; set model.source.")
        self._files = _find_tensors(setup.path)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path, names in self._files.items():
            try:
                with safe_open(path, framework="pt", device="cpu") as file:
                    for name in names:
                        yield name, file.get_tensor(name)
            except SafetensorError as error:
                raise WeightsError(f"{path} cannot be read: {error}. {_COMPLETE}") from error

    @property
    def num_tensors(self) -> int:
        return sum(len(names) for names in self._files.values())

    def metadata(self) -> dict[str, Any]:
        return {"format": "safetensors", "files": [path.name for path in self._files]}


_COMPLETE = "The download is probably incomplete; fetch the file again."


def _find_tensors(path: Path) -> dict[Path, list[str]]:
    """File -> names of the tensors to take from it."""
    if path.is_file():
        return {path: sorted(_read_header(path))}
    if not path.is_dir():
        raise WeightsError(f"{path} does not exist.")
    indexes = sorted(path.glob(f"*{_INDEX_SUFFIX}"))
    if len(indexes) > 1:
        raise WeightsError(f"{path} has several indexes ({', '.join(index.name for index in indexes)}); keep the one to load.")
    return _by_index(indexes[0]) if indexes else _all_files(path)


def _all_files(directory: Path) -> dict[Path, list[str]]:
    files = {file: sorted(_read_header(file)) for file in sorted(directory.glob(f"*{_SUFFIX}"))}
    if not files:
        raise WeightsError(f"{directory} holds no {_SUFFIX} file. Weights in pickle formats (.bin, .pt) are not read; convert them first.")
    owner: dict[str, Path] = {}
    for file, names in files.items():
        for name in names:
            if name in owner:
                raise WeightsError(f"Tensor {name} is in both {owner[name]} and {file}; remove the file that does not belong to the model.")
            owner[name] = file
    return files


def _by_index(index: Path) -> dict[Path, list[str]]:
    files: dict[Path, list[str]] = {}
    for name, file_name in _read_weight_map(index).items():
        if Path(file_name).name != file_name:
            raise WeightsError(f"{index} places tensor {name} in {file_name!r}, which is not a plain file name.")
        files.setdefault(index.parent / file_name, []).append(name)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise WeightsError(f"{index} names {', '.join(missing)}, which is not in {index.parent}. {_COMPLETE}")
    for file, names in files.items():
        absent = sorted(set(names) - _read_header(file).keys())
        if absent:
            raise WeightsError(f"{index} places tensor {absent[0]} in {file}, which does not hold it ({len(absent)} such). {_COMPLETE}")
    return files


def _read_weight_map(index: Path) -> dict[str, str]:
    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise WeightsError(f"{index} lists {twice[0]} twice; fetch the index again.")
        return dict(pairs)

    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=refuse_duplicates)["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(f"{index} is not a safetensors index ({type(error).__name__}: {error}); fetch it again.") from error
    if not isinstance(weight_map, dict) or not all(isinstance(file_name, str) for file_name in weight_map.values()):
        raise WeightsError(f"{index} is not a safetensors index: weight_map must map tensor names to file names.")
    return weight_map


def _read_header(path: Path) -> dict[str, Any]:
    """Name -> entry of each tensor. Raises WeightsError unless the file is exactly as long as its header says."""
    if not path.is_file():
        raise WeightsError(f"{path} is not a file (a directory, or a link that leads nowhere). {_COMPLETE}")
    size = path.stat().st_size
    with path.open("rb") as file:
        header_len = int.from_bytes(file.read(8), "little")
        if size < 8 or header_len > min(size - 8, _MAX_HEADER_BYTES):
            raise WeightsError(f"{path} has {size} bytes, fewer than its header needs. {_COMPLETE}")
        try:
            header = json.loads(file.read(header_len))
            header.pop("__metadata__", None)
            data_len = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            raise WeightsError(f"{path} has no safetensors header ({type(error).__name__}: {error}). {_COMPLETE}") from error
    if size != 8 + header_len + data_len:
        raise WeightsError(f"{path} has {size} bytes, its header promises {8 + header_len + data_len}. {_COMPLETE}")
    return header  # type: ignore[no-any-return]
