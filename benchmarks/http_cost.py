"""What HTTP costs: streams at once, and the first token of one request, through the server and in process.

Both sides take turns on the same file, threads and prompts. The client runs in this process, the server in its own, so
what the client takes from the cores counts against the server; it is reported. Ends with status 1 when a limit is
missed: 95 % of the throughput, while all streams run and from the first request to the last token, and 5 ms to the
first token.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agent_load import FEW_TOKENS, text_of
from engines import describe_machine, write_report
from serving import compare, free_port
from targets import InProcess, Target, treadle_server

LEAST_SHARE = 0.95
MOST_ADDED_SECONDS = 0.005
PROMPT_WORDS = 60
Pieces = list[tuple[float, int]]  # when each came, and how many characters


@dataclass(frozen=True)
class Streams:
    """So many answers at once, then so many requests one after the other for their first tokens."""

    streams: int
    answer_tokens: int
    requests: int

    async def run(self, target: Target, round_index: int) -> dict[str, Any]:
        cpu_seconds, began = time.process_time(), time.perf_counter()
        answers = await asyncio.gather(
            *(self._answer(target, f"{round_index} {index}", self.answer_tokens) for index in range(self.streams))
        )
        seconds = time.perf_counter() - began
        cpu_share = (time.process_time() - cpu_seconds) / seconds
        first_seconds = []
        for index in range(self.requests):
            asked = time.perf_counter()
            answer = await self._answer(target, f"{round_index} alone {index}", FEW_TOKENS)
            first_seconds.append(answer[0][0] - asked)
        return {
            "tokens_per_second": steady_rate(answers, self.answer_tokens),
            "tokens_per_second_with_prompts": self.streams * self.answer_tokens / seconds,
            "first_token_seconds": median(first_seconds),
            "cores_of_this_process": cpu_share,
        }

    async def _answer(self, target: Target, seed: str, num_tokens: int) -> Pieces:
        pieces: Pieces = []
        messages = [{"role": "user", "content": text_of(PROMPT_WORDS, random.Random(seed))}]
        await target.ask(messages, num_tokens, lambda text: pieces.append((time.perf_counter(), len(text))))
        return pieces


def steady_rate(answers: Sequence[Pieces], num_tokens: int) -> float:
    """Tokens per second while every answer is under way.

    A piece may be several tokens. How many is told by its length: both sides write the same greedy answers.
    """
    begin, end = max(pieces[0][0] for pieces in answers), min(pieces[-1][0] for pieces in answers)
    if begin >= end:
        raise RuntimeError("an answer ended before the last had begun: ask for more tokens")
    pieces = [piece for answer in answers for piece in answer]
    share = sum(length for at, length in pieces if begin < at <= end) / sum(length for _, length in pieces)
    return len(answers) * num_tokens * share / (end - begin)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of both engines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--answer-tokens", type=int, default=256)
    parser.add_argument("--requests", type=int, default=10, help="for the first token, in each round")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--out", type=Path, help="also write everything measured to this JSON file")
    return parser.parse_args()


def verdicts(results: dict[str, Any]) -> tuple[list[str], bool]:
    """What was found in words, and whether all limits were kept."""
    for name, result in results.items():
        if "failure" in result:
            return [f"{name} failed: {result['failure']}"], False
    ours, server = (result["rounds"] for result in results.values())

    def both(key: str) -> tuple[float, float]:
        return median(each[key] for each in ours), median(each[key] for each in server)

    def share(key: str) -> float:
        return median(theirs[key] / mine[key] for mine, theirs in zip(ours, server, strict=True))

    key = "first_token_seconds"
    added = median(theirs[key] - mine[key] for mine, theirs in zip(ours, server, strict=True))
    local, remote = both("tokens_per_second")
    local_first, remote_first = both("first_token_seconds")
    whole = share("tokens_per_second_with_prompts")
    is_fast, is_quick = share("tokens_per_second") >= LEAST_SHARE, added <= MOST_ADDED_SECONDS
    lines = [
        f"{mark(is_fast)}: {remote:.0f} tok/s through the server, {local:.0f} in process while all streams run: "
        f"{share('tokens_per_second'):.1%} (at least {LEAST_SHARE:.0%})",
        f"{mark(is_quick)}: first token after {1000 * remote_first:.1f} ms, {1000 * local_first:.1f} ms in process: "
        f"{1000 * added:+.2f} ms (at most {1000 * MOST_ADDED_SECONDS:.0f} ms)",
        f"{mark(whole >= LEAST_SHARE)}: with the prompts before and the stragglers after: {whole:.1%}",
        f"the client took {both('cores_of_this_process')[1]:.1%} of a core",
    ]
    return lines, is_fast and is_quick and whole >= LEAST_SHARE


def mark(is_kept: bool) -> str:
    return "kept" if is_kept else "MISSED"


def main() -> None:
    arguments = parse_arguments()
    load = Streams(arguments.streams, arguments.answer_tokens, arguments.requests)
    threads, context = arguments.threads, arguments.context
    targets: list[Target] = [
        InProcess(arguments.model, threads=threads, context=context),
        treadle_server(arguments.model, free_port(), threads, context, "--disk-cache", "0"),
    ]
    results = asyncio.run(compare(targets, arguments.rounds, load.run))
    write_report(arguments, {"machine": describe_machine(arguments), "results": results})
    lines, is_kept = verdicts(results)
    print("\n".join(lines))
    sys.exit(not is_kept)


if __name__ == "__main__":
    main()
