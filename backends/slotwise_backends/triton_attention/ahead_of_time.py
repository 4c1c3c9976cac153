"""Compiles the kernels for GPUs that are not here, and tells what each needs: registers, spilled bytes, shared memory.

    python -m slotwise_backends.triton_attention.ahead_of_time           (TRITON_INTERPRET must not be set)

What a card may give one program: 255 registers a thread, and the shared memory in `SHARED_MEMORY`. A kernel that needs more would fail at
its first launch; one that spills would be slow. What this file does not know: how fast anything runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slotwise.interfaces.attention import AttentionLayer
from slotwise_backends.triton_attention.attend_kernel import CAUSAL, attend_kernel
from slotwise_backends.triton_attention.merge_kernel import merge_kernel
from slotwise_backends.triton_attention.tiling import choose_tiling, cut, group_size, next_power_of_two
from slotwise_backends.triton_attention.write_kernel import FLOAT8, INT8, PLAIN, write_kernel

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Compute capability -> bytes of shared memory a program may have. Source: CUDA C++ Programming Guide, technical specifications."""
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
DIVISIBLE_BY_16 = [["tt.divisibility", 16]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One kernel as some layer needs it."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What the compiled kernel needs."""

    variant: str
    capability: int
    num_registers: int
    spilled_bytes: int
    shared_bytes: int

    @property
    def fits(self) -> bool:
        """Whether a card of this capability can launch it."""
        return self.shared_bytes <= SHARED_MEMORY[self.capability]


def variants() -> tuple[Variant, ...]:
    """What common models need: heads of 64, 128 and 256, decode and prefill, half and single precision, quantised caches, MLA."""
    return (
        attend("prefill bf16 64", head_dim=64),
        attend("prefill bf16 128", head_dim=128),
        attend("decode bf16 128, split", head_dim=128, is_decode=True, is_whole=False),
        attend("prefill fp16 256, window, soft cap", head_dim=256, dtype="fp16", HAS_WINDOW=True, HAS_SOFT_CAP=True),
        attend("prefill fp32 64, sinks, LSE", head_dim=64, dtype="fp32", HAS_SINKS=True, WANTS_LSE=True),
        attend("decode bf16 128, int8 KV", head_dim=128, is_decode=True, kv_dtype="i8"),
        attend("decode bf16 576, MLA", head_dim=576, value_dim=512, num_heads=128, num_kv_heads=1, is_decode=True),
        attend("prefill bf16 128, mask, ALiBi", head_dim=128, HAS_MASK=True, HAS_ALIBI=True),
        merge("merge bf16 128", value_dim=128),
        write("write bf16 128", "bf16", PLAIN, 3e38),
        write("write bf16 128 as int8", "i8", INT8, 127.0),
    )


FLOAT8_VARIANTS = ("decode bf16 128, fp8 KV", "write bf16 128 as fp8")
"""From compute capability 8.9 on."""


def float8_variants() -> tuple[Variant, ...]:
    """Caches in float8_e4m3fn."""
    return (
        attend(FLOAT8_VARIANTS[0], head_dim=128, is_decode=True, kv_dtype="fp8e4nv"),
        write(FLOAT8_VARIANTS[1], "fp8e4nv", FLOAT8, 448.0),
    )


def attend(
    name: str,
    *,
    head_dim: int,
    value_dim: int | None = None,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    num_heads: int = 32,
    num_kv_heads: int = 8,
    is_decode: bool = False,
    is_whole: bool = True,
    **features: bool,
) -> Variant:
    """The attention kernel for one layer."""
    layer = AttentionLayer(
        name=name, index=0, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=1.0, latent_value_dim=value_dim
    )
    tiling = choose_tiling(layer, is_decode=is_decode, element_bytes=ELEMENT_BYTES[dtype])
    value_dim = value_dim or head_dim
    (d1, d2), (v1, v2) = cut(head_dim), cut(value_dim)
    flags = ("HAS_WINDOW", "HAS_CHUNK", "HAS_SOFT_CAP", "HAS_MASK", "HAS_ALIBI", "HAS_SINKS", "WANTS_LSE")
    constants: dict[str, Any] = {flag: features.get(flag, False) for flag in flags}
    constants |= {
        "GROUP": group_size(layer),
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "D1": d1,
        "D2": d2,
        "V1": v1,
        "V2": v2,
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "PAGED": True,
        "CAUSALITY": int(CAUSAL.value),
        "IS_WHOLE": is_whole,
        "IS_PREFIX": False,
        "UPCAST": False,
        "IEEE": dtype == "fp32",
    }
    stored = kv_dtype or dtype
    pointers = {"query": dtype, "key": stored, "value": stored, "output": dtype, "block_table": "i32", "causal_of_row": "i8"}
    pointers |= {"custom_mask": "u8", "mask_start": "i64", "tile_row": "i32", "tile_first": "i32", "query_start_loc": "i32"}
    pointers |= {"seq_lens": "i32", "num_keys_of_row": "i32"}
    pointers |= dict.fromkeys(("lse", "part_output", "part_lse", "sinks", "alibi_slopes"), "fp32")
    floats = ("scale", "k_factor", "v_factor", "soft_cap")
    return Variant(
        name=name,
        kernel=attend_kernel,
        signature=_signature(attend_kernel, pointers, floats, constants),
        constants=constants,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def merge(name: str, *, value_dim: int) -> Variant:
    """The merge kernel."""
    constants = {"VALUE_DIM": value_dim, "BLOCK_V": next_power_of_two(value_dim), "HAS_SINKS": True, "WANTS_LSE": True}
    pointers = {"output": "bf16"} | dict.fromkeys(("part_output", "part_lse", "lse", "sinks"), "fp32")
    return Variant(name=name, kernel=merge_kernel, signature=_signature(merge_kernel, pointers, (), constants), constants=constants)


def write(name: str, kv_dtype: str, storage: Any, largest: float) -> Variant:
    """The write kernel."""
    constants = {"HEAD_DIM": 128, "BLOCK_D": 128, "HAS_VALUE": True, "STORAGE": int(storage.value), "LARGEST": largest}
    pointers = {"key": "bf16", "value": "bf16", "key_cache": kv_dtype, "value_cache": kv_dtype, "slot_mapping": "i64"}
    signature = _signature(write_kernel, pointers, ("k_scale", "v_scale"), constants)
    return Variant(name=name, kernel=write_kernel, signature=signature, constants=constants)


def compile_variant(variant: Variant, capability: int) -> Usage:
    """Compile down to machine code. Raises what Triton raises."""
    names = list(variant.signature)
    attributes = {
        (names.index(name),): DIVISIBLE_BY_16
        for name, kind in variant.signature.items()
        if kind.startswith("*") or (kind == "i32" and "stride" in name)
    }
    source = ASTSource(variant.kernel, variant.signature, variant.constants, attributes)
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, spilled = _resources(compiled.asm["cubin"])
    return Usage(
        variant=variant.name,
        capability=capability,
        num_registers=registers,
        spilled_bytes=spilled,
        shared_bytes=compiled.metadata.shared,
    )


def _signature(kernel: Any, pointers: dict[str, str], floats: tuple[str, ...], constants: dict[str, Any]) -> dict[str, str]:
    """Argument -> Triton's type: pointers, floats, constants as said, 32-bit integers all others."""

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        return f"*{pointers[name]}" if name in pointers else "fp32" if name in floats else "i32"

    return {name: kind(name) for name in kernel.arg_names}


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers per thread and bytes of local memory, as NVIDIA's own tool tells."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2]) + int(found[3])


def report() -> Iterator[Usage]:
    """Every variant for every capability."""
    for capability in SHARED_MEMORY:
        for variant in (*variants(), *(float8_variants() if capability > 89 else ())):
            yield compile_variant(variant, capability)


def main() -> None:
    """Print a line per kernel."""
    for usage in report():
        sys.stdout.write(
            f"sm_{usage.capability:<4} {usage.variant:40} {usage.num_registers:4} registers {usage.spilled_bytes:5} bytes spilled "
            f"{usage.shared_bytes:7} bytes shared{'' if usage.fits else '  TOO MUCH'}\n"
        )


if __name__ == "__main__":
    main()
