"""Searches every number of threads, pinned and not, for the fastest way to run a model: is the plan's own as fast?

All ways are timed in turn, round after round, in one process with one copy of the weights: a prompt, and one stream
that decodes. The table gives medians, and the plan's share of the best of each.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

from treadle.config import Settings
from treadle.engine.execution_plan import plan_execution, plan_threads_of
from treadle.engine.outset import view_machine
from treadle.engine.runner import NativeRunner
from treadle.engine.step_bench import StepBench
from treadle.models.gguf import ModelFile

PLAN = "as planned"
WORKS = ("prompt", "decode")
BLOCK_TOKENS = 32


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=24, help="tokens decoded in a row")
    parser.add_argument("--most", type=int, default=len(os.sched_getaffinity(0)) + 1, help="most threads to try")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Tokens per second, by work and way."""
    file, settings, machine = ModelFile.open(arguments.model), Settings.from_environment(), view_machine()
    plan = plan_execution(file, settings, machine)
    ways = {PLAN: (plan.threads.cpus, plan.prompt_threads.cpus)}
    for number in range(1, arguments.most + 1):
        for pin in (True, False):
            given = settings.override(threads=number, pin=pin)
            threads, prompt_threads = plan_threads_of(given, machine, plan.placement)
            ways[f"{number} {'pinned' if pin else 'not pinned'}"] = (threads.cpus, prompt_threads.cpus)
    num_blocks = -(-(arguments.prompt + arguments.steps) // BLOCK_TOKENS) + 1
    runner = NativeRunner.load(
        file, isa=settings.isa, cpus=plan.threads.cpus, num_blocks=num_blocks, max_batch_tokens=512
    )
    bench = StepBench(runner)
    rates: dict[str, dict[str, list[float]]] = {work: {way: [] for way in ways} for work in WORKS}
    for number in range(arguments.rounds + 1):  # round 0 warms up and is not counted
        print(f"round {number} of {arguments.rounds}", file=sys.stderr)
        for way in sorted(ways, reverse=bool(number % 2)):
            runner.set_threads(*ways[way])
            bench.decode_seconds(context=arguments.prompt, num_steps=2)
            started = time.perf_counter()
            bench.prompt_seconds(arguments.prompt)
            prompt_rate = arguments.prompt / (time.perf_counter() - started)
            steps = bench.decode_seconds(context=arguments.prompt, num_steps=arguments.steps)
            if number:
                rates["prompt"][way].append(prompt_rate)
                rates["decode"][way].append(arguments.steps / sum(steps))
    return rates


def main() -> None:
    arguments = parse_arguments()
    rates = measure(arguments)
    print("| threads | prompt tok/s | decode tok/s |")
    print("| --- | --- | --- |")
    for way in rates["decode"]:
        cells = [
            f"{median(rates[work][way]):.1f} ({min(rates[work][way]):.1f}-{max(rates[work][way]):.1f})"
            for work in WORKS
        ]
        print(f"| {way} | {' | '.join(cells)} |")
    for work in WORKS:
        best = max(rates[work], key=lambda way: median(rates[work][way]))
        pairs = zip(rates[work][PLAN], rates[work][best], strict=True)
        print(f"{work}: the plan reaches {median(one / two for one, two in pairs):.1%} of the best ({best})")


if __name__ == "__main__":
    main()
