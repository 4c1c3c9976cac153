"""Norms, rotation and gated activations: the kernels against the same in torch, in every instruction set this machine has."""

from __future__ import annotations

import math

import pytest
import torch

from slotwise_plugins.native.availability import missing_library
from slotwise_plugins.native.library import ACTIVATIONS, DenseKernels, load_library
from slotwise_plugins.native.row_ops import HeadShape, NativeRowOps, RopeTable, TorchRowOps

pytestmark = pytest.mark.skipif(missing_library() is not None, reason="no C compiler was there at install")
ROWS = (1, 7, 8, 40)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.fixture(params=[] if missing_library() else DenseKernels(load_library()).instruction_sets(), ids=lambda found: found[1])
def native(request):
    kernels = DenseKernels(load_library())
    kernels.choose(request.param[0])
    yield NativeRowOps(kernels)
    kernels.choose(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 33, 576])
def test_norm(native, size, dtype):
    for num_rows in ROWS:
        x, weight = random(num_rows, size), random(size, seed=1)
        outs = [torch.empty(num_rows, size, dtype=dtype) for _ in range(2)]
        for ops, out in zip((native, TorchRowOps()), outs, strict=True):
            ops.norm(x, weight, 1e-5, out)
        assert torch.allclose(outs[0].float(), outs[1].float(), rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)
    added = [x.clone() for _ in range(2)]
    for ops, out in zip((native, TorchRowOps()), added, strict=True):
        ops.norm(x, weight, 1e-5, out, adds=True)
    assert torch.allclose(*added, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("half", [0, 4, 12])
@pytest.mark.parametrize("with_norms", [False, True])
def test_rope(native, half, with_norms):
    shape = HeadShape(num_heads=5, num_kv_heads=2, head_dim=24, eps=1e-6)
    angles = random(50, half, seed=3)
    table = RopeTable(cos=angles.cos(), sin=angles.sin())
    norms = {"query_norm": random(24, seed=4), "key_norm": random(24, seed=5)} if with_norms else {}
    for num_rows in ROWS:
        qkv = random(num_rows, 9 * 24)
        positions = torch.randint(50, (num_rows,), generator=torch.Generator().manual_seed(num_rows))
        outs = [torch.empty(num_rows, 9 * 24) for _ in range(2)]
        for ops, out in zip((native, TorchRowOps()), outs, strict=True):
            ops.rope(qkv, table, positions, out, shape=shape, **norms)
        assert torch.allclose(*outs, rtol=1e-5, atol=1e-5)
        assert torch.equal(outs[0][:, 7 * 24 :], qkv[:, 7 * 24 :])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [1, 8, 17, 96])
def test_gate(native, activation, size):
    """Against float64; an activation errs by a few units of its argument, where 1 + tanh cancels too."""
    for num_rows in ROWS:
        x = random(num_rows, 2 * size) * 4
        x[0, 0], x[-1, size - 1] = -200.0, 150.0
        exact, found = torch.empty(num_rows, size, dtype=torch.float64), torch.empty(num_rows, size)
        TorchRowOps().gate(x.double(), activation, exact)
        native.gate(x, activation, found)
        size_of_error = (x[:, :size] * x[:, size:]).abs().double() * 5e-7 + 1e-30
        assert ((found - exact).abs() <= size_of_error).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_row_spoils_itself_alone(native, bad):
    x, weight = random(9, 64), torch.ones(64)
    expected = torch.empty(9, 64)
    native.norm(x, weight, 1e-5, expected)
    x[3, 5] = bad
    found = torch.empty(9, 64)
    native.norm(x, weight, 1e-5, found)
    others = [row for row in range(9) if row != 3]
    assert torch.equal(found[others], expected[others])
    assert not found[3].isfinite().all()
