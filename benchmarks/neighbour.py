"""Times engines beside a process that keeps one of their cores busy: what is left of their speed?

Every round times each engine alone and at once beside the neighbour; what is left is the median over these pairs. The
neighbour gets half of its core. An engine whose threads wait for the slowest is left with half of its speed, or less.
Treadle with a single thread is timed, too: it loses nothing as long as the neighbour is elsewhere. Then the neighbour
ends while Treadle decodes: how long until all threads are back?
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

from engines import (
    OURS,
    RIVALS,
    EngineError,
    EngineProcess,
    add_common_arguments,
    describe_machine,
    pythons,
    write_report,
)

CONDITIONS = ("alone", "beside")
ONE_THREAD = "treadle, 1 thread"
NUM_PIECES, MOST_SECONDS = 8, 6.0  # decoding goes piece by piece, and ends early with an engine that crawls
SECONDS_BESIDE, SECONDS_AFTER = 2.0, 4.0  # of a recovery
# Ends by itself when this program is killed.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10000))"

# By work and engine, for each round by condition: tokens per second.
Speeds = dict[str, dict[str, list[dict[str, float]]]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--engines", nargs="*", default=[OURS, "llama.cpp"], choices=[OURS, *RIVALS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, nargs="*", default=[512], help="prompt lengths to time")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8], help="numbers of streams to decode")
    parser.add_argument("--context", type=int, default=64, help="tokens in each stream before decoding is timed")
    parser.add_argument("--steps", type=int, default=64, help="tokens decoded in each stream")
    parser.add_argument(
        "--cpus", type=int, nargs="+", default=[max(os.sched_getaffinity(0))], help="a neighbour on each of these"
    )
    parser.add_argument("--recoveries", type=int, default=5, help="how often to time the way back to all threads")
    parser.add_argument("--nice", type=int, default=0, help="niceness of the neighbours")
    return parser.parse_args()


@contextmanager
def neighbours(cpus: list[int], nice: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that compute without end, one on each of these CPUs."""
    processes = []
    try:
        for cpu in cpus:
            processes.append(subprocess.Popen([sys.executable, "-c", BUSY]))
            os.sched_setaffinity(processes[-1].pid, {cpu})
            os.setpriority(os.PRIO_PROCESS, processes[-1].pid, nice)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Trial:
    """Engines that still run; speeds by work, engine and condition, one per round; why the others do not run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        works = [f"prompt {length}" for length in arguments.prompt] + [f"decode {count}" for count in arguments.streams]
        self.speeds: Speeds = {work: {} for work in works}
        self.engines: dict[str, EngineProcess] = {}
        self.vocab_size = 0  # the smallest of the engines'
        self.failures: dict[str, str] = {}
        self.recovery_seconds: list[float | None] = []  # None: not within the time

    def start(self) -> None:
        for name in self.arguments.engines:
            self._guarded(name, self._load, name, name, self.arguments.threads)
        if OURS in self.engines and self.arguments.threads > 1:
            self._guarded(ONE_THREAD, self._load, ONE_THREAD, OURS, 1)

    def run(self) -> None:
        for number in range(self.arguments.rounds + 1):  # round 0 warms up and is not counted
            print(f"round {number} of {self.arguments.rounds}", file=sys.stderr)
            for work in self.speeds:
                for name in list(self.engines):
                    self._guarded(name, self._measure, name, work, number > 0)

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()

    def _guarded(self, name: str, action: Callable[..., None], *arguments: Any) -> None:
        """An engine that fails is reported, and the others go on."""
        try:
            action(*arguments)
        except EngineError as error:
            self.failures[name] = str(error)
            if name in self.engines:
                self.engines.pop(name).close()

    def recover(self) -> None:
        """Has the neighbour end in the middle of decoding, and waits until all threads take part again."""
        for _ in range(self.arguments.recoveries if OURS in self.engines else 0):
            self._guarded(OURS, self._recover)

    def _recover(self) -> None:
        left = []
        with neighbours(self.arguments.cpus, self.arguments.nice) as processes:

            def leave() -> None:
                for process in processes:
                    process.kill()
                left.append(time.monotonic())

            threading.Timer(SECONDS_BESIDE, leave).start()
            seconds = SECONDS_BESIDE + SECONDS_AFTER
            prompts = [self._tokens(self.arguments.context)]
            steps = self.engines[OURS].ask("call", method="presence", prompts=prompts, seconds=seconds)
        back = (end - left[0] for end, present in steps if end > left[0] and present == self.arguments.threads)
        self.recovery_seconds.append(next(back, None))

    def _load(self, name: str, engine: str, threads: int) -> None:
        self.engines[name] = EngineProcess(engine, pythons(self.arguments)[engine])
        facts = self.engines[name].ask("load", path=str(self.arguments.model), threads=threads)
        self.vocab_size = min(facts["vocab_size"], self.vocab_size or facts["vocab_size"])

    def _measure(self, name: str, work: str, counts: bool) -> None:
        pair = {}
        for condition in CONDITIONS:
            with neighbours(self.arguments.cpus, self.arguments.nice) if condition == "beside" else nullcontext():
                pair[condition] = self._speed(self.engines[name], work)
        if counts:
            self.speeds[work].setdefault(name, []).append(pair)

    def _speed(self, engine: EngineProcess, work: str) -> float:
        """Tokens per second."""
        kind, number = work.split()
        count, steps = int(number), self.arguments.steps
        if kind == "prompt":
            return count / float(engine.ask("call", method="prompt", tokens=self._tokens(count)))
        prompts = [self._tokens(self.arguments.context, stream) for stream in range(count)]
        done, seconds = 0, 0.0
        while done < steps and seconds < MOST_SECONDS:
            piece = min(steps - done, -(-steps // NUM_PIECES))
            seconds += float(engine.ask("call", method="decode", prompts=prompts, num_steps=piece))
            done += piece
        return count * done / seconds

    def _tokens(self, count: int, seed: int = 0) -> list[int]:
        return [random.Random(f"{seed} {index}").randrange(self.vocab_size // 2) for index in range(count)]


def print_table(speeds: Speeds) -> None:
    print("| work | engine | alone, tok/s | beside, tok/s | left |")
    print("| --- | --- | --- | --- | --- |")
    for work, engines in speeds.items():
        for name, pairs in engines.items():
            cells = [work.replace("decode", "decode, streams:"), name]
            for condition in CONDITIONS:
                values = [pair[condition] for pair in pairs]
                cells.append(f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f})")
            cells.append(f"{median(pair['beside'] / pair['alone'] for pair in pairs):.0%}")
            print("| " + " | ".join(cells) + " |")


def main() -> None:
    arguments = parse_arguments()
    trial = Trial(arguments)
    try:
        trial.start()
        trial.run()
        trial.recover()
    finally:
        trial.close()
    report = {"machine": describe_machine(arguments), "tokens_per_second": trial.speeds, "failures": trial.failures}
    report["recovery_seconds"] = trial.recovery_seconds
    write_report(arguments, report)
    print_table(trial.speeds)
    if trial.recovery_seconds:
        words = ", ".join("never" if each is None else f"{each:.2f} s" for each in trial.recovery_seconds)
        print(f"all threads are back after the neighbour has left: {words}")
    for name, reason in trial.failures.items():
        print(f"{name} could not run: {reason}")
    if OURS in trial.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
