"""The linear components: products against float64, in every instruction set this machine has, for any number of rows and threads."""

from __future__ import annotations

import math

import pytest
import torch

from slotwise.interfaces.linear import LinearSetup
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.registry import ComponentRegistry
from slotwise_plugins.linear.panels import unpack_rows
from slotwise_plugins.native.availability import missing_library

NATIVE = ("dense", "int8", "int4")
pytestmark = pytest.mark.skipif(missing_library() is not None, reason="no C compiler was there at install")
SHAPES = [(1, 1), (16, 32), (17, 33), (100, 70), (64, 576), (300, 96)]


def backend(name, dtype="float32"):
    return import_implementation(ComponentRegistry().get("linear", name))(LinearSetup(dtype=dtype, device="cpu"))


def random(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def instruction_sets():
    return [] if missing_library() else backend("dense")._kernels.instruction_sets()


@pytest.fixture(params=instruction_sets(), ids=lambda found: found[1])
def instruction_set(request):
    kernels = backend("dense")._kernels
    kernels.choose(request.param[0])
    yield request.param[1]
    kernels.choose(-1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7, 8, 17, 70])
@pytest.mark.parametrize("name", NATIVE)
def test_products_are_those_of_the_stored_weights(instruction_set, name, num_rows, dtype):
    """Against float64 with the weights as stored and the inputs as rounded; float32 sums of k terms err by less than k units."""
    for out_features, in_features in SHAPES:
        weight, x = random(out_features, in_features, seed=1), random(num_rows, in_features, seed=2)
        bias = random(out_features, seed=3)
        packed = backend(name, dtype).pack(weight, bias)
        stored = packed.rows(torch.arange(out_features)).double()
        rounded = _rounded(x, name, dtype).double()
        expected = rounded @ stored.T + bias.double()
        size = rounded.abs() @ stored.abs().T + bias.double().abs()
        error = (packed.multiply(x).double() - expected).abs()
        assert (error <= size * (in_features + 4) * 2**-23).all(), (out_features, in_features)


def _rounded(x, name, dtype):
    if name == "dense":
        return x.to(getattr(torch, dtype)).float()
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    high = padded.abs().amax(dim=2, keepdim=True)
    factor = torch.where(high > 0, 127 / high, 0.0)
    return ((padded * factor).round() * (high / 127)).view(len(x), -1)[:, : x.shape[1]]


@pytest.mark.parametrize("name", NATIVE)
def test_a_row_does_not_depend_on_its_company_or_on_threads(instruction_set, name):
    packed = backend(name, "bfloat16").pack(random(500, 96))
    x = random(83, 96, seed=5)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        together = packed.multiply(x)
        for first, last in ((0, 1), (5, 7), (20, 24), (40, 53), (3, 83)):
            assert torch.equal(packed.multiply(x[first:last]), together[first:last])
        for count in (2, 3, 8):
            torch.set_num_threads(count)
            assert torch.equal(packed.multiply(x), together)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", [*NATIVE, "torch"])
def test_results_are_put_or_added_where_they_are_wanted(name):
    packed, x = backend(name).pack(random(40, 64)), random(9, 64, seed=1)
    alone = packed.multiply(x)
    wide = torch.full((9, 50), 3.0)
    assert packed.multiply(x, wide[:, 5:45]) is not None
    assert torch.allclose(wide[:, 5:45], alone, atol=1e-5)
    assert bool((wide[:, :5] == 3).all() and (wide[:, 45:] == 3).all())
    packed.multiply(x, wide[:, 5:45], adds=True)
    assert torch.allclose(wide[:, 5:45], 2 * alone, atol=1e-5)
    apart = torch.zeros(9, 100)
    apart[:, 10:74] = x
    assert torch.allclose(packed.multiply(apart[:, 10:74]), alone, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*NATIVE, "torch"])
def test_inputs_of_each_dtype_are_read(name, dtype):
    packed, x = backend(name).pack(random(40, 64)), random(3, 64, seed=1).to(dtype)
    assert torch.allclose(packed.multiply(x), packed.multiply(x.float()), atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", NATIVE)
def test_a_bad_row_spoils_itself_alone(instruction_set, name, bad):
    packed, x = backend(name).pack(random(40, 64)), random(9, 64, seed=1)
    expected = packed.multiply(x)
    x[4, 7] = bad
    found = packed.multiply(x)
    assert not found[4].isfinite().any()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found[others], expected[others])


@pytest.mark.parametrize(("name", "step"), [("int8", 1 / 254), ("int4", 1 / 15)])
def test_quantised_weights_are_within_half_a_step_of_their_group(name, step):
    weight = random(50, 96) * torch.logspace(-4, 3, 50).unsqueeze(1)
    weight[3] = 0.0
    stored = backend(name).pack(weight).rows(torch.arange(50))
    largest = weight.view(50, 3, 32).abs().amax(dim=2, keepdim=True)
    error = (stored - weight).view(50, 3, 32).abs()
    assert (error <= largest * (step + 2 * 2**-10) + 1e-7).all()  # scales and offsets are rounded to float16
    assert bool((stored[3] == 0).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_weights_that_cannot_be_quantised_are_refused(name, bad):
    weight = random(20, 32)
    weight[7, 3] = bad
    with pytest.raises(ValueError, match="use the linear component dense"):
        backend(name).pack(weight)


@pytest.mark.parametrize("name", NATIVE)
def test_rows_are_those_of_the_weight(name):
    weight = random(37, 64).bfloat16().float()
    packed = backend(name, "bfloat16").pack(weight)
    indices = torch.tensor([36, 0, 5, 5])
    if name == "dense":
        assert torch.equal(packed.rows(indices), weight[indices])
    assert torch.equal(packed.rows(indices), unpack_rows(packed._panels, torch.arange(37), packed._kernels)[indices])


def test_memory_is_what_the_storage_takes():
    weight = random(4096, 1024)
    bytes_per_weight = {name: backend(name, dtype).pack(weight).num_bytes / weight.numel() for name, dtype in (
        ("dense", "float32"), ("dense", "bfloat16"), ("int8", "float32"), ("int4", "float32"))}  # fmt: skip
    assert bytes_per_weight["int8"] == 1 + 2 / 32
    assert bytes_per_weight["int4"] == 0.5 + 4 / 32
    assert bytes_per_weight["dense"] == 2
