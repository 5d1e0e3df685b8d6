"""The speed comparison runs and reports; its numbers are for people to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from oracles.tiny_model import TinyModel

COMPARE = Path(__file__).parents[1] / "benchmarks/compare.py"


@pytest.mark.slow
def test_compare_reports_speed_and_engines_that_cannot_run(tmp_path: Path) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    command = [
        sys.executable,
        COMPARE,
        model,
        "--out",
        report_path,
        "--threads",
        "1",
        "--rounds",
        "1",
        "--prompt",
        "40",
    ]
    command += ["--streams", "1", "2", "--context", "8", "--steps", "4", "--rivals", "llama.cpp"]
    command += ["--python", "llama.cpp=/does/not/exist"]
    package = str(Path(treadle.__file__).parents[1])
    run = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(report_path.read_text())
    assert [cell["work"] for cell in report["cells"]] == ["prompt 40", "decode 1 at 8", "decode 2 at 8"]
    for cell in report["cells"]:
        assert cell["tokens_per_second"]["treadle"][0] > 0
        assert cell["read_bytes_per_second"][0] > 0
    assert report_path.with_suffix(".svg").read_text().startswith("<svg")
    assert set(report["failures"]) == {"llama.cpp"}
    assert "llama.cpp could not run" in run.stdout
