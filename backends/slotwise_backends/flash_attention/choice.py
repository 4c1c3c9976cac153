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


OFFERS: dict[int, Offer] = {
    4: Offer(make=Version4, lowest=(9, 0), highest=(11, 9), block_size_multiple_of=1, cure="pip install --pre flash-attn-4"),
    3: Offer(make=Version3, lowest=(9, 0), highest=(9, 9), block_size_multiple_of=1, cure="build it from the hopper folder of flash-attn"),
    2: Offer(make=Version2, lowest=(8, 0), highest=(12, 9), block_size_multiple_of=256, cure="pip install flash-attn"),
}
"""Newest first."""


def choose_library(version: Literal["auto", 2, 3, 4], *, capability: tuple[int, int] | None, block_size: int) -> FlashLibrary:
    """The library, imported. capability: None where there is no card to ask, as with a stand-in: then every version will do.

    Raises ResolutionError naming what speaks against the version asked for, or against each; ComponentUnavailableError if what suits is not
    installed.
    """
    asked = tuple(OFFERS) if version == "auto" else (version,)
    against: list[str] = []
    missing: list[str] = []
    for number in asked:
        offer = OFFERS[number]
        if (reason := _refusal(number, offer, capability, block_size)) is not None:
            against.append(reason)
            continue
        try:
            library = offer.make()
        except ImportError as error:
            missing.append(f"version {number} cannot be imported ({error}): {offer.cure}")
            continue
        logger.info("flash_attention: version %d of the library (asked: %s)", number, version)
        return library
    reasons = "; ".join([*against, *missing])
    wish = f"flash_attention.version = {version!r}"
    if missing:
        raise ComponentUnavailableError(f"{wish}: {reasons}.")
    raise ResolutionError(f"{wish}: {reasons}.")


def _refusal(number: int, offer: Offer, capability: tuple[int, int] | None, block_size: int) -> str | None:
    if capability is not None and not offer.lowest <= capability <= offer.highest:
        lowest, highest, found = (".".join(map(str, each)) for each in (offer.lowest, offer.highest, capability))
        return f"version {number} is for GPUs of compute capability {lowest} to {highest}, this one has {found}"
    if block_size % offer.block_size_multiple_of:
        return f"version {number} needs blocks of a multiple of {offer.block_size_multiple_of} tokens: kv_cache.block_size is {block_size}"
    return None
