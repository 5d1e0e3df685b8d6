"""Times how fast an embedding model turns texts into vectors, next to llama.cpp, and how alike the vectors are.

Treadle is asked as a program would ask it, through `LLM.embed`; of llama.cpp only the calls that compute are timed,
each with as many texts as fit. Both get the same token ids, so no tokenizer counts.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import Any

import numpy as np
from comparison import Comparison, Settings, Work
from engines import OURS, add_common_arguments, describe_machine, pythons, write_report
from results import heading, ratio_text, speed_text

RIVALS = ["llama.cpp"]
LENGTHS = [16, 64, 512]
CALL_TOKENS = 8192
NUM_COMPARED = 16  # texts of each length


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--rivals", nargs="*", default=RIVALS, choices=RIVALS, help="engines to compare with")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="tokens of each text, at most")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count, after one that warms up")
    parser.add_argument("--turn-seconds", type=float, default=0.5, help="calls of a turn are repeated for so long")
    parser.add_argument("--minutes", type=float, default=30, help="no work begins later")
    arguments = parser.parse_args()
    if not arguments.model.is_file():
        parser.error(f"there is no file {arguments.model}")
    return arguments


def cosines(comparison: Comparison, work: Work) -> dict[str, list[float]]:
    """Lowest and median cosine of each rival's vectors with ours."""
    texts = comparison.texts(work, "compared")[:NUM_COMPARED]
    vectors = {
        name: np.array(engine.ask("call", method="vectors", texts=texts)) for name, engine in comparison.engines.items()
    }
    ours = vectors.pop(OURS)
    found = {name: np.sum(ours * theirs, axis=1).tolist() for name, theirs in vectors.items()}
    return {name: [min(values), median(values)] for name, values in found.items()}


def markdown(report: dict[str, Any]) -> str:
    names = list(report["engines"])
    rivals = [name for name in names if name != OURS]
    header = ["texts", *(f"{name}, texts/s" for name in names), *(f"{name}, tokens/s" for name in names)]
    header += [f"{OURS} / {name}" for name in rivals] + [f"cosine with {name}, lowest" for name in rivals]
    rows = [header, ["---"] * len(header)]
    for cell in report["cells"]:
        length = cell["context"]
        per_text = {name: [speed / length for speed in speeds] for name, speeds in cell["tokens_per_second"].items()}
        row = [f"of {length} tokens", *(speed_text({**cell, "tokens_per_second": per_text}, name) for name in names)]
        row += [speed_text(cell, name) for name in names] + [ratio_text(cell, OURS, name) for name in rivals]
        rows.append(row + [f"{cell['cosines'][name][0]:.5f}" if name in cell["cosines"] else "" for name in rivals])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    machine = report["machine"]
    notes = [f"{name}: {facts['version']} ({facts['build'].strip(' |')})." for name, facts in report["engines"].items()]
    notes += [f"{name} could not run: {reason}." for name, reason in report["failures"].items()]
    notes += [f"{report['rounds']} rounds; SHA-256 of the file {machine['model_sha256'][:16]}."]
    notes += [f"Command: `{machine['command']}`"]
    return "\n\n".join([heading(report), table, "\n".join(f"- {note}" for note in notes)])


def main() -> None:
    arguments = parse_arguments()
    interpreters = pythons(arguments)
    settings = Settings(
        threads=arguments.threads,
        steps=0,
        turn_seconds=arguments.turn_seconds,
        rounds=arguments.rounds,
        max_seconds=arguments.minutes * 60,
    )
    works = [Work("texts", max(1, CALL_TOKENS // length), length) for length in arguments.lengths]
    comparison = Comparison(arguments.model, settings, works)
    try:
        comparison.start({name: interpreters[name] for name in (OURS, *arguments.rivals)})
        comparison.run()
        found = [cosines(comparison, work) for work in works]
    finally:
        comparison.close()
    report = {"machine": describe_machine(arguments), **comparison.report()}
    for cell, values in zip(report["cells"], found, strict=True):
        cell["cosines"] = values
    write_report(arguments, report)
    print(markdown(report))
    if OURS in comparison.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
