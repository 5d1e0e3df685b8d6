"""Times Treadle against its rivals: same file, same threads, rounds interleaved, medians and ratios.

Each engine has its own process and its turn in every round, so drifts of a shared machine hit all alike: quote ratios
only. Speed of prompts, of one stream and of several; quality.py says whether the answers are as good.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from engines import (
    MODULES,
    EngineError,
    EngineProcess,
    add_common_arguments,
    describe_machine,
    pythons,
    write_report,
)

OURS = "treadle"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    rivals = [name for name in MODULES if name not in (OURS, "read")]
    parser.add_argument("--rivals", nargs="*", default=rivals, choices=rivals, help="engines to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, nargs="*", default=[512], help="prompt lengths to time")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8], help="numbers of streams to decode")
    parser.add_argument("--context", type=int, default=64, help="tokens in each stream before decoding is timed")
    parser.add_argument("--steps", type=int, default=32, help="tokens decoded in each stream")
    return parser.parse_args()


class Comparison:
    """Engines that still run, and tokens per second by work and engine, one value per round."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.works = [f"prompt {length}" for length in arguments.prompt]
        self.works += [f"decode {streams}" for streams in arguments.streams]
        self.engines: dict[str, EngineProcess] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self.speeds: dict[str, dict[str, list[float]]] = {work: {} for work in self.works}
        self.bandwidths: list[float] = []

    def start(self) -> None:
        arguments = self.arguments
        for name in (OURS, *arguments.rivals, "read"):
            self._guarded(name, self._start, name, pythons(arguments)[name])

    def _start(self, name: str, python: str) -> None:
        arguments = self.arguments
        self.engines[name] = EngineProcess(name, python)
        longest = max([*arguments.prompt, arguments.context + arguments.steps])
        self.facts[name] = self.engines[name].ask(
            "load",
            path=str(arguments.model),
            threads=arguments.threads,
            max_tokens=longest,
            streams=max(arguments.streams, default=1),
        )

    def _guarded(self, name: str, action: Callable[..., None], *arguments: Any) -> None:
        """An engine that fails is reported, and the others go on."""
        try:
            action(*arguments)
        except EngineError as error:
            self.failures[name] = str(error)
            if name in self.engines:
                self.engines.pop(name).close()

    def run(self) -> None:
        for number in range(self.arguments.rounds + 1):  # round 0 warms up and is not counted
            print(f"round {number} of {self.arguments.rounds}", file=sys.stderr)
            for work in self.works:
                for name in list(self.engines):
                    self._guarded(name, self._measure, name, work, number)

    def _measure(self, name: str, work: str, number: int) -> None:
        engine = self.engines[name]
        if name == "read":
            value = engine.ask("call", method="read")
            if number:
                self.bandwidths.append(value)
            return
        kind, count = work.split()
        if kind == "prompt":
            seconds = engine.ask("call", method="prompt", tokens=self._tokens(int(count)))
            speed = int(count) / seconds
        else:
            prompts = [self._tokens(self.arguments.context, stream) for stream in range(int(count))]
            steps = self.arguments.steps
            seconds = engine.ask("call", method="decode", prompts=prompts, num_steps=steps)
            speed = steps * int(count) / seconds
        if number:
            self.speeds[work].setdefault(name, []).append(speed)

    def _tokens(self, count: int, seed: int = 0) -> list[int]:
        """Token ids of no meaning: speed does not depend on them, and no engine's tokenizer is needed."""
        vocab_size = min(facts["vocab_size"] for facts in self.facts.values() if "vocab_size" in facts)
        return [random.Random(f"{seed} {index}").randrange(vocab_size // 2) for index in range(count)]

    def close(self) -> None:
        for name, engine in list(self.engines.items()):
            self._guarded(name, self._note_peak, name, engine)
        for engine in self.engines.values():
            engine.close()

    def _note_peak(self, name: str, engine: EngineProcess) -> None:
        self.facts[name]["peak_bytes"] = engine.ask("peak_bytes")


def print_table(comparison: Comparison) -> None:
    names = [name for name in (OURS, *comparison.arguments.rivals) if name not in comparison.failures]
    rivals = [name for name in names if name != OURS]
    header = ["tokens per second", *names, *(f"treadle / {name}" for name in rivals)]
    print("| " + " | ".join(header) + " |")
    print("| --- " * len(header) + "|")
    for work, speeds in comparison.speeds.items():
        cells = [work.replace("decode", "decode, streams:")]
        cells += [f"{median(speeds[name]):.1f} ({min(speeds[name]):.1f}-{max(speeds[name]):.1f})" for name in names]
        cells += [f"{ratio(speeds, name):.2f}x" if OURS in names else "" for name in rivals]
        print("| " + " | ".join(cells) + " |")
    print()
    print_limits(comparison, names)
    for name in names:
        facts = comparison.facts[name]
        print(f"{name}: {facts['version']}; peak resident memory {facts['peak_bytes'] / 1e6:.0f} MB")
    for name, reason in comparison.failures.items():
        print(f"{name} could not run: {reason}")


def ratio(speeds: dict[str, list[float]], rival: str) -> float:
    """Median over the rounds of ours to theirs: both were measured within the same seconds."""
    return median(ours / theirs for ours, theirs in zip(speeds[OURS], speeds[rival], strict=True))


def print_limits(comparison: Comparison, names: list[str]) -> None:
    if not comparison.bandwidths:
        return
    bandwidth = median(comparison.bandwidths)
    print(f"read bandwidth: {bandwidth / 1e9:.1f} GB/s with {comparison.arguments.threads} threads")
    decode_bytes = comparison.facts.get(OURS, {}).get("decode_bytes")
    if decode_bytes and "decode 1" in comparison.speeds:
        for name in names:
            used = median(comparison.speeds["decode 1"][name]) * decode_bytes
            print(f"{name}: one stream reads {used / 1e9:.1f} GB/s of weights, {used / bandwidth:.0%} of that")


def main() -> None:
    arguments = parse_arguments()
    comparison = Comparison(arguments)
    comparison.start()
    comparison.run()
    comparison.close()
    report = {
        "machine": describe_machine(arguments),
        "engines": comparison.facts,
        "failures": comparison.failures,
        "tokens_per_second": comparison.speeds,
        "read_bytes_per_second": comparison.bandwidths,
    }
    write_report(arguments, report)
    print_table(comparison)
    if OURS in comparison.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
