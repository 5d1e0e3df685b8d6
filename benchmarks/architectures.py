"""Holds every architecture of the native core against llama.cpp and against NumPy, on small seeded models.

Per architecture one tiny file with float32 weights, whose logits all three compute: neither engine then rounds what its
products read, so what is left shows whether they agree on the architecture. And one of a hundred million weights or so
in Q4_K, to time a prompt and eight streams. The files are random: nothing they say means anything.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from engines import OURS, EngineError, EngineProcess, add_common_arguments, describe_machine, pythons, write_report
from numpy.typing import NDArray
from quality import compare

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.architectures import ARCHITECTURES
from oracles.numpy_forward import NumpyModel
from oracles.tiny_model import Format, TinyModel, vocabulary

RIVAL = "llama.cpp"
TINY = {"hidden_size": 96, "num_heads": 3, "num_kv_heads": 1, "feed_forward_size": 160, "num_layers": 8}
TIMED = {
    "hidden_size": 1024,
    "num_heads": 16,
    "num_kv_heads": 4,
    "head_dim": 64,
    "feed_forward_size": 3072,
    "expert_feed_forward_size": 768,
    "num_layers": 8,
}
CONTEXT = 1024
PROMPT_TOKENS, STREAMS, STEPS, STREAM_TOKENS = 512, 8, 16, 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser, model=False)
    parser.add_argument("--architecture", nargs="*", choices=ARCHITECTURES, default=sorted(ARCHITECTURES))
    parser.add_argument("--tokens", type=int, default=300, help="positions whose logits are compared")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine at each timed work; 0 for none")
    return parser.parse_args()


def random_tokens(count: int) -> list[int]:
    return np.random.default_rng(1).integers(0, len(vocabulary()), count).tolist()


def seeded(architecture: str, shape: dict[str, int], **formats: Any) -> TinyModel:
    """A model of this shape, but for what llama.cpp demands of the architecture."""
    if architecture == "dots1":  # no grouped heads
        shape = {**shape, "num_kv_heads": shape["num_heads"]}
    if architecture == "olmoe":  # nor a size of its own for experts
        same = {"num_kv_heads": shape["num_heads"], "expert_feed_forward_size": shape["feed_forward_size"]}
        shape = {**shape, **same}
    # Where both ends are tied always, a matrix of their own for logits is refused; elsewhere it may be demanded.
    tied = architecture.startswith(("gemma", "cohere", "command"))
    return TinyModel(architecture=architecture, context_length=CONTEXT, tied=tied, **shape, **formats)


@dataclass
class Row:
    """What is known of one architecture."""

    architecture: str
    failures: dict[str, str] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    """The largest difference of a logit from NumPy's in double precision, by engine."""
    divergence: float | None = None
    top1_agreement: float | None = None
    ratios: dict[str, float | None] = field(default_factory=dict)
    """Our speed in that of llama.cpp, by work."""

    def cells(self) -> list[str]:
        def number(value: float | None, form: str) -> str:
            return "-" if value is None else format(value, form)

        return [
            self.architecture,
            *(number(self.differences.get(engine), ".1e") for engine in (OURS, RIVAL)),
            number(self.divergence, ".1e"),
            number(self.top1_agreement, ".1%"),
            *(number(self.ratios.get(work), ".2f") for work in ("prompt", "decode")),
        ]


class Engines:
    """Both engines with the same file."""

    def __init__(self, arguments: argparse.Namespace, path: Path, row: Row) -> None:
        self.running: dict[str, EngineProcess] = {}
        self.row = row
        for name in (OURS, RIVAL):
            try:
                self.running[name] = EngineProcess(name, pythons(arguments)[name])
                self.running[name].ask("load", path=str(path), threads=arguments.threads)
            except EngineError as error:
                row.failures[name] = str(error)
                if name in self.running:
                    self.running.pop(name).close()

    def logits(self, tokens: list[int], folder: Path) -> dict[str, NDArray[np.float32]]:
        found = {}
        for name, engine in self.running.items():
            engine.ask("logits_to_file", tokens=tokens, out=str(folder / "logits.npy"))
            found[name] = np.load(folder / "logits.npy")
        return found

    def ratio(self, rounds: int, method: str, **work: Any) -> float | None:
        """Our speed in that of the rival: the engines take turns, the first of which only warms up."""
        if self.running.keys() != {OURS, RIVAL}:
            return None
        seconds: dict[str, list[float]] = {OURS: [], RIVAL: []}
        for _ in range(rounds + 1):
            for name, engine in self.running.items():
                seconds[name].append(engine.ask("call", method=method, **work))
        return statistics.median(seconds[RIVAL][1:]) / statistics.median(seconds[OURS][1:])

    def close(self) -> None:
        for engine in self.running.values():
            engine.close()


def compare_logits(arguments: argparse.Namespace, folder: Path, row: Row) -> None:
    path = seeded(row.architecture, TINY, format=Format.F32).write(folder / "tiny.gguf")
    tokens = random_tokens(arguments.tokens)
    engines = Engines(arguments, path, row)
    try:
        found = engines.logits(tokens, folder)
    finally:
        engines.close()
    exact = NumpyModel(path).forward([tokens], dtype=np.float64)[0]
    row.differences = {name: float(np.abs(logits - exact).max()) for name, logits in found.items()}
    if found.keys() == {OURS, RIVAL}:
        pair = compare(found[OURS], found[RIVAL])
        row.divergence, row.top1_agreement = float(pair["divergence"].mean()), float(pair["agree"].mean())


def compare_speed(arguments: argparse.Namespace, folder: Path, row: Row) -> None:
    model = seeded(row.architecture, TIMED, format=Format.Q4_K, formats={"ffn_down": Format.Q6_K})
    engines = Engines(arguments, model.write(folder / "timed.gguf"), row)
    try:
        row.ratios["prompt"] = engines.ratio(arguments.rounds, "prompt", tokens=random_tokens(PROMPT_TOKENS))
        prompts = [random_tokens(STREAM_TOKENS)] * STREAMS
        row.ratios["decode"] = engines.ratio(arguments.rounds, "decode", prompts=prompts, num_steps=STEPS)
    finally:
        engines.close()


def measure(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    for architecture in arguments.architecture:
        print(architecture, file=sys.stderr)
        row = Row(architecture)
        with tempfile.TemporaryDirectory() as folder:
            compare_logits(arguments, Path(folder), row)
            if arguments.rounds > 0:
                compare_speed(arguments, Path(folder), row)
        rows.append(row)
    return rows


def main() -> None:
    arguments = parse_arguments()
    rows = measure(arguments)
    write_report(arguments, {"machine": describe_machine(arguments), "rows": [vars(row) for row in rows]})
    print(f"| architecture | {OURS} off | {RIVAL} off | KL | same first choice | prompt | {STREAMS} streams |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {' | '.join(row.cells())} |")
    for row in rows:
        for name, failure in row.failures.items():
            print(f"{row.architecture}: {name}: {failure}")


if __name__ == "__main__":
    main()
