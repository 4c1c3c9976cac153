"""The stand-in of FlashInfer has the real methods' parameters, defaults and constants; its decode module builds for Hopper."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise_backends.flashinfer_attention import wrappers

from ..backends import flashinfer_standin
from .conftest import BUILD
from .signatures import docstring_in, signature_in, signature_of

VERSIONS = ("0.6.13", "0.7.0")
FILES = {
    "BatchDecodeWithPagedKVCacheWrapper": "decode.py",
    "BatchPrefillWithPagedKVCacheWrapper": "prefill.py",
    "BatchPrefillWithRaggedKVCacheWrapper": "prefill.py",
}
CALLED = {
    "BatchDecodeWithPagedKVCacheWrapper": {
        "__init__": (
            "kv_layout", "use_cuda_graph", "use_tensor_cores", "paged_kv_indptr_buffer", "paged_kv_indices_buffer",
            "paged_kv_last_page_len_buffer",
        ),
        "plan": (
            "indptr", "indices", "last_page_len", "num_qo_heads", "num_kv_heads", "head_dim", "page_size", "window_left", "logits_soft_cap",
            "q_data_type", "kv_data_type", "o_data_type", "sm_scale",
        ),
        "run": ("q", "paged_kv_cache", "k_scale", "v_scale", "return_lse"),
    },
    "BatchPrefillWithPagedKVCacheWrapper": {
        "__init__": ("kv_layout",),
        "plan": (
            "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads", "num_kv_heads", "head_dim_qk",
            "page_size", "custom_mask", "causal", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type", "o_data_type",
            "sm_scale",
        ),
        "run": ("q", "paged_kv_cache", "k_scale", "v_scale", "return_lse"),
    },
    "BatchPrefillWithRaggedKVCacheWrapper": {
        "__init__": ("kv_layout",),
        "plan": (
            "qo_indptr", "kv_indptr", "num_qo_heads", "num_kv_heads", "head_dim_qk", "custom_mask", "causal", "window_left",
            "logits_soft_cap", "q_data_type", "kv_data_type", "o_data_type", "sm_scale",
        ),
        "run": ("q", "k", "v", "return_lse"),
    },
}  # fmt: skip
"""Every argument that the wrapper gives by name."""
DECODE = """
import torch
from flashinfer.jit.attention import gen_batch_decode_module
module = gen_batch_decode_module(torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32, 128, 128, 0, False, False)
module.build(verbose=False)
print(module.get_library_path())
"""


def test_the_stand_in_of_the_oldest_version_is_exact(fetch):
    package = fetch(f"flashinfer-python=={VERSIONS[0]}") / "flashinfer"
    for owner, file in FILES.items():
        for method in ("__init__", "plan", "run"):
            real = signature_in(package / file, method, owner)
            assert real == signature_of(getattr(getattr(flashinfer_standin, owner), method)), f"{owner}.{method}"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("owner", FILES)
def test_every_argument_given_is_known_to_the_library(fetch, version, owner):
    source = fetch(f"flashinfer-python=={version}") / "flashinfer" / FILES[owner]
    for method, arguments in CALLED[owner].items():
        real = signature_in(source, method, owner)
        # A method that takes **kwargs names them in its documentation.
        described = docstring_in(source, method, owner)
        unknown = [name for name in arguments if name not in real and f"{name} :" not in described and f"{name}:" not in described]
        assert unknown == [], f"{owner}.{method} of {version}"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_kernels_have_the_constants_that_the_stand_in_imitates(fetch, version):
    package = fetch(f"flashinfer-python=={version}") / "flashinfer"
    include = package / "data" / "include" / "flashinfer"
    infinity = re.search(r"constexpr float inf = ([^;]+);", (include / "math.cuh").read_text(encoding="utf-8"))
    assert infinity is not None
    if infinity[1] != "cuda::std::numeric_limits<float>::infinity()":
        assert float(infinity[1]) == flashinfer_standin.INFINITY == wrappers.OLD_INFINITY
    dispatch = re.search(
        r"define DISPATCH_GQA_GROUP_SIZE\(.*?Unsupported group_size", (include / "utils.cuh").read_text(encoding="utf-8"), re.S
    )
    assert dispatch is not None
    groups = {int(size) for size in re.findall(r"group_size == (\d+)", dispatch[0])}
    assert flashinfer_standin.CUDA_CORE_GROUPS == wrappers.CUDA_CORE_GROUPS
    assert groups >= set(wrappers.CUDA_CORE_GROUPS)


@pytest.mark.parametrize("version", VERSIONS)
def test_masks_are_packed_on_the_device_and_kept_from_hopper_kernels(fetch, version):
    package = fetch(f"flashinfer-python=={version}") / "flashinfer"
    packing = (package / "data" / "csrc" / "quantization.cu").read_text(encoding="utf-8")
    assert "CHECK_DEVICE(input_indptr, x)" in packing
    chooser = (package / "utils.py").read_text(encoding="utf-8")
    assert re.search(r"def is_fa3_backend_supported\(.*?if use_custom_mask:\s+return False", chooser, re.S)


def test_the_decode_module_builds_for_hopper(fetch):
    """Needs nvcc, takes about a minute: the library compiles at its first use, here without a card."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    needs = (
        "apache-tvm-ffi",
        "nvidia-ml-py",
        "tqdm",
        "requests",
        "packaging",
        "ninja",
        "filelock",
        "einops",
        "tabulate",
        "urllib3",
        "idna",
    )
    folder = fetch(f"flashinfer-python=={VERSIONS[0]}", *needs, "certifi", "charset-normalizer", "click", "nvidia-cudnn-frontend")
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    stubs = BUILD / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-shared", "-o", stubs / "libcuda.so", "-x", "c", "/dev/null"], check=True)
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {
        "PYTHONPATH": str(folder),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "FLASHINFER_WORKSPACE_BASE": str(BUILD / "flashinfer"),
        "CUDA_HOME": str(home),
        "LIBRARY_PATH": os.pathsep.join([str(stubs), str(home / "lib")]),
        "MAX_JOBS": "1",
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(["nice", sys.executable, "-c", DECODE], capture_output=True, text=True, env=environ, timeout=560, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path(done.stdout.strip().splitlines()[-1]).exists()
