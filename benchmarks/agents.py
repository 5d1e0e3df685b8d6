"""Puts agents whose tools compute on the cores that compute their model: what does sharing them by a schedule give?

AGENTS agents do one task at a time. Each of its TURNS turns asks the model and then runs a tool, a process that takes
0.3 to 1 second of CPU time. Measured is Treadle with its schedule ("adaptive") and with that and only some of the tasks
at a time ("capped"), as many threads as planned and no budget for tools ("fixed"), no schedule but workers that sit out
where a core is busy ("unscheduled"), and llama.cpp's server. Rounds are interleaved, ratios taken within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol

from agent_load import text_of
from engines import describe_machine, write_report
from serving import compare, markdown
from targets import InProcess, Messages, ServerProcess, Target, llama_server

from treadle.agents.co_schedule import CoSchedule
from treadle.agents.gate import ToolGate
from treadle.agents.sandbox import Sandbox

Figures = dict[str, Any]
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
POLICIES = ("adaptive", "capped", "fixed", "unscheduled")
# Burns CPU time, not time: a tool that has to wait for its core takes longer.
BURN = "import time\nwhile time.process_time() < {seconds}: sum(range(1000))\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every engine")
    parser.add_argument("--out", type=Path, help="also write everything measured to this JSON file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policies", nargs="*", default=["adaptive", "fixed"], choices=POLICIES)
    parser.add_argument("--llama-server", metavar="PYTHON", help="llama.cpp's server; an interpreter with xllamacpp")
    parser.add_argument("--max-tasks", type=int, default=6, help="tasks at a time under the policy capped")
    parser.add_argument("--plain", action="store_true", help="run tools as plain processes, not in sandboxes")
    load = parser.add_argument_group("the load")
    load.add_argument("--agents", type=int, default=8)
    load.add_argument("--tasks", type=int, default=1, help="of each agent, one after the other")
    load.add_argument("--turns", type=int, default=3)
    load.add_argument("--system-words", type=int, default=300, help="about as many tokens, the same for all agents")
    load.add_argument("--result-words", type=int, default=60, help="of a tool's result, before each turn")
    load.add_argument("--answer-tokens", type=int, nargs=2, default=[64, 200], metavar=("LEAST", "MOST"))
    load.add_argument("--tool-seconds", type=float, nargs=2, default=[0.3, 1.0], metavar=("LEAST", "MOST"))
    load.add_argument("--context", type=int, default=4096)
    return parser.parse_args()


class Tools(Protocol):
    """Runs tools that burn CPU time."""

    async def run(self, seconds: float) -> None:
        """Run one that takes so many CPU seconds."""

    async def close(self) -> None: ...


class PlainTools:
    """Tools as processes like any other."""

    def __init__(self, gate: ToolGate) -> None:
        self._gate = gate

    async def run(self, seconds: float) -> None:
        async with self._gate.enter("cpu", "burn") as share:
            program = BURN.format(seconds=seconds)
            process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", program)
            share.confine(process.pid)
            if await process.wait() != 0:
                raise RuntimeError(f"a tool ended with status {process.returncode}")

    async def close(self) -> None:
        """Do nothing: every process has been waited for."""


class SandboxedTools:
    """Tools in a sandbox, as agents run them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def run(self, seconds: float) -> None:
        outcome = await self._sandbox.run_python(
            f"import time\nstart = time.process_time()\nwhile time.process_time() < start + {seconds}: sum(range(1000))"
        )
        if outcome.exit_code != 0:
            raise RuntimeError(f"a tool ended with {outcome.status}: {outcome.stderr.text}")

    async def close(self) -> None:
        await self._sandbox.close()


async def open_tools(gate: ToolGate, *, is_plain: bool) -> Tools:
    return PlainTools(gate) if is_plain else SandboxedTools(await Sandbox.open(gate=gate))


def make_targets(arguments: argparse.Namespace) -> list[Target]:
    targets: list[Target] = []
    for policy in arguments.policies:
        options = {} if policy != "fixed" else {"adapt": False}
        target = InProcess(arguments.model, threads=arguments.threads, context=arguments.context, **options)
        target.name = policy
        targets.append(target)
    if arguments.llama_server:
        numbers = arguments.threads, arguments.agents, arguments.context
        targets.append(llama_server(arguments.llama_server, arguments.model, *numbers))
    return targets


