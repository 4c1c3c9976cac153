"""One buffer of the KV pool, and a second one that says bit for bit what it must hold.

What may not be read is NaN in both. Content that nobody holds but a later hit may bring back is kept aside. Everything here works on
the bits (integers as wide as the storage dtype), so that NaN equals NaN.

What this file does not know: who holds a block, and why.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slotwise.errors import ConfigError

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def nan_bits(dtype: torch.dtype) -> int:
    """The poison, as an integer. Raises ConfigError for a dtype without NaN."""
    if not dtype.is_floating_point:
        raise ConfigError(
            f"kv_cache.sanitize marks slots with NaN, which storage dtype {dtype} does not have. Choose a floating-point kv_cache.dtype.",
            key="kv_cache.sanitize",
        )
    return int(torch.tensor(float("nan"), dtype=torch.float32).to(dtype).view(_BITS[dtype.itemsize]).item())


class GuardedMemory:
    """Wraps the buffer behind `cache`; all of it is poison at first."""

    def __init__(self, cache: torch.Tensor) -> None:
        num_blocks, block_elements = cache.shape[0], cache[0].numel()
        self.poison = nan_bits(cache.dtype)
        self.real = cache.as_strided((num_blocks, block_elements), (block_elements, 1)).view(_BITS[cache.dtype.itemsize])
        """[num_blocks, elements of a block], the buffer itself."""
        self.real.fill_(self.poison)
        self.image = self.real.clone()
        """What `real` must hold."""
        self._aside: dict[int, torch.Tensor] = {}

    def renew(self, blocks: Sequence[int]) -> None:
        """Poison whole blocks; what they held is lost."""
        for block in blocks:
            self._aside.pop(block, None)
        self._fill(blocks, self.poison)

    def hide(self, blocks: Sequence[int]) -> None:
        """Poison whole blocks and keep aside what they held."""
        if blocks:
            self._aside.update(zip(blocks, self.image[list(blocks)].unbind(), strict=True))
            self._fill(blocks, self.poison)

    def show(self, blocks: Sequence[int]) -> None:
        """Bring back what was kept aside."""
        for block in blocks:
            if block in self._aside:
                self.real[block] = self.image[block] = self._aside.pop(block)

    def content(self, block: int) -> torch.Tensor:
        """[elements of a block] what it holds, or held when it was hidden."""
        return self._aside.get(block, self.image[block])

    def changed_blocks(self) -> list[int]:
        """Blocks that do not hold what they must."""
        if torch.equal(self.real, self.image):
            return []
        return [int(block) for block in (self.real != self.image).any(dim=1).nonzero().squeeze(1)]

    def restore(self) -> None:
        """Make the buffer what it must be."""
        self.real.copy_(self.image)

    def _fill(self, blocks: Sequence[int], value: int) -> None:
        if blocks:
            self.real[list(blocks)] = value
            self.image[list(blocks)] = value


class LayerSlots:
    """The slots of one layer in its memory. Indexing yields [num_slots, 2, num_kv_heads, head_dim] (index 0 = K, 1 = V)."""

    def __init__(self, memory: GuardedMemory, cache: torch.Tensor) -> None:
        self.memory = memory
        self.block_size = cache.shape[2]
        self.real = memory.real.as_strided(cache.shape, cache.stride())
        self.image = memory.image.as_strided(cache.shape, cache.stride())

    def place(self, slots: torch.Tensor) -> tuple[torch.Tensor, slice, torch.Tensor]:
        """Index of the slots [num_slots] into `real` and `image`."""
        return torch.div(slots, self.block_size, rounding_mode="floor"), slice(None), slots % self.block_size

    def accept(self, slots: torch.Tensor) -> None:
        """What these slots hold now is what they must hold."""
        place = self.place(slots)
        self.image[place] = self.real[place]

    def poison(self, slots: torch.Tensor) -> None:
        """Nothing in these slots counts any more."""
        place = self.place(slots)
        self.real[place] = self.memory.poison
        self.image[place] = self.memory.poison

    def changed_offsets(self, block: int) -> list[int]:
        """Offsets in a block that do not hold what they must."""
        differs = (self.real[block] != self.image[block]).any(dim=3).any(dim=2).any(dim=0)
        return [int(offset) for offset in differs.nonzero().squeeze(1)]
