"""The generated pages of docs/reference are current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_SECONDS

GENERATOR = Path(__file__).parents[1] / "docs/reference/generate.py"


def test_reference_is_current() -> None:
    run = subprocess.run(
        [sys.executable, GENERATOR, "--check"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert run.returncode == 0, run.stderr
