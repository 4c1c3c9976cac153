"""The head of a GGUF file: metadata and where each tensor lies, checked against the file's size.

The `gguf` package's reader makes several array views for each of the hundred thousand vocabulary entries, which takes seconds; weights
need a few numbers only, so the head is read here in one pass. Source: the GGUF specification of the ggml project, versions 2 and 3.

What this file does not know: quantisation formats beyond their size, models.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from slotwise.errors import WeightsError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ARRAY_KEPT = 64
"""Longer arrays (vocabularies) are stepped over."""
_MAX_DIMENSIONS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufTensor:
    """Where one tensor lies."""

    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, the reverse of the file's order."""
    quantization: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHeader:
    """What the head of the file says."""

    metadata: dict[str, Any]
    """Scalars, strings and short arrays."""
    tensors: tuple[GgufTensor, ...]


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises WeightsError naming the file if it is no GGUF, broken, or shorter than its tensors need."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            header = _Reader(content).header()
            size = len(content)
    except (struct.error, ValueError, IndexError, OverflowError, KeyError) as error:
        raise WeightsError(f"{path} is not a readable GGUF file ({error or type(error).__name__}). {_COMPLETE}") from error
    except OSError as error:
        raise WeightsError(f"{path} cannot be opened: {error.strerror or error}.") from error
    for tensor in header.tensors:
        if tensor.offset + tensor.num_bytes > size:
            raise WeightsError(f"{path} has {size} bytes, but tensor {tensor.name} ends at {tensor.offset + tensor.num_bytes}. {_COMPLETE}")
    return header


_COMPLETE = "The download is probably incomplete; fetch the file again."


class _Reader:
    """A cursor over the file's bytes; every step checks bounds through struct or slicing."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.position = 0

    def header(self) -> GgufHeader:
        if self.content[:4] != _MAGIC:
            raise ValueError("it does not begin with the letters GGUF")
        self.position = 4
        version = self.scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is unknown; read are {_VERSIONS}, little-endian")
        num_tensors, num_fields = self.scalar("Q"), self.scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self.string()
            metadata[key] = self.value(self.scalar("I"))
        infos = [self.tensor_info() for _ in range(num_tensors)]
        alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        data_start = math.ceil(self.position / alignment) * alignment
        return GgufHeader(metadata=metadata, tensors=tuple(_locate(info, data_start) for info in infos))

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self.content, self.position)
        self.position += layout.size
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        end = self.position + length
        if end > len(self.content):
            raise ValueError("a string runs past the end of the file")
        text = self.content[self.position : end].decode("utf-8", errors="replace")
        self.position = end
        return text

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any] | None:
        kind, length = self.scalar("I"), self.scalar("Q")
        if kind == _ARRAY:
            raise ValueError("it has an array of arrays")
        if length <= _MAX_ARRAY_KEPT:
            return [self.value(kind) for _ in range(length)]
        if kind == _STRING:
            self.skip_strings(length)
        else:
            self.position += length * struct.calcsize("<" + _SCALARS[kind])
        return None

    def skip_strings(self, count: int) -> None:
        read_length, content, position = struct.Struct("<Q").unpack_from, self.content, self.position
        for _ in range(count):
            position += 8 + read_length(content, position)[0]
        self.position = position

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dimensions = self.string(), self.scalar("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
        dimensions = tuple(self.scalar("Q") for _ in range(num_dimensions))
        return name, dimensions[::-1], self.scalar("I"), self.scalar("Q")


def _locate(info: tuple[str, tuple[int, ...], int, int], data_start: int) -> GgufTensor:
    name, shape, kind, offset = info
    try:
        quantization = GGMLQuantizationType(kind)
    except ValueError:
        raise ValueError(f"tensor {name} has the unknown type {kind}; a newer gguf package may know it") from None
    block_len, block_bytes = GGML_QUANT_SIZES[quantization]
    if shape and shape[-1] % block_len:
        raise ValueError(f"tensor {name} of shape {shape} does not fill whole blocks of {quantization.name}")
    return GgufTensor(
        name=name,
        shape=shape,
        quantization=quantization,
        offset=data_start + offset,
        num_bytes=math.prod(shape) // block_len * block_bytes,
    )
