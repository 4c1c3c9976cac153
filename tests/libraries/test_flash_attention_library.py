"""The stand-ins of FlashAttention have the real functions' parameters and defaults; version 4 compiles for Hopper through our wrapper."""

from __future__ import annotations

import os
import subprocess
import sys
import venv

import pytest

from ..backends import flash_attention_standin
from .conftest import BUILD
from .signatures import signature_in, signature_of

COMPILE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from slotwise_backends.flash_attention.version_4 import Version4
from slotwise_backends.flash_attention.work import Rows, Work

library = Version4()
with FakeTensorMode():
    def empty(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="cuda")

    rows = Rows(query_start_loc=empty(5, dtype=torch.int32), key_lens=empty(4, dtype=torch.int32), max_query_len=64, max_key_len=512,
                block_table=empty(4, 8, dtype=torch.int32), causal=True)
    work = Work(query=empty(100, 8, 128), key=empty(40, 128, 2, 128), value=empty(40, 128, 2, 128), rows=rows, scale=0.1, window=None,
                soft_cap=0.0, num_splits=0)
    output, lse = library.attend(work)
    assert tuple(output.shape) == (100, 8, 128), output.shape
    assert tuple(lse.shape) == (8, 100), lse.shape
print("compiled")
"""


def test_version_2_has_the_parameters_of_its_stand_in(flash_attention_source):
    real = signature_in(flash_attention_source / "flash_attn" / "flash_attn_interface.py", "flash_attn_varlen_func")
    assert real == signature_of(flash_attention_standin.flash_attn_varlen_func_2)


@pytest.mark.parametrize(
    ("name", "stand_in"),
    [
        ("flash_attn_varlen_func", flash_attention_standin.flash_attn_varlen_func_3),
        ("flash_attn_with_kvcache", flash_attention_standin.flash_attn_with_kvcache_3),
    ],
)
def test_version_3_has_the_parameters_of_its_stand_in(flash_attention_source, name, stand_in):
    real = signature_in(flash_attention_source / "hopper" / "flash_attn_interface.py", name)
    ours = signature_of(stand_in)
    # Built from another revision it may lack return_attn_probs, and return the LSE always; the wrapper takes what comes after the output.
    assert {name: real[name] for name in real if name in ours} == {name: ours[name] for name in ours if name in real}
    assert set(real) - set(ours) == set()
    assert set(ours) - set(real) <= {"return_attn_probs"}


def test_version_4_has_the_parameters_of_its_stand_in(fetch):
    folder = fetch("flash-attn-4")
    real = signature_in(folder / "flash_attn" / "cute" / "interface.py", "flash_attn_varlen_func")
    assert real == signature_of(flash_attention_standin.flash_attn_varlen_func_4)


def test_version_4_compiles_for_hopper_through_the_wrapper():
    """In an environment of its own: the package brings a compiler of more than a gigabyte."""
    home = BUILD / "flash-attn-4-venv"
    python = home / "bin" / "python"
    if not (home / "done").exists():
        venv.create(home, with_pip=True)
        site = next(path for path in sys.path if path.endswith("site-packages"))
        target = subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True)
        with open(f"{target.stdout.strip()}/outer.pth", "w", encoding="utf-8") as file:
            file.write(f"{site}\n")
        subprocess.run([python, "-m", "pip", "install", "-q", "--pre", "flash-attn-4"], check=True)
        (home / "done").touch()
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"FLASH_ATTENTION_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a", "FLASH_ATTENTION_NUM_SMS": "132"}
    roots = ("core", "backends")
    environ["PYTHONPATH"] = os.pathsep.join(str(BUILD.parents[1] / root) for root in roots)
    done = subprocess.run([python, "-c", COMPILE], capture_output=True, text=True, env=environ, timeout=280, check=False)
    assert done.stdout.strip().endswith("compiled"), done.stderr[-3000:]
