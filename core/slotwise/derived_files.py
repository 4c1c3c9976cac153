"""Folders of files that were computed from another file and are slow to compute again, kept between runs.

An entry is written beside its place and renamed into it, so readers see all of it or nothing; a manifest with checksums is written
last, and an entry that does not match it is made anew. Nothing here is precious: the whole directory may be deleted at any time.

What this file does not know: what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from slotwise.config.environment import process_environ

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "SLOTWISE_CACHE"
_MANIFEST = "manifest.json"


def cache_dir() -> Path:
    """`$SLOTWISE_CACHE`, or ~/.cache/slotwise."""
    configured = process_environ().get(CACHE_VARIABLE)
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "slotwise"


def derived_folder(kind: str, source: Path, version: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills from `source`, computed only if no intact one is at hand.

    kind: name of the sort of files. version: of whatever else the result depends on. The source is recognised by path, size and time of
    change. Where the cache cannot be written, the folder is a temporary one.
    """
    entry = cache_dir() / kind / _key(source, version)
    if _is_intact(entry):
        return entry
    can_keep = True
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=entry.parent, prefix=f".{entry.name}-"))
    except OSError as error:
        logger.warning("%s cannot be written (%s): what is derived from %s will be computed at each start", entry.parent, error, source)
        can_keep, made = False, Path(tempfile.mkdtemp(prefix="slotwise-"))
    try:
        make(made)
        _write_manifest(made)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return _move_into_place(made, entry) if can_keep else made


def _key(source: Path, version: str) -> str:
    resolved, status = source.resolve(), source.stat()
    facts = json.dumps([str(resolved), status.st_size, status.st_mtime_ns, version])
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _MANIFEST)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _write_manifest(folder: Path) -> None:
    (folder / _MANIFEST).write_text(json.dumps(_checksums(folder)), encoding="utf-8")


def _is_intact(entry: Path) -> bool:
    try:
        return bool(json.loads((entry / _MANIFEST).read_text(encoding="utf-8")) == _checksums(entry))
    except (OSError, ValueError):
        return False


def _move_into_place(made: Path, entry: Path) -> Path:
    """Rename; a damaged entry is set aside first. If another process was faster, its entry is used."""
    if entry.exists() and not _is_intact(entry):
        set_aside = made.with_name(made.name + "-damaged")
        try:
            os.rename(entry, set_aside)
        except OSError as error:
            logger.warning("damaged %s cannot be replaced (%s)", entry, error)
            return made
        shutil.rmtree(set_aside, ignore_errors=True)
    try:
        os.rename(made, entry)
    except OSError:
        if not _is_intact(entry):
            return made
        shutil.rmtree(made, ignore_errors=True)
    return entry
