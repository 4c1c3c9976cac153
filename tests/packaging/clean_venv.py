"""Makes a virtual environment that holds given wheels and exactly what they declare to need; nothing is downloaded or copied.

    python clean_venv.py TARGET WHEEL... [--with DISTRIBUTION]

A second installation of torch takes minutes and a gigabyte. Instead, every distribution in the closure of the wheels' `Requires-Dist` is
linked, entry by entry, from the environment that runs this script into the new site-packages. Slotwise itself is never linked (here
it is an editable installation), nor is any other tool of the developer, so a module that the wheel forgot and a dependency that it
does not declare are both missing there. Then pip installs the wheels with `--no-index`, which checks versions and
fails if a requirement is absent. Knows nothing of what the wheels do.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename


def wheel_requirements(wheel: Path) -> list[Requirement]:
    """`Requires-Dist` of a wheel file."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def closure(requirements: Iterable[Requirement], excluded: set[str]) -> dict[str, importlib.metadata.Distribution]:
    """Installed distributions that the requirements lead to, by canonical name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in requirements]
    while waiting:
        requirement, wanted_by_extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in excluded or (requirement.marker and not requirement.marker.evaluate({"extra": wanted_by_extra})):
            continue
        try:
            found.setdefault(name, importlib.metadata.distribution(name))
        except importlib.metadata.PackageNotFoundError:
            continue  # pip will name it, and who needs it
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(Requirement(text), extra) for text in found[name].requires or []]
    return found


def link(distribution: importlib.metadata.Distribution, site_packages: Path) -> None:
    """Link each top-level entry that a distribution owns, its metadata included."""
    for entry in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        target = site_packages / entry
        if not target.is_symlink() and not target.exists():
            target.symlink_to(str(distribution.locate_file(entry)))


def make(target: Path, wheels: list[Path], also: Iterable[str] = ()) -> None:
    """The environment at `target`, with the distributions `also` linked too. Raises CalledProcessError if pip refuses the wheels."""
    venv.create(target, with_pip=False, symlinks=True)
    site_packages = next(target.glob("lib/python*/site-packages"))
    own = {str(parse_wheel_filename(wheel.name)[0]) for wheel in wheels}
    requirements = [requirement for wheel in wheels for requirement in wheel_requirements(wheel)] + [Requirement(name) for name in also]
    for distribution in closure(requirements, own).values():
        link(distribution, site_packages)
    pip = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python"), "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-index", *map(str, wheels)], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="folder to make; must not exist")
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--with", dest="also", action="append", default=[], help="a distribution to link besides, with what it needs")
    arguments = parser.parse_args()
    if arguments.target.exists():
        parser.error(f"{arguments.target} exists")
    make(arguments.target, arguments.wheels, arguments.also)
