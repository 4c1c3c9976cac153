"""Hatchling's build hook: compiles the native kernels where there is a C compiler, and leaves them out where there is none.

Each instruction set gets the same source, compiled for it; which one runs is decided when the library is loaded. The library needs no
Python and no torch to build or to load, so one wheel serves every version of both. Without a compiler, or with one that fails, the install
succeeds all the same: the `cpu` attention backend then says that it is unavailable, and why. SLOTWISE_NATIVE=0 leaves the kernels out.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).parent / "slotwise_backends" / "cpu_attention"
LIBRARY = PACKAGE / "_kernels.native.so"
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
VARIANTS = {"baseline": (), "avx2": ("-march=x86-64-v3",), "avx512": ("-march=x86-64-v4",)}


class NativeKernels(BuildHookInterface[Any]):
    """Runs before a wheel or an editable install is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and mark the wheel as made for this platform if that went well."""
        LIBRARY.unlink(missing_ok=True)
        if os.environ.get("SLOTWISE_NATIVE") == "0" or not build(LIBRARY):
            return
        build_data["artifacts"].append("/backends/slotwise_backends/cpu_attention/_kernels.native.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def build(library: Path) -> bool:
    """Compile to `library`; False if that cannot be done here, the reason on stderr."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get("CC") and shutil.which(os.environ["CC"]) is None:
        compiler = None
    if compiler is None or os.name != "posix":
        sys.stderr.write("slotwise: no C compiler; the cpu attention backend will be unavailable.\n")
        return False
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    chosen = [name for name in VARIANTS if is_x86 or name == "baseline"]
    with TemporaryDirectory() as folder:
        for openmp in (("-fopenmp",), ()):
            try:
                _compile(compiler, chosen, openmp, Path(folder), library)
            except (OSError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", "") or str(error)
            else:
                return True
    sys.stderr.write(f"slotwise: the native kernels do not compile here; the cpu attention backend will be unavailable.\n{reason}\n")
    return False


def _compile(compiler: str, variants: list[str], openmp: tuple[str, ...], folder: Path, library: Path) -> None:
    objects = []
    for name in variants:
        objects.append(folder / f"tile_{name}.o")
        _run(compiler, *FLAGS, *openmp, *VARIANTS[name], f"-DVARIANT={name}", "-c", PACKAGE / "kernels" / "tile.c", "-o", objects[-1])
    has = [f"-DHAS_{name.upper()}" for name in variants if name != "baseline"]
    objects.append(folder / "dispatch.o")
    _run(compiler, *FLAGS, *openmp, *has, "-c", PACKAGE / "kernels" / "dispatch.c", "-o", objects[-1])
    built = folder / "kernels.so"
    _run(compiler, "-shared", *openmp, *objects, "-lm", "-o", built)
    shutil.copy(built, library)


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
