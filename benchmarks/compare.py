"""Times Treadle against its rivals: same file, same threads, rounds interleaved, medians and ratios.

Speed of prompts, of one stream and of several, with what the machine allows measured in the same rounds; quality.py
says whether the answers are as good. An engine that cannot run is listed with its reason.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chart import draw_chart
from comparison import Comparison, Work
from engines import LIMITS, OURS, RIVALS, add_common_arguments, describe_machine, pythons, write_report
from results import markdown

PROMPTS = [128, 512, 2048, 4096]
STREAMS = [1, 2, 4, 8, 16]
CONTEXTS = [128, 1024]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--rivals", nargs="*", default=RIVALS, choices=RIVALS, help="engines to compare with")
    parser.add_argument("--rounds", type=int, help="rounds that count; 5, with --quick 3")
    parser.add_argument("--prompt", type=int, nargs="*", help=f"prompt lengths to time; {PROMPTS}")
    parser.add_argument("--streams", type=int, nargs="*", help=f"numbers of streams to decode; {STREAMS}")
    parser.add_argument("--context", type=int, nargs="*", help=f"tokens each stream holds before; {CONTEXTS}")
    parser.add_argument("--steps", type=int, default=16, help="tokens decoded in each stream")
    parser.add_argument("--quick", action="store_true", help="the main works only: minutes instead of an hour")
    arguments = parser.parse_args()
    quick = arguments.quick
    defaults = {
        "rounds": 3 if quick else 5,
        "prompt": [512, 4096] if quick else PROMPTS,
        "streams": [1, 4, 8, 16] if quick else STREAMS,
        "context": [128] if quick else CONTEXTS,
    }
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def main() -> None:
    arguments = parse_arguments()
    works = [Work("prompt", 1, length) for length in arguments.prompt]
    works += [Work("decode", streams, context) for context in arguments.context for streams in arguments.streams]
    comparison = Comparison(arguments.model, arguments.threads, arguments.steps, works)
    interpreters = pythons(arguments)
    try:
        comparison.start({name: interpreters[name] for name in (LIMITS, OURS, *arguments.rivals)})
        comparison.run(arguments.rounds)
    finally:
        comparison.close()
    report = {"machine": describe_machine(arguments), **comparison.report()}
    write_report(arguments, report)
    if arguments.out:
        chart: Path = arguments.out.with_suffix(".svg")
        chart.write_text(draw_chart(report))
        print(f"{arguments.out} and {chart} written", file=sys.stderr)
    print(markdown(report))
    if OURS in comparison.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
