"""`PoolingParams`: how a prompt becomes one vector.

What this file does not know: models, their own way of pooling.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from slotwise.errors import InvalidRequestError


class Pooling(enum.StrEnum):
    """Which of the tokens' hidden states make the vector."""

    LAST = "last"
    MEAN = "mean"
    CLS = "cls"


@dataclass(kw_only=True, slots=True)
class PoolingParams:
    """Parameters of one embedding. Raises InvalidRequestError whose `param` names the field.

    pooling: `last` token, `mean` over all, `cls` (the first token); None = the model's own way, `last` where its files state none.
    normalize: whether the vector has length 1; None = the model's own way, True where its files state none. dimensions: how many leading
    components are kept, before the length is made 1 (for models trained so that these are good alone); None = all.
    """

    pooling: Pooling | str | None = None
    normalize: bool | None = None
    dimensions: int | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Put every field into normal form. Raises InvalidRequestError."""
        if self.pooling is not None:
            try:
                self.pooling = Pooling(self.pooling)
            except ValueError as error:
                raise InvalidRequestError(
                    f"pooling must be one of {', '.join(Pooling)}, got {self.pooling!r:.60}.", param="pooling"
                ) from error
        if self.normalize is not None and not isinstance(self.normalize, bool):
            raise InvalidRequestError(f"normalize must be true or false, got {self.normalize!r:.60}.", param="normalize")
        dimensions = self.dimensions
        if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1):
            raise InvalidRequestError(f"dimensions must be an integer of at least 1, got {dimensions!r:.60}.", param="dimensions")

    def clone(self) -> PoolingParams:
        return replace(self)
