"""Runs every script of examples/ as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.model


def run_example(name: str, model: Path, text: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, model],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_every_example_is_run_here() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == ["batch.py", "chat.py", "generate.py"]


def test_generate(smollm2_path: Path) -> None:
    lines = run_example("generate.py", smollm2_path)
    assert "Tokyo" in lines[0]
    assert lines[-1].endswith("ended by stop")


def test_chat(smollm2_path: Path) -> None:
    lines = run_example("chat.py", smollm2_path, "Name the capital of Japan.\nAnd of Italy.\n\nnot read\n")
    assert "Tokyo" in lines[0]
    assert len(lines) >= 2


def test_batch(smollm2_path: Path) -> None:
    lines = run_example("batch.py", smollm2_path)
    assert len(lines) == 8
    assert lines[0] == "France: Paris"
