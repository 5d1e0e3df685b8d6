"""The benchmarks of speed run and report; their numbers are for people to read."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from oracles.tiny_encoder import TinyEncoder
from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from treadle.agents.sandbox import Sandbox
from treadle.errors import SandboxUnavailableError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run_benchmark(name: str, *arguments: str | Path, may_miss: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a script; one that ``may_miss`` what it demands of the machine ends with status 1 then."""
    run = subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(treadle.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert run.returncode in ((0, 1) if may_miss else (0,)), run.stderr
    return run


@pytest.mark.slow
def test_compare_reports_speed_and_engines_that_cannot_run(tmp_path: Path) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--rounds", "1", "--prompt", "40", "--streams", "1", "2"]
    options += ["--context", "8", "--steps", "4", "--rivals", "llama.cpp", "--python", "llama.cpp=/does/not/exist"]
    run = run_benchmark("compare.py", model, *options)
    report = json.loads(report_path.read_text())
    assert [cell["work"] for cell in report["cells"]] == ["prompt 40", "decode 1 at 8", "decode 2 at 8"]
    for cell in report["cells"]:
        assert cell["tokens_per_second"]["treadle"][0] > 0
        assert cell["read_bytes_per_second"][0] > 0
    assert report_path.with_suffix(".svg").read_text().startswith("<svg")
    assert set(report["failures"]) == {"llama.cpp"}
    assert "llama.cpp could not run" in run.stdout


@pytest.mark.slow
def test_neighbour_reports_what_is_left(tmp_path: Path) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--rounds", "1", "--prompt", "40", "--streams", "2"]
    options += ["--context", "8", "--steps", "4", "--python", "llama.cpp=/does/not/exist"]
    run = run_benchmark("neighbour.py", model, *options)
    report = json.loads(report_path.read_text())
    assert [*report["tokens_per_second"]] == ["prompt 40", "decode 2"]
    for engines in report["tokens_per_second"].values():
        [pair] = engines["treadle"]
        assert pair["alone"] > 0
        assert pair["beside"] > 0
    assert set(report["failures"]) == {"llama.cpp"}
    assert "llama.cpp could not run" in run.stdout


@pytest.mark.slow
def test_serving_reports_agents_and_servers_that_cannot_run(tmp_path: Path) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--rounds", "2", "--agents", "3", "--turns", "2"]
    options += ["--system-words", "20", "--result-words", "5", "--answer-tokens", "12", "--context", "512"]
    options += ["--llama-server", "/does/not/exist", "--vllm", "false"]
    run = run_benchmark("serving.py", model, *options)
    results = json.loads(report_path.read_text())["results"]
    assert len(results["treadle"]["rounds"]) == 2
    for figures in results["treadle"]["rounds"]:
        assert figures["tasks_per_minute"] > 0
        assert figures["prompt_tokens"] > figures["cached_tokens"] > 0  # the agents share a prompt, rounds do not
    assert "FileNotFoundError" in results["llama.cpp"]["failure"]
    assert "its process ended with status 1" in results["vllm"]["failure"]
    assert "llama.cpp failed: " in run.stdout


@pytest.mark.slow
def test_structured_checks_answers(tmp_path: Path) -> None:
    model = TinyModel(context_length=1024).write(tmp_path / "tiny.gguf")
    run = run_benchmark("structured.py", model, "--seeds", "1", "--threads", "1")
    assert run.stdout == "10 of 10 answers valid: 10 schemas, 1 seeds each, temperature 1.5\n"


@pytest.mark.slow
def test_agents_reports_policies_and_servers_that_cannot_run(tmp_path: Path) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--rounds", "1", "--agents", "3", "--turns", "2", "--plain"]
    options += ["--system-words", "20", "--result-words", "5", "--answer-tokens", "4", "12", "--context", "512"]
    options += ["--tool-seconds", "0.01", "0.02", "--llama-server", "/does/not/exist"]
    run = run_benchmark("agents.py", model, *options)
    results = json.loads(report_path.read_text())["results"]
    assert [*results] == ["adaptive", "fixed", "llama.cpp"]
    for policy in ("adaptive", "fixed"):
        [figures] = results[policy]["rounds"]
        assert figures["task_p90_seconds"] >= figures["task_p50_seconds"] > 0
        assert figures["tasks_per_minute"] > 0
        assert figures["cores_of_tools"] > 0
    assert "FileNotFoundError" in results["llama.cpp"]["failure"]
    assert "| adaptive / fixed |" in run.stdout


@pytest.mark.slow
def test_http_cost_compares_the_server_with_the_engine_in_process(tmp_path: Path) -> None:
    model = TinyModel(context_length=2048).write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--rounds", "2", "--answer-tokens", "900", "--requests", "2"]
    options += ["--context", "2048", "--streams", "2"]
    run = run_benchmark("http_cost.py", model, *options, may_miss=True)
    results = json.loads(report_path.read_text())["results"]
    assert [*results] == ["treadle", "treadle serve"]
    for result in results.values():
        assert len(result["rounds"]) == 2
        assert all(figures["tokens_per_second"] > 0 for figures in result["rounds"])
    verdicts = [line.partition(":")[0] for line in run.stdout.splitlines()[:3]]
    assert set(verdicts) <= {"kept", "MISSED"}
    assert run.returncode == ("MISSED" in verdicts)


@pytest.mark.slow
@pytest.mark.model
def test_storms_keep_what_is_demanded(smollm2_path: Path, tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--clients", "48", "--seconds", "6"]
    options += ["--leavers", "80", "--kills", "1", "--prompts", "2"]
    run = run_benchmark("storms.py", smollm2_path, *options, may_miss=True)
    verdicts = json.loads(report_path.read_text())["verdicts"]
    assert len(verdicts) == run.stdout.count("kept: ") + run.stdout.count("MISSED: ") == 9
    # Pace is the machine's, too, and memory settles only in a longer storm; the rest must hold.
    for verdict in verdicts:
        may_miss = any(word in verdict["demand"] for word in ("fair", "meanwhile", "leak"))
        assert verdict["is_kept"] or may_miss, verdict
    [leak] = [verdict["figures"] for verdict in verdicts if "leak" in verdict["demand"]]
    assert leak["is_idle"]
    assert leak["after"]["files"] <= leak["before"]["files"]


@pytest.mark.slow
def test_neighbour_times_one_thread_and_the_way_back(tmp_path: Path) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "2", "--rounds", "1", "--prompt", "--streams", "1"]
    options += ["--context", "8", "--steps", "4", "--engines", "treadle", "--recoveries", "1"]
    run = run_benchmark("neighbour.py", model, *options)
    report = json.loads(report_path.read_text())
    assert [*report["tokens_per_second"]["decode 1"]] == ["treadle", "treadle, 1 thread"]
    assert len(report["recovery_seconds"]) == 1
    assert "all threads are back after the neighbour has left: " in run.stdout


@pytest.mark.slow
def test_plan_search_names_the_best(tmp_path: Path) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf")
    run = run_benchmark("plan_search.py", model, "--rounds", "1", "--prompt", "40", "--steps", "4", "--most", "2")
    lines = run.stdout.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:7]] == [
        "| as planned",
        "| 1 pinned",
        "| 1 not pinned",
        "| 2 pinned",
        "| 2 not pinned",
    ]
    assert all("of the best (" in line for line in lines[7:9])


