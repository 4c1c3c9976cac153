"""Which version of the library runs: the one asked for, or the newest that is installed and made for the card.

What this file does not know: how a version is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slotwise.errors import ComponentUnavailableError, ResolutionError
from slotwise_backends.flash_attention.version_2 import Version2
from slotwise_backends.flash_attention.version_3 import Version3
from slotwise_backends.flash_attention.version_4 import Version4
from slotwise_backends.flash_attention.work import FlashLibrary

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A version, where it runs, and how to get it."""

    make: Callable[[], FlashLibrary]
    lowest: tuple[int, int]
    highest: tuple[int, int]
    """Compute capability."""
    block_size_multiple_of: int
    cure: str
    has_splits: bool = False
    """Splits the keys of a row where `num_splits` says so."""


OFFERS: dict[int, Offer] = {
    4: Offer(make=Version4, lowest=(9, 0), highest=(11, 9), block_size_multiple_of=1, cure="pip install --pre flash-attn-4"),
    3: Offer(
        make=Version3,
        lowest=(9, 0),
        highest=(9, 9),
        block_size_multiple_of=1,
        cure="build it from the hopper folder of flash-attn",
        has_splits=True,
    ),
    2: Offer(make=Version2, lowest=(8, 0), highest=(12, 9), block_size_multiple_of=256, cure="pip install flash-attn"),
}
"""Newest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a version must be able to do."""

    capability: tuple[int, int] | None
    """Of the card; None where there is none to ask, as with a stand-in: then every version will do."""
    block_size: int
    head_dims: tuple[int, ...] = ()
    num_splits: int = 0


def choose_library(version: Literal["auto", 2, 3, 4], wish: Wish) -> FlashLibrary:
    """The library, imported.

    Raises ResolutionError naming what speaks against the version asked for, or against each; ComponentUnavailableError if what suits is not
    installed.
    """
    asked = tuple(OFFERS) if version == "auto" else (version,)
    against: list[str] = []
    missing: list[str] = []
    for number in asked:
        offer = OFFERS[number]
        if (reason := _refusal(number, offer, wish)) is not None:
            against.append(reason)
            continue
        try:
            library = offer.make()
        except ImportError as error:
            missing.append(f"version {number} cannot be imported ({error}): {offer.cure}")
            logger.info("flash_attention: %s", missing[-1])
            continue
        logger.info("flash_attention: version %d of the library (asked: %s)", number, version)
        return library
    reasons = "; ".join([*against, *missing])
    asked_for = f"flash_attention.version = {version!r}"
    if missing:
        raise ComponentUnavailableError(f"{asked_for}: {reasons}.")
    raise ResolutionError(f"{asked_for}: {reasons}.")


def _refusal(number: int, offer: Offer, wish: Wish) -> str | None:
    if wish.capability is not None and not offer.lowest <= wish.capability <= offer.highest:
        lowest, highest, found = (".".join(map(str, each)) for each in (offer.lowest, offer.highest, wish.capability))
        return f"version {number} is for GPUs of compute capability {lowest} to {highest}, this one has {found}"
    if wish.block_size % offer.block_size_multiple_of:
        multiple = offer.block_size_multiple_of
        return f"version {number} needs blocks of a multiple of {multiple} tokens: kv_cache.block_size is {wish.block_size}"
    if wish.num_splits > 1 and not offer.has_splits:
        return f"version {number} does not split keys: num_splits is {wish.num_splits}"
    refused = [dim for dim in wish.head_dims if not _accepts_head_dim(number, wish.capability, dim)]
    return f"version {number} has no heads of {refused[0]} on this GPU, only up to 128 and of 256" if refused else None


def _accepts_head_dim(number: int, capability: tuple[int, int] | None, dim: int) -> bool:
    """Version 4 on compute capability 10 and 11 has heads of up to 128, and of 256. Source: `_validate_head_dims` of flash-attn-4."""
    return number != 4 or capability is None or capability[0] < 10 or dim <= 128 or dim == 256
