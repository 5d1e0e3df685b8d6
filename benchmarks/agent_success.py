"""Has an agent solve twenty small tasks, over Treadle's core and over llama.cpp's server: how many come out right?

The same loop, tools, instructions and greedy sampling for both, each answer held to be a call. The engines take turns
task by task; each task starts in a folder of its own and is checked by its answer and by what is in the folder then.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from agent_tasks import KINDS, AgentTask, all_tasks, find_office, find_person, find_team
from engines import add_common_arguments, describe_machine, write_report
from targets import ServerProcess, llama_server

from treadle.agents.budget import Budget
from treadle.agents.loop import Agent
from treadle.agents.sandbox import Sandbox
from treadle.agents.tools.code import python_tool
from treadle.agents.tools.files import file_tools
from treadle.agents.tools.query import query_tools
from treadle.agents.tools.workspace import Workspace
from treadle.engine.contract import AsyncEngine
from treadle.engine.open_engine import open_engine
from treadle.engine.sampling import SamplingParams

OURS, RIVAL = "treadle", "llama.cpp"
CONTEXT = 8192
Figures = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--llama-server", metavar="PYTHON", help="also over llama.cpp; an interpreter with xllamacpp")
    parser.add_argument("--only", nargs="*", default=[], metavar="TASK", help="names or kinds of tasks")
    parser.add_argument("--max-turns", type=int, default=8, help="answers of the model for each task")
    parser.add_argument("--answer-tokens", type=int, default=1024, help="the most in an answer of the model")
    parser.add_argument("--show", action="store_true", help="print the conversations")
    return parser.parse_args()


async def solve(engine: AsyncEngine, task: AgentTask, arguments: argparse.Namespace) -> Figures:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="task-")))
        task.lay_out(folder)
        tools = await open_tools(task.kind, folder, stack)
        budget = Budget(max_turns=arguments.max_turns, max_seconds=600)
        params = SamplingParams(temperature=0, max_tokens=arguments.answer_tokens)
        agent = Agent(engine, tools, budget=budget, params=params, forces_calls=True)
        await stack.enter_async_context(agent)
        began = time.perf_counter()
        result = await agent.run(task.text)
        figures = {
            "task": task.name,
            "kind": task.kind,
            "is_right": task.is_right(result.answer, folder),
            "end": result.end,
            "answer": result.answer[:500],
            "error": None if result.error is None else str(result.error)[:500],
            "turns": result.usage.turns,
            "calls": result.usage.calls,
            "seconds": time.perf_counter() - began,
        }
        if arguments.show:
            for message in result.messages:
                print(f"    {message['role']}: {message.get('content')!r} {message.get('tool_calls', '')}")
        return figures


async def open_tools(kind: str, folder: Path, stack: AsyncExitStack) -> list[Any]:
    """The tools that fit a kind of task, as somebody would choose them."""
    if kind == "lookup":
        return [find_person, find_team, find_office]
    if kind == "code":
        sandbox = await Sandbox.open(workspace=folder)
        stack.push_async_callback(sandbox.close)
        return [python_tool(sandbox)]
    workspace = Workspace(folder)
    stack.callback(workspace.close)
    return query_tools(workspace) if kind == "table" else file_tools(workspace)


async def compare(arguments: argparse.Namespace) -> dict[str, list[Figures]]:
    tasks = [each for each in all_tasks() if not arguments.only or {each.name, each.kind} & set(arguments.only)]
    results: dict[str, list[Figures]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        engines = {OURS: await open_engine(str(arguments.model), threads=arguments.threads, context=CONTEXT)}
        stack.push_async_callback(engines[OURS].close)
        server: ServerProcess | None = None
        if arguments.llama_server:
            server = llama_server(arguments.llama_server, arguments.model, arguments.threads, 1, CONTEXT)
            stack.push_async_callback(server.close)
            await server.start()
            engines[RIVAL] = await open_engine(f"{server.url}/v1")
            stack.push_async_callback(engines[RIVAL].close)
            server.pause()
        for task in tasks:
            for name, engine in engines.items():
                is_rival = name == RIVAL and server is not None
                figures = await (
                    _awake(server, solve(engine, task, arguments)) if is_rival else solve(engine, task, arguments)
                )
                results[name].append(figures)
                print(f"{task.kind} / {task.name}, {name}: {brief(figures)}", file=sys.stderr, flush=True)
    return results


async def _awake(server: ServerProcess | None, work: Awaitable[Figures]) -> Figures:
    assert server is not None
    server.resume()
    try:
        return await work
    finally:
        server.pause()


def brief(figures: Figures) -> str:
    verdict = "right" if figures["is_right"] else "wrong"
    said = figures["error"] or figures["answer"]
    return f"{verdict}, {figures['end']} after {figures['turns']} turns, {figures['seconds']:.1f} s: {said[:100]!r}"


def print_table(results: dict[str, list[Figures]]) -> None:
    print("| tasks | " + " | ".join(results) + " |")
    print("| --- |" + " --- |" * len(results))
    rows: list[tuple[str, Callable[[Figures], bool]]] = [
        (kind, lambda each, kind=kind: each["kind"] == kind) for kind in KINDS
    ]
    for title, belongs in [*rows, ("**all**", lambda _: True)]:
        chosen = {name: [each for each in figures if belongs(each)] for name, figures in results.items()}
        if any(chosen.values()):
            cells = (f"{sum(each['is_right'] for each in figures)} of {len(figures)}" for figures in chosen.values())
            print(f"| {title} | " + " | ".join(cells) + " |")
    for name, figures in results.items():
        turns, seconds = (sum(each[key] for each in figures) for key in ("turns", "seconds"))
        print(f"{name}: {turns} turns in {seconds:.0f} s")


def main() -> None:
    arguments = parse_arguments()
    results = asyncio.run(compare(arguments))
    write_report(arguments, {"machine": describe_machine(arguments), "tasks": results})
    print_table(results)


if __name__ == "__main__":
    main()
