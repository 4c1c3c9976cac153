"""`random` weights: made up from a seed, for tests and benchmarks of models nobody trained."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch

from slotwise.interfaces.model import Weights, WeightsSetup
from slotwise_plugins.weights.parameter_names import parameter_shapes

_BIAS_STD = 0.02
_NORM_STD = 0.1


class RandomWeights(Weights):
    """Seeded by (seed, tensor name), so a tensor is the same whatever else the model has, and in whatever order it is made.

    Matrices have variance 1 / fan-in, norms lie around 1, biases around 0: activations keep their size through many layers.
    """

    def __init__(self, setup: WeightsSetup) -> None:
        super().__init__(setup)
        self._shapes = parameter_shapes(setup.hf_config)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, shape in self._shapes.items():
            yield name, _random_tensor(self.setup.seed, name, shape)

    @property
    def num_tensors(self) -> int:
        return len(self._shapes)

    def metadata(self) -> dict[str, object]:
        return {"format": "random", "seed": self.setup.seed}


def _random_tensor(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    noise = torch.randn(shape, generator=generator)
    if len(shape) > 1:
        return noise.mul_(1 / math.sqrt(shape[-1]))
    return noise.mul_(_NORM_STD).add_(1.0) if name.endswith("weight") else noise.mul_(_BIAS_STD)
