"""Packing: what is quantised and how, against the same in torch; blocks of GGUF files against the `gguf` package."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from slotwise.interfaces.linear import BlockRows, LinearSetup
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.registry import ComponentRegistry
from slotwise_plugins.linear.capabilities import BLOCK_SCHEMES
from slotwise_plugins.native.availability import missing_library
from slotwise_plugins.native.library import DenseKernels, load_library
from slotwise_plugins.weights.blocks import as_blocks, as_dense

pytestmark = pytest.mark.skipif(missing_library() is not None, reason="no C compiler was there at install")
QUANTISED = tuple(scheme for scheme in BLOCK_SCHEMES if scheme not in ("F32", "BF16", "F16"))
SHAPES = [(1, 1), (16, 32), (17, 33), (100, 70), (33, 600)]


@pytest.fixture(
    params=[] if missing_library() else DenseKernels(load_library()).instruction_sets(), ids=lambda found: found[1], autouse=True
)
def instruction_set(request):
    kernels = DenseKernels(load_library())
    kernels.choose(request.param[0])
    yield
    kernels.choose(-1)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def backend(name, dtype="float32"):
    return import_implementation(ComponentRegistry().get("linear", name))(LinearSetup(dtype=dtype, device="cpu"))


def rows(matrix):
    return matrix.rows(torch.arange(matrix.out_features))


def in_groups(weight):
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 32))
    return padded.view(len(padded), -1, 32)


def by_8_bits(weight):
    groups = in_groups(weight)
    scales = (groups.abs().amax(dim=-1, keepdim=True) / 127).half().float()
    codes = (groups * torch.where(scales > 0, 1 / scales, 0.0)).round().clamp(-127, 127)
    return (codes * scales).view(len(weight), -1)[:, : weight.shape[1]]


def by_4_bits(weight):
    groups = in_groups(weight)
    offsets = groups.amin(dim=-1, keepdim=True).half().float()
    scales = ((groups.amax(dim=-1, keepdim=True) - offsets) / 15).clamp(min=0).half().float()
    codes = ((groups - offsets) * torch.where(scales > 0, 1 / scales, 0.0)).round().clamp(0, 15)
    return (codes * scales + offsets).view(len(weight), -1)[:, : weight.shape[1]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_kept_of_plain_rows(source, shape):
    weight = random(*shape).to(source)
    assert torch.equal(rows(backend("dense").pack(weight)), weight.float())
    assert torch.equal(rows(backend("dense", "bfloat16").pack(weight)), weight.float().bfloat16().float())
    for name, judge in (("int8", by_8_bits), ("int4", by_4_bits)):
        assert torch.allclose(rows(backend(name).pack(weight)), judge(weight.float()), rtol=0, atol=1e-6), name


def test_extreme_numbers():
    weight = torch.zeros(3, 64)
    weight[0, 3], weight[1, :32], weight[2, 40] = 60000.0, 1e-7, -3e-8
    for name, judge in (("int8", by_8_bits), ("int4", by_4_bits)):
        assert torch.allclose(rows(backend(name).pack(weight)), judge(weight), rtol=1e-6, atol=1e-9), name


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_cannot_be_quantised_is_refused(bad):
    weight = random(20, 70)
    weight[17, 69] = bad
    for name in ("int8", "int4"):
        with pytest.raises(ValueError, match="dense"):
            backend(name).pack(weight)
    assert torch.equal(rows(backend("dense").pack(weight)).isfinite(), weight.isfinite())


def blocks(scheme, num_rows=20, num_inputs=512, seed=0):
    """Of real numbers where the package can quantise to the scheme, else random bytes with scales of a usual size."""
    kind = GGMLQuantizationType[scheme]
    try:
        data = quantize(random(num_rows, num_inputs, seed=seed).numpy(), kind)
    except NotImplementedError:
        per_block, num_bytes = GGML_QUANT_SIZES[kind]
        data = np.random.default_rng(seed).integers(0, 256, (num_rows, num_inputs // per_block, num_bytes), dtype=np.uint8)
        scale = np.array([0.01], dtype=np.float16).view(np.uint8)
        for start in {"Q4_K": (0, 2), "Q6_K": (208,)}[scheme]:
            data[:, :, start : start + 2] = scale
        data = data.reshape(num_rows, -1)
    return BlockRows(scheme=scheme, data=torch.from_numpy(data), num_inputs=num_inputs)


@pytest.mark.parametrize("scheme", QUANTISED)
def test_blocks_are_read_as_the_package_reads_them(scheme):
    found = rows(backend("dense").pack_blocks([blocks(scheme)]))
    expected = torch.from_numpy(dequantize(blocks(scheme).data.numpy(), GGMLQuantizationType[scheme]))
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(as_dense(blocks(scheme)), expected)


@pytest.mark.parametrize("scheme", ["Q8_0", "Q4_0", "Q4_1"])
def test_stored_keeps_codes_scales_and_offsets(scheme):
    """The same numbers; Q4_K's scales are products, which float16 rounds, and Q6_K's groups of 16 have no place here."""
    packed = backend("stored").pack_blocks([blocks(scheme)])
    assert torch.allclose(rows(packed), as_dense(blocks(scheme)), rtol=1e-6, atol=1e-6)
    assert packed.num_bytes < {"Q8_0": 1.1, "Q4_0": 0.65, "Q4_1": 0.65}[scheme] * 32 * 512


@pytest.mark.parametrize(("scheme", "tolerance"), [("Q4_K", 2**-10), ("Q6_K", 2**-7)])
def test_stored_loses_little_of_other_blocks(scheme, tolerance):
    exact = as_dense(blocks(scheme))
    error = (rows(backend("stored").pack_blocks([blocks(scheme)])) - exact).abs()
    assert (error <= tolerance * in_groups(exact).abs().amax(dim=2).repeat_interleave(32, dim=1) + 1e-7).all()


@pytest.mark.parametrize("second", ["F32", "BF16", "F16", *QUANTISED])
@pytest.mark.parametrize("first", ["F32", *QUANTISED])
def test_pieces_of_any_kind_lie_row_under_row(first, second):
    def piece(scheme, num_rows, seed):
        dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
        if scheme in dtypes:
            return as_blocks(random(num_rows, 512, seed=seed).to(dtypes[scheme]))
        return blocks(scheme, num_rows, seed=seed)

    pieces = [piece(first, 7, 1), piece(second, 22, 2)]
    expected = torch.cat([as_dense(each) for each in pieces])
    bound = in_groups(expected).abs().amax(dim=2).repeat_interleave(32, dim=1)
    for name, tolerance in (("dense", 1e-6), ("stored", 2**-7), ("int8", 2**-7)):
        error = (rows(backend(name).pack_blocks(pieces)) - expected).abs()
        assert (error <= tolerance * bound + 1e-6).all(), name


def test_rows_that_lie_apart_in_memory():
    weight = random(40, 64)
    assert torch.equal(rows(backend("dense").pack(weight[::2])), weight[::2])
    every = blocks("Q4_1")
    halves = BlockRows(scheme="Q4_1", data=every.data[::2], num_inputs=512)
    assert torch.equal(rows(backend("stored").pack_blocks([halves])), rows(backend("stored").pack_blocks([every]))[::2])


def test_rows_beyond_the_matrix_are_refused():
    packed = backend("dense").pack(random(20, 32))
    for wrong in (20, -1):
        with pytest.raises(IndexError, match="20"):
            packed.rows(torch.tensor([0, wrong]))
    assert packed.rows(torch.empty(0, dtype=torch.int64)).shape == (0, 32)
