"""Starts, pauses and asks the worker processes, and describes the machine they run on."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OURS = "treadle"
LIMITS = "limits"
MODULES = {
    OURS: "treadle_core",
    "llama.cpp": "llama_cpp_python",
    "ik_llama.cpp": "ik_llama_cpp",
    "openvino": "openvino_genai",
    "vllm": "vllm_cpu",
    LIMITS: "machine_limits",
}
ANSWER_SECONDS = 600.0  # the slowest engine here takes two minutes to load
EXIT_SECONDS = 5.0  # between the end of a process's output and its own
RIVALS = [name for name in MODULES if name not in (OURS, LIMITS)]


class EngineError(Exception):
    """The engine cannot do what the benchmark asks; it may do other things."""


class EngineGoneError(EngineError):
    """The engine's process has ended."""


class EngineProcess:
    """One engine in its own process, which runs only while it is asked something."""

    def __init__(self, name: str, python: str, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.name = name
        self.answer_seconds = answer_seconds
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [python, str(HERE / "worker.py"), MODULES[name]]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # a group of its own, for signals to all of its processes
            )
        except OSError as error:
            raise EngineGoneError(f"its process could not be started: {error}") from error

    def ask(self, do: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        try:
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self._read_line()
            os.killpg(self.process.pid, signal.SIGSTOP)
        except OSError as error:
            raise EngineGoneError(f"its process ended: {error}") from error
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["value"]

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], self.answer_seconds)
        if not ready:
            raise EngineGoneError(f"no answer within {self.answer_seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            try:
                raise EngineGoneError(f"its process ended with status {self.process.wait(EXIT_SECONDS)}")
            except subprocess.TimeoutExpired as error:
                raise EngineGoneError("its process closed its output") from error
        return line

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


def add_common_arguments(parser: argparse.ArgumentParser, *, model: bool = True) -> None:
    if model:
        parser.add_argument("model", type=Path, help="GGUF file that every engine reads")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every engine")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="ENGINE=PATH",
        help="Python interpreter that has the engine's package, when it is not this one",
    )
    parser.add_argument("--out", type=Path, help="also write everything measured to this JSON file")


def pythons(arguments: argparse.Namespace) -> dict[str, str]:
    """The interpreter of each engine; this one unless --python says otherwise."""
    chosen = dict.fromkeys(MODULES, sys.executable)
    for choice in arguments.python:
        name, _, path = choice.partition("=")
        if name not in MODULES or not path:
            sys.exit(f"--python {choice}: expected ENGINE=PATH with ENGINE one of {', '.join(MODULES)}")
        chosen[name] = path
    return chosen


def describe_machine(arguments: argparse.Namespace) -> dict[str, Any]:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    model = getattr(arguments, "model", None)
    facts = {
        "cpu": cpu,
        "logical_cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": arguments.threads,
        "command": " ".join(["python", *sys.argv]),
    }
    if model is not None:
        facts |= {"model": model.name, "model_bytes": model.stat().st_size, "model_sha256": sha256(model)}
    return facts


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def write_report(arguments: argparse.Namespace, report: dict[str, Any]) -> None:
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
