"""Compares what `treadle plan` predicts with what is measured: prompts, and one to sixteen streams that decode.

The limits of the machine are measured before and after each round, since those of a shared machine change, and count as
`treadle plan` takes them; of a model the best round counts. The table gives both figures and how far the prediction is
off.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from treadle.config import Settings
from treadle.engine.execution_plan import plan_execution
from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS
from treadle.engine.outset import view_machine
from treadle.engine.prediction import DECODE_CONTEXT, FIRST_TOKEN_PROMPTS, STREAMS, predict
from treadle.engine.runner import NativeRunner
from treadle.engine.step_bench import StepBench
from treadle.hardware.machine_speed import MachineSpeed, measure_speed
from treadle.hardware.roofline import Roofline, typical_speed
from treadle.models.gguf import ModelFile


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--steps", type=int, default=8, help="tokens decoded for one figure")
    parser.add_argument("--out", type=Path, help="also write everything to this JSON file")
    return parser.parse_args()


class Trial:
    """One loaded model, the best of its rates so far, and the speeds of the machine beside it."""

    def __init__(self, path: Path, arguments: argparse.Namespace) -> None:
        self.file, self.steps = ModelFile.open(path), arguments.steps
        settings = Settings.from_environment()
        self.isa, self.plan = settings.isa, plan_execution(self.file, settings, view_machine())
        stream_blocks = -(-(DECODE_CONTEXT + self.steps) // KV_BLOCK_TOKENS)
        num_blocks = max(-(-max(FIRST_TOKEN_PROMPTS) // KV_BLOCK_TOKENS), max(STREAMS) * stream_blocks)
        runner = NativeRunner.load(
            self.file, isa=self.isa, cpus=self.plan.threads.cpus, num_blocks=num_blocks, max_batch_tokens=512
        )
        self.bench = StepBench(runner)
        self.speeds: list[MachineSpeed] = []
        self.rates: dict[str, float] = {}

    def run(self) -> None:
        """Measure everything once."""
        self._measure_machine()
        for count in STREAMS:
            self.bench.decode_seconds(context=DECODE_CONTEXT, num_steps=1, num_streams=count)
            seconds = self.bench.decode_seconds(context=DECODE_CONTEXT, num_steps=self.steps, num_streams=count)
            self._keep(f"decode, streams: {count}", count / min(seconds))
        for length in FIRST_TOKEN_PROMPTS:
            self._keep(f"prompt, tokens: {length}", length / self.bench.prompt_seconds(length))
        self._measure_machine()

    def _keep(self, name: str, rate: float) -> None:
        self.rates[name] = max(rate, self.rates.get(name, 0.0))

    def _measure_machine(self) -> None:
        found = measure_speed(self.plan.threads.cpus, isa=self.isa)
        if found is None:
            sys.exit("too little memory is free to measure the machine")
        self.speeds.append(found)

    def report(self) -> dict[str, Any]:
        """Rates as predicted and as measured, and the machine they are predicted for."""
        speed = typical_speed(self.speeds)
        found = predict(self.file, self.plan.memory, Roofline(speed))
        predicted = {f"decode, streams: {count}": rate for count, rate in found.decode_rates.items()}
        for length, seconds in found.first_token_seconds.items():
            predicted[f"prompt, tokens: {length}"] = None if seconds is None else length / seconds
        return {"machine": vars(speed), "measured": self.rates, "predicted": predicted}


def main() -> None:
    arguments = parse_arguments()
    reports = {}
    for path in arguments.models:
        trial = Trial(path, arguments)
        for number in range(1, arguments.rounds + 1):
            print(f"{path.name}, round {number} of {arguments.rounds}", file=sys.stderr)
            trial.run()
        reports[path.name] = trial.report()
    if arguments.out:
        arguments.out.write_text(json.dumps(reports, indent=2) + "\n")
    print_table(reports)


def print_table(reports: dict[str, dict[str, Any]]) -> None:
    print("| model | work | predicted tok/s | measured tok/s | off by |")
    print("| --- | --- | --- | --- | --- |")
    worst = 0.0
    for name, report in reports.items():
        for work, measured in report["measured"].items():
            predicted = report["predicted"][work]
            if predicted is None:
                print(f"| {name} | {work} | not known | {measured:.1f} | |")
                continue
            error = predicted / measured - 1
            worst = max(worst, abs(error))
            print(f"| {name} | {work} | {predicted:.1f} | {measured:.1f} | {error:+.0%} |")
    print(f"\nat most {worst:.0%} off")


if __name__ == "__main__":
    main()
