"""One run of ``treadle agent``: opens tools and model, lets the agent work, and closes everything however it ends.

Leaves to others: what was asked for (``cli.agent``), and the work itself (``agents``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from treadle.agents.co_schedule import CoSchedule
from treadle.agents.events import RunEnded
from treadle.agents.gate import OpenGate, ToolGate, Work
from treadle.agents.loop import Agent
from treadle.agents.mcp_client import McpServer
from treadle.agents.tools.choice import Toolbox, ToolboxSettings
from treadle.cli.agent_progress import Progress
from treadle.cli.console import console
from treadle.cli.loading import open_async_model
from treadle.engine.open_engine import find_engine_url
from treadle.errors import InternalError, UsageError

if TYPE_CHECKING:
    from treadle.agents.budget import Budget
    from treadle.agents.result import AgentResult
    from treadle.agents.tool import Tool
    from treadle.engine.contract import AsyncEngine
    from treadle.engine.outset import PlanOptions
    from treadle.engine.sampling import SamplingParams
    from treadle.hardware.cpu_share import CpuShare

__all__ = ["AgentOrder", "run_agent"]


@dataclass(frozen=True)
class AgentOrder:
    """What was asked for on the command line; ``task`` None goes on with that of ``resume``."""

    task: str | None
    model: str | None
    default_model: str
    load: PlanOptions
    toolbox: ToolboxSettings
    servers: Sequence[str]
    server_tools: frozenset[str] | None
    policy: Literal["adaptive", "fixed"]
    budget: Budget
    params: SamplingParams
    system: str | None
    schema: Mapping[str, Any] | None
    transcript: Path | None
    resume: Path | None
    trace: Path | None


class _LateGate:
    """A gate that lets everything through until the model is there, which the tools are opened before."""

    def __init__(self) -> None:
        self.gate: ToolGate = OpenGate()

    def enter(self, work: Work, name: str) -> AbstractAsyncContextManager[CpuShare]:
        return self.gate.enter(work, name)


async def run_agent(order: AgentOrder) -> tuple[AgentResult, str]:
    """Return how a run ended, and the name of the model.

    Raises:
        TreadleError: A setting, a tool, the transcript or the model is at fault, or code cannot be isolated.
    """
    if order.resume is not None and (order.transcript is not None or order.system is not None):
        raise UsageError("--resume writes to the transcript it reads, and keeps its system message")
    async with AsyncExitStack() as stack:
        gate = _LateGate()
        tools = await _open_tools(order, gate, stack)
        load = order.load
        if order.policy == "fixed" and find_engine_url(order.model, load.get("engine")) is None:
            if load.get("adapt"):
                raise UsageError("--adapt: with --policy fixed the number of threads stays as it is")
            load["adapt"] = False
        engine = await open_async_model(order.model, default=order.default_model, **load)
        stack.push_async_callback(engine.close)
        gate.gate = CoSchedule(engine, policy=order.policy)
        agent = _make_agent(order, engine, tools, gate)
        stack.push_async_callback(agent.close)
        progress = Progress()
        stack.callback(progress.end)
        async for event in agent.stream(order.task):
            progress.show(event)
            if isinstance(event, RunEnded):
                return event.result, engine.name
    raise InternalError("a run ended without saying so")


async def _open_tools(order: AgentOrder, gate: ToolGate, stack: AsyncExitStack) -> list[Tool]:
    toolbox = await Toolbox.open(order.toolbox, gate=gate)
    stack.push_async_callback(toolbox.close)
    if toolbox.sandbox is not None:
        for layer in toolbox.sandbox.layers:
            console.detail(f"sandbox: {layer}")
        if order.toolbox.is_unsafe:
            console.warn("--unsafe-no-sandbox: code of the model may do all that you may")
    return [*toolbox.tools, *await _open_servers(order, gate, stack, {tool.spec.name for tool in toolbox.tools})]


async def _open_servers(order: AgentOrder, gate: ToolGate, stack: AsyncExitStack, taken: set[str]) -> list[Tool]:
    """Start the MCP servers, and see that each tool that was allowed is there."""
    if order.server_tools is not None and not order.servers:
        raise UsageError("--mcp-allow: there is no server to have tools of", hint="name one with --mcp")
    tools: list[Tool] = []
    for address in order.servers:
        server = await McpServer.open(address, allowed=order.server_tools, gate=gate, taken=taken)
        stack.push_async_callback(server.close)
        for note in server.notes:
            console.warn(note)
        names = [tool.spec.name for tool in server.tools]
        console.detail(f"MCP server {server.name}: {', '.join(names) or 'no tools'}")
        taken |= set(names)
        tools += server.tools
    for name in order.server_tools or ():
        if not any(tool.spec.name == name or tool.spec.name.endswith(f"_{name}") for tool in tools):
            raise UsageError(f"--mcp-allow {name}: no server has such a tool")
    return tools


def _make_agent(order: AgentOrder, engine: AsyncEngine, tools: Sequence[Tool], gate: ToolGate) -> Agent:
    settings: dict[str, Any] = {
        "budget": order.budget,
        "params": order.params,
        "answer_schema": order.schema,
        "trace": order.trace,
        "gate": gate,
    }
    if order.resume is not None:
        return Agent.resume(order.resume, engine, tools, **settings)
    return Agent(engine, tools, instructions=order.system, transcript=order.transcript, **settings)
