"""Compares the predictions of Treadle and llama.cpp from the same file, over a few thousand tokens of real text.

Reports how often both would choose the same next token, how far their distributions diverge, and each perplexity;
compare.py measures speed.
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

from treadle.models.gguf import ModelFile
from treadle.models.tokenizer import Tokenizer

REPOSITORY = Path(__file__).parents[1]
# Prose of this repository, code and prose that comes with every Python.
TEXTS = [
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *(Path(sysconfig.get_path("stdlib")) / name for name in ("LICENSE.txt", "textwrap.py", "statistics.py")),
]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--rival", default="llama.cpp", help="engine to compare with")
    parser.add_argument("--tokens", type=int, default=4096, help="how many predictions to compare at least")
    parser.add_argument("--window", type=int, default=512, help="tokens read from an empty cache at a time")
    parser.add_argument("--text", type=Path, nargs="*", help="text files to read instead of this repository's own")
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


def compare_window(tokens: list[int], ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> dict[str, Any]:
    """Per position: equal choice, divergence from the rival, and how much the real next token surprises each."""
    q, p = log_softmax(ours), log_softmax(theirs)
    following = np.array(tokens[1:])
    rows = np.arange(len(following))
    return {
        "agree": ours.argmax(axis=-1) == theirs.argmax(axis=-1),
        "divergence": (np.exp(p) * (p - q)).sum(axis=-1),
        "our_surprise": -q[rows, following],
        "their_surprise": -p[rows, following],
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    engines, facts, parts = {}, {}, []
    try:
        for name in ("treadle", arguments.rival):
            engines[name] = EngineProcess(name, pythons(arguments)[name])
            settings = {"threads": arguments.threads, "max_tokens": arguments.window, "streams": 1}
            facts[name] = engines[name].ask("load", path=str(arguments.model), **settings)
        with tempfile.TemporaryDirectory() as folder:
            pieces = windows(arguments)
            for number, tokens in enumerate(pieces, start=1):
                print(f"window {number} of {len(pieces)}", file=sys.stderr)
                files = {name: f"{folder}/{name}.npy" for name in engines}
                for name, engine in engines.items():
                    engine.ask("logits_to_file", tokens=tokens, out=files[name])
                parts.append(compare_window(tokens, *(np.load(files[name]) for name in engines)))
    except EngineError as error:
        sys.exit(f"{name} could not run: {error}")
    finally:
        for engine in engines.values():
            engine.close()
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return {
        "engines": facts,
        "predictions": len(joined["agree"]),
        "top1_agreement": float(joined["agree"].mean()),
        "mean_divergence": float(joined["divergence"].mean()),
        "p99_divergence": float(np.quantile(joined["divergence"], 0.99)),
        "treadle_perplexity": float(np.exp(joined["our_surprise"].mean())),
        "rival_perplexity": float(np.exp(joined["their_surprise"].mean())),
    }


def main() -> None:
    arguments = parse_arguments()
    result = measure(arguments)
    write_report(arguments, {"machine": describe_machine(arguments), **result})
    print(f"treadle against {arguments.rival}, {result['predictions']} predictions of {arguments.model.name}")
    print(f"same most likely token   {result['top1_agreement']:.2%}")
    print(
        f"KL divergence            mean {result['mean_divergence']:.2e}, 99th percentile {result['p99_divergence']:.2e}"
    )
    print(
        f"perplexity               treadle {result['treadle_perplexity']:.4f}, "
        f"{arguments.rival} {result['rival_perplexity']:.4f}"
    )


if __name__ == "__main__":
    main()
