"""Times Treadle against its rivals: same file, same threads, rounds interleaved, medians and ratios.

Speed of prompts, of one stream and of several, with what the machine allows measured in the same rounds; quality.py
says whether the answers are as good. An engine that cannot run is listed with its reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from chart import draw_chart
from comparison import Comparison, Settings, Work
from engines import LIMITS, OURS, RIVALS, add_common_arguments, describe_machine, pythons, write_report
from results import markdown

PROMPTS = [128, 512, 2048, 4096]
STREAMS = [1, 2, 4, 8, 16]
CONTEXTS = [128, 1024]


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--rivals", nargs="*", default=RIVALS, choices=RIVALS, help="engines to compare with")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds that count, after one that warms up")
    parser.add_argument("--prompt", type=positive, nargs="*", default=PROMPTS, help="prompt lengths to time")
    parser.add_argument("--streams", type=positive, nargs="*", default=STREAMS, help="numbers of streams to decode")
    parser.add_argument("--context", type=positive, nargs="*", default=CONTEXTS, help="tokens each stream holds before")
    parser.add_argument("--steps", type=positive, default=8, help="tokens decoded in each stream by one call")
    parser.add_argument("--turn-seconds", type=float, default=0.5, help="calls of a turn are repeated for so long")
    parser.add_argument("--minutes", type=float, default=30, help="no work begins later; what is missing is named")
    arguments = parser.parse_args(given)
    if not arguments.model.is_file():
        parser.error(f"there is no file {arguments.model}")
    return arguments


def works(arguments: argparse.Namespace) -> list[Work]:
    prompts = [Work("prompt", 1, length) for length in arguments.prompt]
    decodes = [Work("decode", streams, context) for context in arguments.context for streams in arguments.streams]
    return prompts + decodes


def main() -> None:
    arguments = parse_arguments()
    interpreters = pythons(arguments)
    settings = Settings(
        threads=arguments.threads,
        steps=arguments.steps,
        turn_seconds=arguments.turn_seconds,
        rounds=arguments.rounds,
        max_seconds=arguments.minutes * 60,
    )
    comparison = Comparison(arguments.model, settings, works(arguments))
    try:
        comparison.start({name: interpreters[name] for name in (LIMITS, OURS, *arguments.rivals)})
        comparison.run()
    finally:
        comparison.close()
    report = {"machine": describe_machine(arguments), **comparison.report()}
    write_report(arguments, report)
    if arguments.out:
        chart = arguments.out.with_suffix(".svg")
        chart.write_text(draw_chart(report))
        print(f"{arguments.out} and {chart} written", file=sys.stderr)
    print(markdown(report))
    if OURS in comparison.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
