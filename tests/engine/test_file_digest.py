"""Digests of files: every byte counts, and files that stay untouched are read once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treadle.engine import file_digest
from treadle.engine.file_digest import digest_files, stamp_files


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(file_digest, "_READ_BYTES", 300)


def test_every_byte_counts_and_the_name_does_not(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10
    notes = tmp_path / "notes.json"
    first = digest_files([write(tmp_path / "a", data)], notes)
    assert len(first) == 16
    assert digest_files([write(tmp_path / "b", data)], notes) == first
    for position in (0, 299, 300, 999, 1000, len(data) - 1):
        changed = bytearray(data)
        changed[position] ^= 1
        assert digest_files([write(tmp_path / f"c{position}", bytes(changed))], notes) != first
    assert digest_files([write(tmp_path / "d", data[:-1])], notes) != first


def test_an_untouched_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes.json"
    path = write(tmp_path / "a", b"abc" * 999)
    first = digest_files([path], notes)
    monkeypatch.setattr(file_digest, "_digest", lambda _: b"read again")
    assert digest_files([path], notes) == first
    os.utime(path, ns=(1, 1))
    assert digest_files([path], notes) == b"read again"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"NAME": 5}', '{"NAME": {"stamp": STAMP, "digest": "xyz"}}'])
def test_notes_that_make_no_sense_are_not_believed(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a", b"abc")
    notes = tmp_path / "notes.json"
    notes.write_text(text.replace("NAME", str(path)).replace("STAMP", str(stamp_files([path]))))
    assert digest_files([path], notes) == digest_files([path], tmp_path / "none.json")


def test_notes_that_cannot_be_written_only_cost_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"abc")
    assert digest_files([path], tmp_path / "no-folder" / "notes.json") == digest_files([path], tmp_path / "notes.json")


def test_only_so_many_are_noted(tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    for number in range(70):
        digest_files([write(tmp_path / str(number), b"x")], notes)
    assert len(file_digest._read_notes(notes)) == 64


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a", b"abc")

    def change(paths: list[Path]) -> bytes:
        paths[0].write_bytes(b"abcd")
        return b"digest"

    monkeypatch.setattr(file_digest, "_digest", change)
    with pytest.raises(OSError, match="changes while it is read"):
        digest_files([path], tmp_path / "notes.json")
    assert not (tmp_path / "notes.json").exists()
