"""Hatchling's build hook: compiles the native kernels where there is a C compiler, and leaves them out where there is none.

Each instruction set gets the same sources, compiled for it; which one runs is decided when a library is loaded. Libraries need no Python
and no torch to build or to load, so one wheel serves every version of both. Without a compiler, or with one that fails, the install
succeeds all the same: the components that need a library then say that they are unavailable, and why. SLOTWISE_NATIVE=0 leaves all out.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
VARIANTS = {
    "baseline": (),
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4",),
    "avx512dot": ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
}


class Library(NamedTuple):
    """One shared library: `kernels/` beside it holds its sources and a `dispatch.c`. (Dataclasses do not survive the way in which hatchling
    loads this file.)"""

    path: Path
    purpose: str
    """What is unavailable without it."""
    sources: tuple[str, ...]
    """Compiled once for each variant."""
    variants: tuple[str, ...]
    includes: tuple[Path, ...] = ()

    @property
    def kernels(self) -> Path:
        return self.path.parent / "kernels"


ATTENTION = Library(
    path=ROOT / "backends/slotwise_backends/cpu_attention/_kernels.native.so",
    purpose="the cpu attention backend",
    sources=("tile.c",),
    variants=("baseline", "avx2", "avx512"),
)
DENSE = Library(
    path=ROOT / "plugins/slotwise_plugins/native/_dense.native.so",
    purpose="the linear components dense, int8 and int4",
    sources=("linear.c", "rows.c", "pack.c"),
    variants=("baseline", "avx2", "avx512", "avx512dot"),
    includes=(ATTENTION.kernels,),
)
LIBRARIES = (ATTENTION, DENSE)
POOL = ATTENTION.kernels / "pool.c"


class NativeKernels(BuildHookInterface[Any]):
    """Runs before a wheel or an editable install is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and mark the wheel as made for this platform if that went well."""
        for library in LIBRARIES:
            if os.environ.get("SLOTWISE_NATIVE") == "0" or not build(library, library.path):
                library.path.unlink(missing_ok=True)
                continue
            build_data["artifacts"].append(f"/{library.path.relative_to(ROOT).as_posix()}")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def build(library: Library, target: Path) -> bool:
    """Compile to `target`, all at once or not at all; False if that cannot be done here, the reason on stderr."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get("CC") and shutil.which(os.environ["CC"]) is None:
        compiler = None
    if compiler is None or os.name != "posix":
        sys.stderr.write(f"slotwise: no C compiler; {library.purpose} will be unavailable.\n")
        return False
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    chosen = [name for name in library.variants if is_x86 or name == "baseline"]
    attempts = [chosen, [name for name in chosen if name != "avx512dot"], ["baseline"]]  # older compilers know fewer instruction sets
    with TemporaryDirectory() as folder:
        for variants in attempts:
            try:
                _compile(library, compiler, variants, Path(folder), target)
            except (OSError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", "") or str(error)
            else:
                return True
    sys.stderr.write(f"slotwise: the native kernels do not compile here; {library.purpose} will be unavailable.\n{reason}\n")
    return False


def _compile(library: Library, compiler: str, variants: list[str], folder: Path, target: Path) -> None:
    includes = [f"-I{path}" for path in (library.kernels, *library.includes)]
    jobs: list[tuple[str | Path, ...]] = []
    for name in variants:
        flags = (*FLAGS, *includes, *VARIANTS[name], f"-DVARIANT={name}")
        for source in library.sources:
            jobs.append((*flags, "-c", library.kernels / source, "-o", folder / f"{Path(source).stem}_{name}.o"))
    has = [f"-DHAS_{name.upper()}" for name in variants if name != "baseline"]
    for shared in (library.kernels / "dispatch.c", POOL):
        jobs.append((*FLAGS, *includes, *has, "-c", shared, "-o", folder / f"{shared.stem}.o"))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        list(threads.map(lambda job: _run(compiler, *job), jobs))
    objects = [job[-1] for job in jobs]
    built = folder / "kernels.so"
    _run(compiler, "-shared", "-pthread", "-Wl,-Bsymbolic", *objects, "-lm", "-o", built)
    beside = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copy(built, beside)
    beside.replace(target)  # whoever loads it meanwhile has the old one or the new one, never half of one


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
