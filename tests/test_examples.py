"""Runs every script of examples/ as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from patience import PATIENCE_SECONDS

EXAMPLES = Path(__file__).parent.parent / "examples"
CODER = "qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf"

pytestmark = pytest.mark.model


def run_example(name: str, model: Path, *arguments: str, text: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, model, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_every_example_is_run_here() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == ["batch.py", "chat.py", "generate.py"]
    agents = sorted(path.name for path in EXAMPLES.glob("agents/*.py"))
    assert agents == ["csv_analyst.py", "fix_test.py", "log_triage.py"]


def test_generate(smollm2_path: Path) -> None:
    lines = run_example("generate.py", smollm2_path)
    assert "Tokyo" in lines[0]
    assert lines[-1].endswith("ended by stop")


def test_chat(smollm2_path: Path) -> None:
    lines = run_example("chat.py", smollm2_path, text="Name the capital of Japan.\nAnd of Italy.\n\nnot read\n")
    assert "Tokyo" in lines[0]
    assert len(lines) >= 2


def test_batch(smollm2_path: Path) -> None:
    lines = run_example("batch.py", smollm2_path)
    assert len(lines) == 8
    assert lines[0] == "France: Paris"


@pytest.mark.slow
def test_an_agent_asks_a_table(model_path: Callable[[str], Path]) -> None:
    table = str(EXAMPLES / "agents/sales.csv")
    lines = run_example(
        "agents/csv_analyst.py", model_path(CODER), table, "How many units of the product lamp were sold?"
    )
    assert "1083" in lines[-1]


@pytest.mark.slow
def test_an_agent_mends_a_test(model_path: Callable[[str], Path]) -> None:
    lines = run_example("agents/fix_test.py", model_path(CODER))
    assert "+    return width * height" in lines
    assert lines[-1] == "the tests pass"


@pytest.mark.slow
def test_an_agent_reads_a_log(model_path: Callable[[str], Path]) -> None:
    found = json.loads("\n".join(run_example("agents/log_triage.py", model_path(CODER))))
    assert found["component"] == "storage"
    assert "space" in found["cause"]
