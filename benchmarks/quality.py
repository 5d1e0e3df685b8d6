"""Compares the predictions of Treadle and llama.cpp from the same file, over a few thousand tokens of real text.

Reports how often both would choose the same next token, how far their distributions diverge, and each perplexity. Both
round activations to eight bits, each in its own way; with --exact both are also held against llama.cpp on a copy of
the file with float32 weights, where nothing is rounded. TREADLE_ISA=avx2 (or another table's name) chooses Treadle's
kernels; all give the same bits, so they should give the same figures. With --kv-type q8_0 Treadle is held against
itself with f16 keys and values, too, which shows what that rounding alone changes. compare.py measures speed.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from engines import (
    EngineError,
    EngineProcess,
    add_common_arguments,
    describe_machine,
    pythons,
    write_report,
)
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.float_copy import write_float_copy
from treadle.models.gguf import ModelFile
from treadle.models.tokenizer import Tokenizer

REPOSITORY = Path(__file__).parents[1]
# Code and prose that come with every Python, and the prose of this repository.
TEXTS = [
    *(
        Path(sysconfig.get_path("stdlib")) / name
        for name in ("textwrap.py", "LICENSE.txt", "statistics.py", "json/decoder.py")
    ),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
OURS, EXACT, OURS_F16 = "treadle", "exact", "treadle f16"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--rival", default="llama.cpp", help="engine to compare with")
    parser.add_argument("--tokens", type=int, default=4096, help="how many predictions to compare at least")
    parser.add_argument("--window", type=int, default=512, help="tokens read from an empty cache at a time")
    parser.add_argument("--text", type=Path, nargs="*", help="text files to read instead of this repository's own")
    parser.add_argument("--kv-type", default="f16", help="how Treadle keeps keys and values: f16 or q8_0")
    parser.add_argument("--exact", action="store_true", help="compare both with unrounded activations, too; slow")
    return parser.parse_args()


def windows(arguments: argparse.Namespace) -> list[list[int]]:
    """Pieces of text, taken from every source in turn so that none dominates."""
    tokenizer = Tokenizer.from_metadata(ModelFile.open(arguments.model).metadata)
    sources = [path for path in arguments.text or TEXTS if path.is_file()]
    encoded = [tokenizer.encode(path.read_text(errors="replace")) for path in sources]
    pieces = [
        tokens[at : at + arguments.window]
        for at in range(0, max(map(len, encoded)), arguments.window)
        for tokens in encoded
        if at + arguments.window <= len(tokens)
    ]
    needed = -(-arguments.tokens // arguments.window)
    if len(pieces) < needed:
        sys.exit(f"the texts give {len(pieces) * arguments.window} tokens, {arguments.tokens} are wanted: add --text")
    return pieces[:needed]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def compare(some: NDArray[np.float32], reference: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Per position: equal choice, and the divergence from the reference's distribution."""
    q, p = log_softmax(some), log_softmax(reference)
    return {
        "agree": some.argmax(axis=-1) == reference.argmax(axis=-1),
        "divergence": (np.exp(p) * (p - q)).sum(axis=-1),
    }


def surprise(logits: NDArray[np.float32], tokens: list[int]) -> NDArray[np.float64]:
    """Minus the log-probability of each token that really follows."""
    return -log_softmax(logits)[np.arange(len(tokens) - 1), tokens[1:]]


class Measurement:
    """The engines under comparison, and what they predicted so far."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.engines: dict[str, EngineProcess] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.pairs: dict[tuple[str, str], list[dict[str, NDArray[Any]]]] = {}
        self.surprises: dict[str, list[NDArray[np.float64]]] = {}

    def start(self) -> None:
        rival = self.arguments.rival
        kv_type = self.arguments.kv_type
        self._load(OURS, OURS, self.arguments.model, kv_type=kv_type)
        if kv_type != "f16":
            self._load(OURS_F16, OURS, self.arguments.model)
        self._load(rival, rival, self.arguments.model)
        if self.arguments.exact:
            print("writing the float32 copy", file=sys.stderr)
            self._load(EXACT, rival, write_float_copy(self.arguments.model, self.folder / "exact.gguf"))
        references = [(OURS, rival), (OURS, OURS_F16), (OURS, EXACT), (OURS_F16, EXACT), (rival, EXACT)]
        self.pairs = {pair: [] for pair in references if self.engines.keys() >= set(pair)}

    def _load(self, name: str, engine: str, path: Path, **settings: str) -> None:
        self.engines[name] = EngineProcess(engine, pythons(self.arguments)[engine])
        self.facts[name] = self.engines[name].ask("load", path=str(path), threads=self.arguments.threads, **settings)

    def read(self, tokens: list[int]) -> None:
        logits = {}
        for name, engine in self.engines.items():
            path = self.folder / f"{name}.npy"
            engine.ask("logits_to_file", tokens=tokens, out=str(path))
            logits[name] = np.load(path)
            self.surprises.setdefault(name, []).append(surprise(logits[name], tokens))
        for (some, reference), parts in self.pairs.items():
            parts.append(compare(logits[some], logits[reference]))

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()

    def summary(self) -> dict[str, Any]:
        comparisons = []
        for (some, reference), parts in self.pairs.items():
            agree, divergence = (np.concatenate([part[key] for part in parts]) for key in ("agree", "divergence"))
            comparisons.append(
                {
                    "engine": some,
                    "reference": reference,
                    "predictions": len(agree),
                    "top1_agreement": float(agree.mean()),
                    "mean_divergence": float(divergence.mean()),
                    "median_divergence": float(np.median(divergence)),
                    "p99_divergence": float(np.quantile(divergence, 0.99)),
                }
            )
        perplexities = {name: float(np.exp(np.concatenate(parts).mean())) for name, parts in self.surprises.items()}
        return {"engines": self.facts, "comparisons": comparisons, "perplexity": perplexities}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    pieces = windows(arguments)
    with tempfile.TemporaryDirectory() as folder:
        measurement = Measurement(arguments, Path(folder))
        try:
            measurement.start()
            for number, tokens in enumerate(pieces, start=1):
                print(f"window {number} of {len(pieces)}", file=sys.stderr)
                measurement.read(tokens)
        except EngineError as error:
            sys.exit(f"an engine could not run: {error}")
        finally:
            measurement.close()
    return measurement.summary()


def main() -> None:
    arguments = parse_arguments()
    result = measure(arguments)
    write_report(arguments, {"machine": describe_machine(arguments), **result})
    print("| engine | held against | predictions | same first choice | KL mean | KL median | KL p99 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in result["comparisons"]:
        numbers = " | ".join(f"{row[f'{key}_divergence']:.1e}" for key in ("mean", "median", "p99"))
        print(
            f"| {row['engine']} | {row['reference']} | {row['predictions']} | {row['top1_agreement']:.2%} | {numbers} |"
        )
    print()
    print(f"kernels of {OURS}: {result['engines'][OURS]['build']}")
    print("perplexity: " + ", ".join(f"{name} {value:.4f}" for name, value in result["perplexity"].items()))


if __name__ == "__main__":
    main()
