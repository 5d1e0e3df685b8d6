"""Puts the load of agents on Treadle and on servers: same file, same threads, rounds interleaved, medians and ratios.

Without a scenario, AGENTS agents share a system prompt and take TURNS turns each. --interference measures what a long
prompt costs the answers beside it, --restart the first token of a known prompt after a restart, --distinct the memory
that many different prompts leave behind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from agent_load import AgentLoad, Interference, take_turn
from engines import describe_machine, write_report
from memory_load import measure_distinct, measure_restart
from targets import HttpTarget, InProcess, Target, llama_server, treadle_server, vllm_server

Figures = dict[str, Any]
CONTEXT = 8192


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every engine")
    parser.add_argument("--out", type=Path, help="also write everything measured to this JSON file")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    target = parser.add_argument_group("what to measure beside Treadle as a library")
    target.add_argument("--llama-server", metavar="PYTHON", help="llama.cpp's server; an interpreter with xllamacpp")
    target.add_argument("--vllm", metavar="PYTHON", help="vLLM's server; an interpreter that has vllm")
    target.add_argument("--http", action="store_true", help="Treadle through its own server")
    target.add_argument("--url", action="append", default=[], metavar="NAME=URL", help="a server that runs already")
    target.add_argument("--url-model", default="default", help="the model's name on these servers")
    target.add_argument("--not-in-process", action="store_true", help="leave out Treadle as a library")
    load = parser.add_argument_group("the load")
    load.add_argument("--agents", type=int, default=8)
    load.add_argument("--turns", type=int, default=3)
    load.add_argument("--system-words", type=int, default=1150, help="about as many tokens")
    load.add_argument("--result-words", type=int, default=90, help="of a tool's result, before each turn")
    load.add_argument("--answer-tokens", type=int, default=48)
    load.add_argument("--context", type=int, default=CONTEXT, help="of every engine, for each request")
    load.add_argument("--memory", help="of Treadle as a library, such as 2GiB")
    scenario = parser.add_argument_group("other scenarios").add_mutually_exclusive_group()
    scenario.add_argument("--interference", action="store_true", help="4 answers and a prompt of 4,000 tokens")
    scenario.add_argument("--restart", action="store_true", help="a known prompt of 2,000 tokens after a restart")
    scenario.add_argument("--distinct", type=int, metavar="PROMPTS", help="memory over so many different prompts")
    return parser.parse_args()


def make_targets(arguments: argparse.Namespace) -> list[Target]:
    model, threads, context = arguments.model, arguments.threads, arguments.context
    targets: list[Target] = []
    if not arguments.not_in_process:
        targets.append(InProcess(model, threads=threads, context=context, memory=arguments.memory))
    if arguments.http:
        targets.append(treadle_server(model, free_port(), threads, context))
    if arguments.llama_server:
        targets.append(llama_server(arguments.llama_server, model, threads, arguments.agents, context))
    if arguments.vllm:
        targets.append(vllm_server(arguments.vllm, model, free_port(), threads, context))
    for choice in arguments.url:
        name, _, url = choice.partition("=")
        targets.append(HttpTarget(name, url, arguments.url_model))
    return targets


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def compare(
    targets: list[Target], rounds: int, run: Callable[[Target, int], Awaitable[Figures]]
) -> dict[str, Any]:
    """Run the load on each target in turn, round after round; one that fails is reported and left out from there."""
    results: dict[str, Any] = {target.name: {"rounds": []} for target in targets}
    started: list[Target] = []
    try:
        for target in targets:
            say(f"{target.name}: starting")
            started.append(target)
            await guarded(target, started, results, partial(start, target))
            target.pause()
        for round_index in range(rounds):
            for target in list(started):
                target.resume()
                figures = await guarded(target, started, results, partial(run, target, round_index))
                target.pause()
                if figures is not None:
                    results[target.name]["rounds"].append(figures)
                    say(f"round {round_index + 1} of {rounds}, {target.name}: {brief(figures)}")
        for target in started:
            results[target.name]["facts"] = target.facts()
    finally:
        for target in targets:
            await target.close()
    return results


async def start(target: Target) -> None:
    """Start it and ask it once: what a first request pays for, such as loading, is not part of the load."""
    await target.start()
    await take_turn(target, [{"role": "user", "content": "Hello."}], 4)


async def guarded(
    target: Target, started: list[Target], results: dict[str, Any], work: Callable[[], Awaitable[Any]]
) -> Any:
    try:
        return await work()
    except Exception as error:  # whatever stops an engine is a result of the comparison
        started.remove(target)
        results[target.name]["failure"] = f"{type(error).__name__}: {error}"
        say(f"{target.name} failed: {type(error).__name__}: {error}")


def brief(figures: Figures) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in figures.items() if isinstance(value, float))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def markdown(results: dict[str, Any]) -> str:
    """Medians over the rounds, and the ratio of the first target to each other within a round."""
    names = [name for name in results if results[name]["rounds"]]
    if not names:
        return failures(results)
    ours, rivals = names[0], names[1:]
    lines = [["median of the rounds", *names, *(f"{ours} / {name}" for name in rivals)]]
    lines.append(["---"] * len(lines[0]))
    for key, value in results[ours]["rounds"][0].items():
        if value is None:
            continue
        values = {name: [each[key] for each in results[name]["rounds"]] for name in names}
        row = [key.replace("_", " "), *(f"{median(values[name]):.4g}" for name in names)]
        row += [
            f"{median(a / b if b else 0 for a, b in zip(values[ours], values[name], strict=True)):.2f}x"
            for name in rivals
        ]
        lines.append(row)
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = [f"- {name}: {fact_text(results[name].get('facts', {}))}" for name in names]
    return "\n".join([table, "", *notes, failures(results)])


def failures(results: dict[str, Any]) -> str:
    return "\n".join(f"- {name} failed: {result['failure']}" for name, result in results.items() if "failure" in result)


def fact_text(facts: Figures) -> str:
    shown = {key: f"{value / 1e6:.0f} MB" if key == "resident_bytes" else value for key, value in facts.items()}
    shown = {key: f"{value:.1%}" if isinstance(value, float) else value for key, value in shown.items()}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shown.items())


def ratio_text(mine: list[float], theirs: list[float]) -> str:
    pairs = zip(mine, theirs, strict=False)
    return f"{median(a / b for a, b in pairs):.2f}x" if all(theirs) else ""


def main() -> None:
    arguments = parse_arguments()
    if arguments.restart:
        results = measure_restart(arguments.model, arguments.threads, arguments.rounds, say)
    elif arguments.distinct:
        results = measure_distinct(arguments.model, arguments.threads, arguments.distinct, arguments.memory, say)
    else:
        load: AgentLoad | Interference
        if arguments.interference:
            load = Interference(streams=4, prompt_words=3900, quiet_pieces=64, answer_tokens=3000)
        else:
            load = AgentLoad(
                agents=arguments.agents,
                turns=arguments.turns,
                system_words=arguments.system_words,
                result_words=arguments.result_words,
                answer_tokens=arguments.answer_tokens,
            )
        results = asyncio.run(compare(make_targets(arguments), arguments.rounds, load.run))
    write_report(arguments, {"machine": describe_machine(arguments), "results": results})
    print(markdown(results))


if __name__ == "__main__":
    main()
