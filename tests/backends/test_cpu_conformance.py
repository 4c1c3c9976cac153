"""The `cpu` backend keeps the attention contract."""

from __future__ import annotations

import pytest

from slotwise.testing import AttentionConformance
from slotwise_backends.cpu_attention.capabilities import missing_library

pytestmark = pytest.mark.skipif(missing_library() is not None, reason="no C compiler was there at install")


class TestCpu(AttentionConformance):
    component = "cpu"
