"""The type stub of the native module is what its bindings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from patience import PATIENCE_SECONDS

PATTERNS = Path(__file__).parents[1] / "native/bindings/stub_patterns.txt"
STUB = Path(treadle.__file__).with_name("_native.pyi")


def test_stub_matches_the_bindings(tmp_path: Path) -> None:
    pytest.importorskip("nanobind.stubgen", reason="needs nanobind, which the extra `lint` installs")
    fresh = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "treadle._native", "-p", PATTERNS, "-o"]
    subprocess.run([*command, fresh], check=True, timeout=PATIENCE_SECONDS)
    shown = " ".join(str(part) for part in command[1:])
    assert STUB.read_text() == fresh.read_text(), f"to renew the stub: python {shown} src/treadle/_native.pyi"
