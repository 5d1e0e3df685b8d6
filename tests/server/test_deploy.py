"""The files of examples/deploy fit the server: options exist, and systemd and builds take them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from patience import PATIENCE_SECONDS
from treadle.cli.main import application

DEPLOY = Path(__file__).parents[2] / "examples/deploy"
PROJECT = (DEPLOY.parents[1] / "pyproject.toml").read_text()
CMAKE = (DEPLOY.parents[1] / "CMakeLists.txt").read_text()
GUIDE = Path(__file__).parents[2] / "docs/guides/serve.md"


@pytest.mark.parametrize("path", [DEPLOY / "treadle.service", DEPLOY / "Dockerfile", GUIDE])
def test_options_exist(path: Path) -> None:
    serve = typer.main.get_command(application()).commands["serve"]  # type: ignore[attr-defined]
    known = {name for parameter in serve.params for name in (*parameter.opts, *parameter.secondary_opts)}
    text = path.read_text()
    commands = re.findall(r"serve.*", text) if path != GUIDE else [text]
    used = {option for command in commands for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", command)}
    assert used
    assert used <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "treadle.service").read_text().replace("/opt/treadle/bin/treadle", sys.executable)
    (tmp_path / "treadle.service").write_text(unit)
    command = ["systemd-analyze", "verify", "--man=no", tmp_path / "treadle.service"]
    verdict = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert "treadle.service" not in verdict.stderr


def test_the_image_is_built_from_what_the_build_needs() -> None:
    kept = re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    root = DEPLOY.parents[1]
    assert all((root / name).exists() for name in kept)
    assert set(re.findall(r"^(?:readme|license-files|wheel.packages) = \W*(\w+[.\w]*)", PROJECT, re.MULTILINE)) <= {
        *kept
    }
    assert set(re.findall(r"(?:^|[( ])(native|src|docs|tests|examples)/", CMAKE, re.MULTILINE)) <= {*kept}
