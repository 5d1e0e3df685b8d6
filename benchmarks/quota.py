"""Times decoding under a CPU quota: Treadle as it plans itself, next to llama.cpp with its default number of threads.

Needs root and control groups of version 1 (or the `cpu` controller of version 2), two CPUs or more. Each engine decodes
in a group with the quota; a Treadle with one thread and no quota says what there is to get. Rounds take turns.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from engines import OURS, EngineError, EngineProcess, add_common_arguments, describe_machine, pythons, write_report

RIVAL = "llama.cpp"
FREE = "treadle, 1 thread, no quota"
ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup"))
PERIOD_US = 100_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--quotas", type=float, nargs="+", default=[1.0, 0.5], help="CPUs that a group may use")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=33, help="tokens in the stream before decoding is timed")
    parser.add_argument("--steps", type=int, default=32, help="tokens decoded")
    return parser.parse_args()


@contextmanager
def groups(quotas: list[float]) -> Iterator[dict[float, Path]]:
    """A control group for each quota, removed at the end: by then nobody may be left in it."""
    made: dict[float, Path] = {}
    try:
        for quota in quotas:
            root = next(root for root in ROOTS if (root / "cgroup.procs").exists())
            path = root / f"treadle-quota-{os.getpid()}-{quota:g}"
            path.mkdir()
            made[quota] = path
            limit_us = int(quota * PERIOD_US)
            if (path / "cpu.max").exists():
                (path / "cpu.max").write_text(f"{limit_us} {PERIOD_US}")
            else:
                (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (path / "cpu.cfs_quota_us").write_text(str(limit_us))
        yield made
    except (OSError, StopIteration) as error:
        sys.exit(f"no control group with a CPU quota can be made here: {error}")
    finally:
        for path in made.values():
            path.rmdir()


class Trial:
    """Engines in their groups, and tokens per second by quota and engine."""

    def __init__(self, arguments: argparse.Namespace, places: dict[float, Path]) -> None:
        self.arguments = arguments
        self.engines: dict[tuple[float | None, str], EngineProcess] = {}
        self.threads: dict[float, int] = {}
        self.speeds: dict[float, dict[str, list[float]]] = {quota: {} for quota in places}
        self.vocab_size = 0
        self.places = places

    def start(self) -> None:
        self._start(None, FREE, OURS, 1, None)
        for quota, path in self.places.items():
            facts = self._start(quota, OURS, OURS, None, path)
            self.threads[quota] = len(facts["cpus"])
            self._start(quota, RIVAL, RIVAL, self.arguments.threads, path)

    def _start(self, quota: float | None, name: str, engine: str, threads: int | None, group: Path | None) -> dict:
        process = EngineProcess(engine, pythons(self.arguments)[engine])
        self.engines[quota, name] = process
        if group is not None:
            (group / "cgroup.procs").write_text(str(process.process.pid))
        facts = process.ask("load", path=str(self.arguments.model), threads=threads)
        self.vocab_size = min(facts["vocab_size"], self.vocab_size or facts["vocab_size"])
        return facts

    def run(self) -> None:
        for number in range(self.arguments.rounds + 1):  # round 0 warms up and is not counted
            print(f"round {number} of {self.arguments.rounds}", file=sys.stderr)
            for quota, speeds in self.speeds.items():
                for name, place in ((FREE, None), (OURS, quota), (RIVAL, quota)):
                    speed = self._speed(self.engines[place, name])
                    if number:
                        speeds.setdefault(name, []).append(speed)

    def _speed(self, engine: EngineProcess) -> float:
        numbers = random.Random(0)
        prompt = [numbers.randrange(self.vocab_size // 2) for _ in range(self.arguments.context)]
        return self.arguments.steps / float(
            engine.ask("call", method="decode", prompts=[prompt], num_steps=self.arguments.steps)
        )

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()


def ratio(speeds: dict[str, list[float]], name: str, other: str) -> float:
    """The median of the ratios of each round, for both were measured within the same seconds."""
    return median(one / two for one, two in zip(speeds[name], speeds[other], strict=True))


def print_table(trial: Trial) -> None:
    print("| quota, CPUs | threads planned | engine | tok/s | of one thread's share |")
    print("| --- | --- | --- | --- | --- |")
    for quota, speeds in trial.speeds.items():
        for name, values in speeds.items():
            share = ratio(speeds, name, FREE) / (1 if name == FREE else min(1.0, quota))
            rates = f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f})"
            print(f"| {quota:g} | {trial.threads[quota]} | {name} | {rates} | {share:.0%} |")
    for quota, speeds in trial.speeds.items():
        print(f"\nquota {quota:g}: treadle is {ratio(speeds, OURS, RIVAL):.2f} times as fast as {RIVAL}")


def main() -> None:
    arguments = parse_arguments()
    with groups(arguments.quotas) as places:
        trial = Trial(arguments, places)
        try:
            trial.start()
            trial.run()
        except EngineError as error:
            sys.exit(f"an engine could not run: {error}")
        finally:
            trial.close()
    report = {"machine": describe_machine(arguments), "threads": trial.threads, "tokens_per_second": trial.speeds}
    write_report(arguments, report)
    print_table(trial)


if __name__ == "__main__":
    main()
