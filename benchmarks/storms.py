"""Storms a `treadle serve` with what a server in production meets, and says of each demand whether it was kept.

crowd: many clients at once, for a minute. leave: clients that disconnect at random moments. kill: SIGKILL under load,
then a restart. bodies: hostile requests at full size. The client runs on the same cores. Ends with status 1 when a
demand was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from engines import describe_machine, write_report
from serving import free_port, say
from storm.bodies import bodies
from storm.crowd import crowd
from storm.kill import kill
from storm.leave import leave
from storm.server import StormedServer, Verdict

MAX_BODY_BYTES = 8 << 20  # the server's default
STORMS = ("crowd", "leave", "kill", "bodies")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file; a small one makes the hardest storm")
    parser.add_argument("--storms", nargs="+", choices=STORMS, default=STORMS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--clients", type=int, default=256, help="of the crowd")
    parser.add_argument("--seconds", type=float, default=60, help="of the crowd, after a quarter of it to warm up")
    parser.add_argument("--leavers", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=8, help="known ones before each kill")
    parser.add_argument("--out", type=Path, help="also write everything measured to this JSON file")
    return parser.parse_args()


async def run(arguments: argparse.Namespace) -> list[Verdict]:
    """Every storm meets a server of its own."""
    storms: dict[str, Callable[[StormedServer], Awaitable[list[Verdict]]]] = {
        "crowd": lambda server: crowd(server, arguments.clients, arguments.seconds),
        "leave": lambda server: leave(server, arguments.leavers),
        "kill": lambda server: kill(server, arguments.kills, arguments.prompts),
        "bodies": lambda server: bodies(server, MAX_BODY_BYTES),
    }
    options = ["--threads", str(arguments.threads), "--context", str(arguments.context)]
    verdicts: list[Verdict] = []
    for name in arguments.storms:
        say(f"{name}: starting")
        with tempfile.TemporaryDirectory() as home:
            async with StormedServer(arguments.model, Path(home), free_port(), *options) as server:
                found = await storms[name](server)
        for verdict in found:
            print(text_of_verdict(verdict), flush=True)
        verdicts += found
    return verdicts


def text_of_verdict(verdict: Verdict) -> str:
    figures = "\n".join(
        f"    {name.replace('_', ' ')}: {figure_text(value)}" for name, value in verdict.figures.items()
    )
    return f"{'kept' if verdict.is_kept else 'MISSED'}: {verdict.demand}\n{figures}"


def figure_text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    arguments = parse_arguments()
    verdicts = asyncio.run(run(arguments))
    report = {
        "machine": describe_machine(arguments),
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
    write_report(arguments, report)
    sys.exit(not all(verdict.is_kept for verdict in verdicts))


if __name__ == "__main__":
    main()
