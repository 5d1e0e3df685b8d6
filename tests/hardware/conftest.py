"""A folder that stands for the root of a machine: the files of procfs, sysfs and cgroupfs a test wants, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from machines import FakeRoot


@pytest.fixture
def fake_root(tmp_path: Path) -> FakeRoot:
    """A function that writes files, named from the root without the leading slash, and returns the root."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write
