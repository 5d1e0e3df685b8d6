"""The files of examples/deploy fit the server: options exist, and the dashboard asks for metrics there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from treadle.cli.main import app
from treadle.server.engine_metrics import EngineCollector
from treadle.server.hub import ModelHub
from treadle.server.limits import Limits
from treadle.server.machine_watch import MachineWatch
from treadle.server.metrics import Metrics
from treadle.server.settings import ServerSettings

DEPLOY = Path(__file__).parents[2] / "examples/deploy"
PROJECT = (DEPLOY.parents[1] / "pyproject.toml").read_text()
CMAKE = (DEPLOY.parents[1] / "CMakeLists.txt").read_text()
GUIDE = Path(__file__).parents[2] / "docs/guides/serve.md"


def known_metrics() -> set[str]:
    hub = ModelHub({"some": "some"}, load=None)  # type: ignore[arg-type]  nothing is loaded
    limits = Limits(ServerSettings())
    machine = MachineWatch(hub, limits)
    metrics = Metrics(hub, limits, machine, prefix="vllm")
    names = set(re.findall(r"^# TYPE (\S+)", metrics.exposition().decode(), re.MULTILINE))
    return names | {figure.name for figure in EngineCollector(hub, machine, "vllm")._figures}


def test_the_dashboard_asks_for_metrics_there_are() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"(?:vllm|treadle):\w+", target["expr"])
    }
    known = known_metrics()
    assert len(asked) > 10
    assert {name for name in asked if name not in known and name.removesuffix("_bucket") not in known} == set()


@pytest.mark.parametrize("path", [DEPLOY / "treadle.service", DEPLOY / "Dockerfile", GUIDE])
def test_options_exist(path: Path) -> None:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
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
    verdict = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "treadle.service" not in verdict.stderr


def test_the_image_is_built_from_what_the_build_needs() -> None:
    kept = re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    root = DEPLOY.parents[1]
    assert all((root / name).exists() for name in kept)
    assert set(re.findall(r"^(?:readme|license-files|wheel.packages) = \W*(\w+[.\w]*)", PROJECT, re.MULTILINE)) <= {
        *kept
    }
    assert set(re.findall(r"(?:^|[( ])(native|src|docs|tests|examples)/", CMAKE, re.MULTILINE)) <= {*kept}
