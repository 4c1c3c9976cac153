"""`gguf` weights: each tensor of a GGUF file, dequantised, under its Hugging Face name and in the Hugging Face row order.

What this file does not know: how the head of the file is encoded (`gguf_header`), what each architecture changed
(`gguf_architectures`), models.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from slotwise.errors import WeightsError
from slotwise.interfaces.linear import BlockRows
from slotwise.interfaces.model import Weights, WeightsSetup
from slotwise_plugins.weights.gguf_architectures import COMPUTED_TENSORS, ROWWISE, resolve_architecture
from slotwise_plugins.weights.gguf_header import GgufTensor, read_gguf_header
from slotwise_plugins.weights.parameter_names import parameter_shapes

logger = logging.getLogger(__name__)

_ROPE_TYPES_WITH_TABLES = frozenset({"llama3", "longrope"})


class GgufWeights(Weights):
    """Tensors of one GGUF file as float32, or matrices as they are stored."""

    def __init__(self, setup: WeightsSetup) -> None:
        """Raises WeightsError if the file is broken or truncated, or its architecture or a tensor type is not supported."""
        super().__init__(setup)
        if setup.path is None or not setup.path.is_file():
            raise WeightsError(f"`gguf` weights need one .gguf file, got {setup.path}; set model.source to the file.")
        self._path = setup.path
        self._header = read_gguf_header(setup.path)
        name = str(self._header.metadata.get("general.architecture", ""))
        self._architecture = resolve_architecture(name, setup.hf_config, list(parameter_shapes(setup.hf_config)), setup.path)
        self._tensors = [tensor for tensor in self._header.tensors if tensor.name not in COMPUTED_TENSORS]
        self._warn_of_unused_tables()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | BlockRows]]:
        """A tensor the model has no name for keeps the file's own, so that loading reports it."""
        content = np.memmap(self._path, mode="r", dtype=np.uint8)
        for tensor in self._tensors:
            name = self._architecture.names.get(tensor.name, self._output_name(tensor.name))
            if self._keeps_blocks(tensor):
                yield name, self._blocks(content, tensor)
                continue
            stored = torch.from_numpy(self._dequantized(content, tensor))
            yield name, self._architecture.restore(tensor.name, stored, self.setup.hf_config)

    @property
    def num_tensors(self) -> int:
        return len(self._tensors)

    def metadata(self) -> dict[str, Any]:
        types = Counter(tensor.quantization.name for tensor in self._tensors)
        return {"format": "gguf", "architecture": self._header.metadata.get("general.architecture"), "quantization": dict(types)}

    @staticmethod
    def _output_name(name: str) -> str:
        """The head of a model with tied embeddings is no parameter of its own, but may be stored."""
        return "lm_head.weight" if name == "output.weight" else name

    def _keeps_blocks(self, tensor: GgufTensor) -> bool:
        is_wanted = len(tensor.shape) == 2 and tensor.quantization.name in self.setup.block_schemes
        return is_wanted and self._architecture.restore in ROWWISE

    def _blocks(self, content: np.memmap[Any, Any], tensor: GgufTensor) -> BlockRows:
        """Rows of bytes are restored as rows of numbers would be."""
        with warnings.catch_warnings():  # of torch, that the map is not writable; nobody writes
            warnings.simplefilter("ignore", UserWarning)
            data = torch.from_numpy(content[tensor.offset : tensor.offset + tensor.num_bytes].reshape(tensor.shape[0], -1))
        restored = self._architecture.restore(tensor.name, data, self.setup.hf_config)
        return BlockRows(scheme=tensor.quantization.name, data=restored, num_inputs=tensor.shape[1])

    def _dequantized(self, content: np.memmap[Any, Any], tensor: GgufTensor) -> np.ndarray[Any, Any]:
        block_len, block_bytes = GGML_QUANT_SIZES[tensor.quantization]
        data = content[tensor.offset : tensor.offset + tensor.num_bytes]
        if tensor.quantization == GGMLQuantizationType.F32:
            return np.array(data.view(np.float32).reshape(tensor.shape))
        rows = data.reshape(*tensor.shape[:-1], tensor.shape[-1] // block_len * block_bytes)
        try:
            values = dequantize(rows, tensor.quantization)
        except NotImplementedError as error:
            raise WeightsError(
                f"{self._path}: tensor {tensor.name} has type {tensor.quantization.name}, which the gguf package cannot dequantise. "
                "Use a file in another quantisation."
            ) from error
        return np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape)

    def _warn_of_unused_tables(self) -> None:
        tables = [tensor.name for tensor in self._header.tensors if tensor.name in COMPUTED_TENSORS]
        rope_type = (getattr(self.setup.hf_config, "rope_parameters", None) or {}).get("rope_type")
        if tables and rope_type not in _ROPE_TYPES_WITH_TABLES:
            logger.warning(
                "%s stores rotary tables (%s), but the model's config has rope type %s: long contexts will be wrong. "
                "Use the model's safetensors files with their config.json.",
                self._path, ", ".join(tables), rope_type,
            )  # fmt: skip
