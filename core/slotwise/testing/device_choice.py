"""`DeviceKit`: on which device the cases of a slot run whose components claim devices.

What this file does not know: any slot.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from slotwise.errors import ConfigError
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.verdicts import NotClaimedError


class DeviceKit(ComponentConformance):
    """Base of kits whose components have `capabilities.devices`."""

    device: ClassVar[str | None] = None
    """Torch device to run on; None = the first claimed device type that this machine has. Naming one overrules the claim, for kernels run
    in an interpreter or libraries replaced by a stand-in."""

    @property
    def device_name(self) -> str:
        """The device that the cases run on. Raises NotClaimedError if the component runs on none that is here."""
        if self.device is not None:
            return self.device
        claimed: tuple[str, ...] = self.implementation()[0].capabilities.devices
        for device in claimed:
            if device == "cpu" or (device == "cuda" and torch.cuda.is_available()):
                return device
        raise NotClaimedError(f"runs on {', '.join(claimed)}, which this machine lacks")

    def require_runnable(self) -> None:
        super().require_runnable()
        try:
            self.device_name  # noqa: B018 - it raises
        except NotClaimedError as reason:
            raise ConfigError(
                f"{self.component} {reason}: none of its cases can run here. Examine it on such a machine, or name another with --device "
                "if its kernels are interpreted or its library is replaced by a stand-in."
            ) from reason
