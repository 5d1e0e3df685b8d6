"""Folders that sandboxes make for themselves: gone at the end, and those of killed processes with the next one made."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from treadle.agents.sandbox import own_folder
from treadle.agents.sandbox.own_folder import OwnFolder, sweep

KILLED = """
import os, signal
from treadle.agents.sandbox.own_folder import OwnFolder
(OwnFolder().path / "notes.txt").write_text("left behind")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(own_folder, "_MIN_AGE_SECONDS", -1.0)  # clocks of files and of processes may differ a little
    return tmp_path


def test_a_folder_is_gone_at_the_end(temporary_folder: Path) -> None:
    folder = OwnFolder()
    (folder.path / "file").write_text("x")
    folder.remove()
    folder.remove()
    assert list(temporary_folder.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_folder(temporary_folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary_folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    [left] = temporary_folder.iterdir()
    assert (left / "notes.txt").exists()
    folder = OwnFolder()
    assert list(temporary_folder.iterdir()) == [folder.path]
    folder.remove()


def test_what_is_in_use_or_young_or_no_folder_of_ours_stays(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = OwnFolder()
    strange = temporary_folder / "somebody"
    strange.mkdir()
    link = temporary_folder / "treadle-sandbox-link"
    link.symlink_to(strange)
    sweep()
    assert sorted(temporary_folder.iterdir()) == sorted([used.path, strange, link])
    used.remove()
    young = temporary_folder / "treadle-sandbox-young"
    young.mkdir()
    monkeypatch.setattr(own_folder, "_MIN_AGE_SECONDS", 60.0)
    sweep()
    assert young.is_dir()