@pytest.mark.slow
def test_quota_says_so_where_no_group_can_be_made(tmp_path: Path) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf")
    run = run_benchmark("quota.py", model, "--python", "llama.cpp=/does/not/exist", may_miss=True)
    assert "no control group with a CPU quota can be made here" in run.stderr or "could not run" in run.stderr
    assert "Traceback" not in run.stderr
    assert not list(Path("/sys/fs/cgroup/cpu").glob(f"treadle-quota-*-{0.5:g}"))


@pytest.mark.slow
def test_architectures_reports_what_one_engine_alone_shows(tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--rounds", "1", "--tokens", "40", "--architecture", "llama"]
    run = run_benchmark("architectures.py", *options, "--python", "llama.cpp=/does/not/exist")
    (row,) = json.loads(report_path.read_text())["rows"]
    assert 0 < row["differences"]["treadle"] < 0.1
    assert row["failures"].keys() == {"llama.cpp"}
    assert "| llama | " in run.stdout


@pytest.mark.slow
def test_adapters_are_measured_beside_none(tmp_path: Path) -> None:
    model = TinyModel(context_length=1024).write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--rounds", "2", "--streams", "3", "--adapters", "2"]
    run = run_benchmark("adapters.py", model, *options, "--rank", "2", "--context", "8", "--prompt", "40")
    works = json.loads(report_path.read_text())["works"]
    assert [*works] == ["3 streams, 2 adapters", "prompt of 40, one adapter"]
    for speeds in works.values():
        assert [len(speeds[name]) for name in ("none", "adapters")] == [2, 2]
        assert min(speeds["none"] + speeds["adapters"]) > 0
    assert run.stdout.count("\n| ") == 4


@pytest.mark.slow
def test_accounting_reports_shares_and_coverage(tmp_path: Path) -> None:
    model = TinyModel(context_length=2048).write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--tasks", "1", "--turns", "3", "--trace", tmp_path / "t.jsonl"]
    run = run_benchmark("accounting.py", model, *options, may_miss=True)
    report = json.loads(report_path.read_text())
    assert sum(report["shares"].values()) == pytest.approx(1.0)
    assert 0 < report["coverage"] <= 1
    assert run.stdout.count("kept: ") + run.stdout.count("MISSED: ") == 2
    assert (tmp_path / "t.jsonl").read_text().count('"kind": "tool"') == 2


@pytest.mark.slow
def test_calls_in_the_sandbox_are_measured() -> None:
    try:
        asyncio.run(open_and_close())
    except SandboxUnavailableError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    run = run_benchmark("sandbox.py", "--calls", "30", "--flood-seconds", "1", may_miss=True)
    assert "after 30 calls there are more: 0 processes, 0 children, 0 mounts" in run.stdout


async def open_and_close() -> None:
    await (await Sandbox.open()).close()


@pytest.mark.slow
def test_embeddings_reports_texts_and_engines_that_cannot_run(tmp_path: Path) -> None:
    model = TinyEncoder().write(tmp_path / "tiny.gguf")
    report_path = tmp_path / "report.json"
    options = ["--out", report_path, "--threads", "1", "--rounds", "1", "--lengths", "8", "40", "--turn-seconds", "0"]
    run = run_benchmark("embeddings.py", model, *options, "--python", "llama.cpp=/does/not/exist")
    report = json.loads(report_path.read_text())
    assert [cell["work"] for cell in report["cells"]] == ["1024 texts of 8", "204 texts of 40"]
    assert all(cell["tokens_per_second"]["treadle"][0] > 0 for cell in report["cells"])
    assert set(report["failures"]) == {"llama.cpp"}
    assert "llama.cpp could not run" in run.stdout
