"""Whether agents' time adds up: a real model, and tools made to take a given share of it, against what traces say.

Each turn the model answers freely; its answer is then taken for a call of a tool that burns CPU in a process of its
own, as long as makes its share of the turn what it is to be. Ends with status 1 when a limit is missed: 97 % of the
time accounted for, the share of tools within three points.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from engines import describe_machine, write_report

from treadle import SamplingParams
from treadle.agents.function_tool import tool
from treadle.agents.loop import Agent
from treadle.agents.trace import Trace, span, summarise
from treadle.engine.async_llm import AsyncLLM
from treadle.engine.completion import CompletionChunk
from treadle.models.tool_dialects import Content, ToolCall

LEAST_COVERAGE = 0.97
MOST_POINTS = 0.03
SPAN_ROUNDS = 20_000


@tool(in_process=True)
def burn(seconds: float) -> str:
    """Use the CPU for so many seconds."""
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        pass
    return "done"


class Driven:
    """The engine, whose answers are taken for calls as long as there are turns left."""

    def __init__(self, llm: AsyncLLM, num_turns: int, tool_share: float) -> None:
        self._llm = llm
        self._num_turns = num_turns
        # The last turn has no call, so that those before have to make up for it.
        self._ratio = tool_share / (1 - tool_share) * num_turns / max(1, num_turns - 1)
        self._num_asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def answer(self, *arguments: Any, **settings: Any) -> DrivenStream:
        self._num_asked += 1
        began = time.perf_counter()
        stream = await self._llm.answer(*arguments, **settings)
        return DrivenStream(stream, began, self._ratio if self._num_asked % self._num_turns else None)


class DrivenStream:
    def __init__(self, stream: Any, began: float, ratio: float | None) -> None:
        self._stream = stream
        self._began = began
        self._ratio = ratio

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> AsyncIterator[CompletionChunk]:
        return self

    async def __anext__(self) -> CompletionChunk:
        chunk: CompletionChunk = await anext(self._stream)
        if chunk.completion is None:
            return replace_parts(chunk, [])
        if self._ratio is None:
            return replace_parts(chunk, [Content("done")])
        seconds = self._ratio * (time.perf_counter() - self._began)
        return replace_parts(chunk, [ToolCall("burn", json.dumps({"seconds": seconds}))])


def replace_parts(chunk: CompletionChunk, parts: list[Any]) -> CompletionChunk:
    return CompletionChunk(chunk.text, chunk.token_ids, chunk.num_tokens, (), chunk.completion, chunk.index, parts)


async def run_tasks(arguments: argparse.Namespace) -> list[Trace]:
    params = SamplingParams(temperature=0, min_tokens=arguments.answer_tokens, max_tokens=arguments.answer_tokens)
    traces = []
    async with await AsyncLLM.load(arguments.model, threads=arguments.threads) as llm:
        engine: Any = Driven(llm, arguments.turns, arguments.share)
        async with Agent(engine, [burn], params=params, forces_calls=False) as agent:
            for index in range(arguments.tasks + 1):
                result = await agent.run(f"Task {index}: weave a story of {index} threads.")
                if result.error is not None:
                    raise result.error
                traces.append(result.trace)
    return traces[1:]  # the first one warms up


def span_microseconds() -> float:
    """What a span costs, at best."""
    best = float("inf")
    with Trace.open("cost", max_spans=10 * SPAN_ROUNDS):
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(SPAN_ROUNDS):
                with span("tool", "a", number=1):
                    pass
            best = min(best, time.perf_counter() - began)
    return best / SPAN_ROUNDS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--share", type=float, default=0.8, help="what tools are to take of the time")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--answer-tokens", type=int, default=24)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--trace", type=Path, help="where to add the traces")
    parser.add_argument("--out", type=Path, help="where to write the report")
    arguments = parser.parse_args()
    traces = asyncio.run(run_tasks(arguments))
    if arguments.trace is not None:
        for trace in traces:
            trace.write(arguments.trace)
    summary = summarise(traces)
    share, cost = summary.share("tools"), span_microseconds()
    is_close = abs(share - arguments.share) <= MOST_POINTS
    verdicts = {
        f"tools built to take {arguments.share:.0%} are reported as {share:.1%}": is_close,
        f"spans account for {summary.coverage:.2%} of the time": summary.coverage >= LEAST_COVERAGE,
    }
    for words, is_kept in verdicts.items():
        print(f"{'kept' if is_kept else 'MISSED'}: {words}")
    print(
        f"{summary.num_tasks} tasks, {summary.wall_seconds:.1f} s: "
        + ", ".join(f"{group} {summary.share(group):.1%}" for group in summary.groups)
    )
    print(f"CPU: {summary.tools['burn'].cpu_seconds:.2f} s of {summary.tools['burn'].wall_seconds:.2f} s in the tool")
    print(f"a span costs {cost:.1f} microseconds")
    report = {"shares": {group: summary.share(group) for group in summary.groups}, "coverage": summary.coverage}
    write_report(arguments, {"machine": describe_machine(arguments), **report, "span_microseconds": cost})
    sys.exit(not all(verdicts.values()))


if __name__ == "__main__":
    main()