def schedule_for(target: Target, max_tasks: int | None) -> CoSchedule:
    if isinstance(target, InProcess) and target.name in ("adaptive", "capped"):
        return CoSchedule(target.llm, max_tasks=max_tasks if target.name == "capped" else None)
    return CoSchedule(policy="fixed")


@dataclass
class Seconds:
    """What one round took, in seconds."""

    tasks: list[float] = field(default_factory=list)
    model: list[float] = field(default_factory=list)  # each turn's answer
    tools: list[float] = field(default_factory=list)  # each tool from asking for it to its end


@dataclass(frozen=True)
class ToolLoad:
    """Agents that take turns between a model and a tool; every round has a system prompt of its own."""

    agents: int
    tasks: int
    turns: int
    system_words: int
    result_words: int
    answer_tokens: tuple[int, int]
    tool_seconds: tuple[float, float]
    is_plain: bool
    max_tasks: int | None

    async def run(self, target: Target, round_index: int) -> Figures:
        schedule = schedule_for(target, self.max_tasks)
        tools = await open_tools(schedule, is_plain=self.is_plain)
        seconds = Seconds()
        began, machine, engine, children = time.perf_counter(), busy_seconds(), engine_seconds(target), child_seconds()
        try:
            seeds = [f"{round_index} {agent}" for agent in range(self.agents)]
            await asyncio.gather(*(self._agent(target, schedule, tools, seed, seconds) for seed in seeds))
        finally:
            await tools.close()
        cpu = {"engine": engine_seconds(target) - engine, "tools": child_seconds() - children}
        cpu["others"] = busy_seconds() - machine - sum(cpu.values())
        return self._figures(seconds, time.perf_counter() - began, cpu)

    async def _agent(self, target: Target, schedule: CoSchedule, tools: Tools, seed: str, seconds: Seconds) -> None:
        system = f"You are an agent. {text_of(self.system_words, random.Random(f'system {seed.split(maxsplit=1)[0]}'))}"
        chance = random.Random(seed)
        for _ in range(self.tasks):
            began = time.perf_counter()
            messages = [{"role": "system", "content": system}]
            async with schedule.task():
                for _ in range(self.turns):
                    await self._take_turn(target, tools, messages, chance, seconds)
            seconds.tasks.append(time.perf_counter() - began)

    async def _take_turn(
        self, target: Target, tools: Tools, messages: Messages, chance: random.Random, seconds: Seconds
    ) -> None:
        messages.append({"role": "user", "content": f"Result: {text_of(self.result_words, chance)}"})
        texts: list[str] = []
        asked = time.perf_counter()
        await target.ask(messages, chance.randint(*self.answer_tokens), texts.append)
        answered = time.perf_counter()
        await tools.run(chance.uniform(*self.tool_seconds))
        seconds.model.append(answered - asked)
        seconds.tools.append(time.perf_counter() - answered)
        messages.append({"role": "assistant", "content": "".join(texts)})

    def _figures(self, seconds: Seconds, wall: float, cpu: dict[str, float]) -> Figures:
        return {
            "task_p50_seconds": median(seconds.tasks),
            "task_p90_seconds": quantiles(seconds.tasks, n=10, method="inclusive")[-1],
            "tasks_per_minute": 60 * len(seconds.tasks) / wall,
            "seconds": wall,
            "answer_p50_seconds": median(seconds.model),
            "tool_p50_seconds": median(seconds.tools),
            **{f"cores_of_{who}": spent / wall for who, spent in cpu.items()},
        }


def engine_seconds(target: Target) -> float:
    """CPU seconds of this process, and of the server if there is one."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime
    if isinstance(target, ServerProcess):
        fields = Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return seconds


def child_seconds() -> float:
    """CPU seconds of all tools that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def busy_seconds() -> float:
    """CPU seconds that anybody on the machine has had: others among them disturb what is measured."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_SECOND


def main() -> None:
    arguments = parse_arguments()
    load = ToolLoad(
        agents=arguments.agents,
        tasks=arguments.tasks,
        turns=arguments.turns,
        system_words=arguments.system_words,
        result_words=arguments.result_words,
        answer_tokens=tuple(arguments.answer_tokens),
        tool_seconds=tuple(arguments.tool_seconds),
        is_plain=arguments.plain,
        max_tasks=arguments.max_tasks,
    )
    results = asyncio.run(compare(make_targets(arguments), arguments.rounds, load.run))
    write_report(arguments, {"machine": describe_machine(arguments), "results": results})
    print(markdown(results))


if __name__ == "__main__":
    main()
