"""Derived folders: made once, made anew when damaged or outdated, never half visible."""

from __future__ import annotations

import os

import pytest

from slotwise.derived_files import cache_dir, derived_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SLOTWISE_CACHE", str(folder))
    return folder


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.bin"
    path.write_bytes(b"content")
    return path


class Maker:
    """Counts its calls and writes two files."""

    def __init__(self):
        self.calls = 0

    def __call__(self, folder):
        self.calls += 1
        (folder / "a.json").write_text("{}")
        (folder / "inner").mkdir()
        (folder / "inner" / "b.txt").write_text("b")


def test_cache_dir_follows_the_variable_and_defaults_to_the_home_directory(monkeypatch, cache):
    assert cache_dir() == cache
    monkeypatch.delenv("SLOTWISE_CACHE")
    assert cache_dir().parts[-2:] == (".cache", "slotwise")


def test_makes_the_folder_once(source, cache):
    make = Maker()
    folder = derived_folder("kind", source, "1", make)
    assert derived_folder("kind", source, "1", make) == folder
    assert make.calls == 1
    assert (folder / "inner" / "b.txt").read_text() == "b"
    assert folder.parent == cache / "kind"


@pytest.mark.parametrize("change", ["version", "size", "time", "kind"])
def test_makes_it_anew_when_what_it_depends_on_changes(source, change):
    make = Maker()
    first = derived_folder("kind", source, "1", make)
    if change == "size":
        source.write_bytes(b"longer content")
    if change == "time":
        os.utime(source, ns=(1, 1))
    second = derived_folder("other" if change == "kind" else "kind", source, "2" if change == "version" else "1", make)
    assert make.calls == 2
    assert second != first


@pytest.mark.parametrize("damage", ["truncate", "delete", "add", "manifest", "no_manifest"])
def test_a_damaged_entry_is_made_anew_in_its_place(source, damage):
    make = Maker()
    folder = derived_folder("kind", source, "1", make)
    target = {"truncate": "a.json", "delete": "a.json", "add": "stray.txt", "manifest": "manifest.json", "no_manifest": "manifest.json"}[
        damage
    ]
    if damage in {"delete", "no_manifest"}:
        (folder / target).unlink()
    else:
        (folder / target).write_text("")
    assert derived_folder("kind", source, "1", make) == folder
    assert make.calls == 2
    assert (folder / "a.json").read_text() == "{}"
    assert not (folder / "stray.txt").exists()


def test_a_failing_maker_leaves_nothing_behind(source, cache):
    def fail(folder):
        (folder / "half.txt").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        derived_folder("kind", source, "1", fail)
    assert list((cache / "kind").iterdir()) == []


def test_a_faster_process_wins_and_its_entry_is_used(source):
    make = Maker()

    def make_while_another_does(folder):
        make(folder)
        make_while_another_does.other = derived_folder("kind", source, "1", make)

    assert derived_folder("kind", source, "1", make_while_another_does) == make_while_another_does.other
    assert len(list(make_while_another_does.other.parent.iterdir())) == 1


def test_where_the_cache_cannot_be_written_the_folder_is_a_temporary_one(source, cache, caplog):
    cache.write_text("a file, where a directory should be")
    make = Maker()
    folder = derived_folder("kind", source, "1", make)
    assert (folder / "a.json").is_file()
    assert "cannot be written" in caplog.text
