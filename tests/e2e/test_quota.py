"""A real CPU quota on this machine: what is planned under it, and what running threads do when it comes and goes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import environment
from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from treadle import LLM, SamplingParams
from treadle.engine.profile.run import profile
from treadle.hardware.limits import control_group_directories

CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 100_000
# Enters the group of its first argument, so that all its threads are born there.
IN_GROUP = (
    "import os, pathlib, sys\n"
    "pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'treadle', *sys.argv[2:]])\n"
)


class Group:
    """A control group of version 1 with a CPU quota, for this test."""

    def __init__(self) -> None:
        groups = control_group_directories(Path("/"), "cpu")
        self._home = next((group for group in groups if group.is_relative_to(CPU_GROUPS)), CPU_GROUPS)
        self.path = CPU_GROUPS / f"treadle-test-{os.getpid()}"
        self.path.mkdir()

    def limit(self, num_cpus: float) -> None:
        (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self.path / "cpu.cfs_quota_us").write_text(str(int(num_cpus * PERIOD_US) if num_cpus > 0 else -1))

    def close(self) -> None:
        (self._home / "cgroup.procs").write_text(str(os.getpid()))
        self.path.rmdir()


@pytest.fixture
def group() -> Iterator[Group]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("NOT tested under a real quota: this process may use one CPU only")
    try:
        made = Group()
    except OSError as error:
        pytest.skip(f"NOT tested under a real quota: no control group can be made here ({error})")
    yield made
    made.close()


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("quota") / "tiny.gguf")


@pytest.mark.parametrize(("num_cpus", "num_threads"), [(0.5, 1), (1.0, 1), (1.9, 1), (2.0, 2), (-1, None)])
def test_the_plan_rounds_the_quota_down(
    tiny_path: Path, group: Group, num_cpus: float, num_threads: int | None
) -> None:
    group.limit(num_cpus)
    done = subprocess.run(
        [sys.executable, "-c", IN_GROUP, group.path, "plan", tiny_path, "--json"],
        capture_output=True,
        env=environment(),
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    threads = json.loads(done.stdout)["threads"]
    if num_threads is None:
        assert "no CPU quota" in threads["reason"]
    else:
        assert threads["count"] == num_threads
        assert f"CPU quota {num_cpus:g} in {group.path}/cpu.cfs_quota_us" in threads["reason"]


def test_running_threads_follow_a_quota_that_comes_and_goes(
    tiny_path: Path, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle.engine")
    (group.path / "cgroup.procs").write_text(str(os.getpid()))
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    with LLM(tiny_path) as llm:
        planned = llm.report.plan.threads.num_threads
        expected = llm.generate("the inn", params).token_ids
        for num_cpus, num_threads in ((1.0, 1), (-1, planned)):
            group.limit(num_cpus)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not any(f"have changed: {num_threads} thread" in text for text in caplog.messages):
                assert time.monotonic() < deadline, f"nothing was said of {num_threads} threads"
                assert llm.generate("the inn", params).token_ids == expected
            caplog.clear()


@pytest.mark.slow
def test_a_profile_says_that_a_quota_bites(tiny_path: Path, group: Group) -> None:
    group.limit(0.1)  # so little that no other program keeps it from being used up
    (group.path / "cgroup.procs").write_text(str(os.getpid()))
    (cell,) = profile(tiny_path, prompts=[], streams=[16], stream_context=64, threads=2, seconds=1).cells
    assert cell.verdict is not None
    assert cell.verdict.kind == "throttled"
    assert "the CPU quota was used up early in" in cell.verdict.because
    assert cell.verdict.advice[0].startswith("treadle serve MODEL --threads 1 ")
