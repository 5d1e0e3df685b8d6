"""Offers tools, and models as tools, to whoever speaks MCP.

Leaves to others: the protocol (the ``mcp`` SDK), and what the models answer (the engines).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle.agents.coercion import fit
from treadle.agents.tool import Tool, ToolResult, ToolSpec
from treadle.agents.tools.local_tool import LocalTool, parameters
from treadle.engine.conversation import Conversation
from treadle.engine.sampling import SamplingParams
from treadle.errors import InternalError, TreadleError, UsageError

if TYPE_CHECKING:
    from mcp.server import Server

    from treadle.engine.completion import Completion
    from treadle.engine.contract import AsyncEngine

__all__ = ["ModelToolLimits", "make_server", "model_tools", "serve_stdio"]

_MAX_TEXTS = 64
_INSTRUCTIONS = "Language models on the CPU of this machine: for short tasks, and texts that must stay here."


@dataclass(frozen=True)
class ModelToolLimits:
    """What one call may take, and how many run together; others wait."""

    answer_tokens: int = 2048
    seconds: float = 600.0
    num_running: int = 8


def model_tools(engines: Mapping[str, AsyncEngine], limits: ModelToolLimits | None = None) -> list[Tool]:
    """Return tools that ask models, which the caller closes: chat, generate, embed and list_models as they can.

    Args:
        engines: The models by the names that callers use; the first is the default.
        limits: What one call may take.
    """
    models = _Models(dict(engines), limits or ModelToolLimits())
    tools: list[Tool] = [LocalTool(_LIST, models.list_all)]
    if models.names_of("chat"):
        tools.append(LocalTool(models.spec_of(_CHAT, "chat"), models.chat))
        tools.append(LocalTool(models.spec_of(_GENERATE, "chat"), models.generate))
    if models.names_of("embed"):
        tools.append(LocalTool(models.spec_of(_EMBED, "embed"), models.embed))
    return tools


def make_server(tools: Sequence[Tool], version: str = "") -> Server[Any]:
    """Return an MCP server of tools.

    Raises:
        UsageError: The package ``mcp`` is missing.
    """
    try:
        import mcp_types as types  # noqa: PLC0415  an extra
        from mcp.server import Server  # noqa: PLC0415
    except ImportError:
        raise UsageError("MCP needs the package mcp", hint="pip install 'treadle[mcp]'") from None
    by_name = {tool.spec.name: tool for tool in tools}

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=spec.name,
                    description=spec.description,
                    input_schema=dict(spec.parameters),
                    annotations=types.ToolAnnotations(read_only_hint=spec.is_read_only),
                )
                for spec in (tool.spec for tool in tools)
            ]
        )

    async def call_tool(_context: Any, params: Any) -> types.CallToolResult:
        result = await _call(by_name, params.name, params.arguments or {})
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=result.text)], is_error=result.is_error
        )

    return Server(
        "treadle", version=version, instructions=_INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client over stdin and stdout until it closes them; nothing else may use stdout meanwhile."""
    from mcp.server.stdio import stdio_server  # noqa: PLC0415  an extra

    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _call(tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any]) -> ToolResult:
    tool = tools.get(name)
    if tool is None:
        return ToolResult(f"there is no tool {name!r:.80}; there are {', '.join(tools)}", is_error=True)
    fitted, problems = fit(dict(arguments), tool.spec.parameters)
    if problems:
        return ToolResult("; ".join(problems), is_error=True)
    try:
        return await tool.call(fitted)
    except TreadleError as error:
        return ToolResult(str(error), is_error=True)


class _Models:
    """The models, and the work of the tools."""

    def __init__(self, engines: dict[str, AsyncEngine], limits: ModelToolLimits) -> None:
        self._engines = engines
        self._limits = limits
        self._running = asyncio.Semaphore(limits.num_running)

    def names_of(self, ability: str) -> list[str]:
        return [name for name, engine in self._engines.items() if ability in _abilities(engine)]

    def spec_of(self, spec: ToolSpec, ability: str) -> ToolSpec:
        """Return a specification that lets the caller choose, if there are several models."""
        names = self.names_of(ability)
        if len(names) == 1:
            return spec
        choice = {"type": "string", "enum": names, "default": names[0], "description": "Which model answers."}
        properties = {**spec.parameters["properties"], "model": choice}
        return ToolSpec(spec.name, spec.description, {**spec.parameters, "properties": properties}, spec.is_read_only)

    async def list_all(self, _arguments: Mapping[str, Any]) -> ToolResult:
        listed = [
            {"name": name, "model": engine.name, "context": engine.context, "can": _abilities(engine)}
            for name, engine in self._engines.items()
        ]
        return ToolResult(json.dumps(listed, ensure_ascii=False))

    async def chat(self, arguments: Mapping[str, Any]) -> ToolResult:
        messages = [{"role": "user", "content": arguments["message"]}]
        if arguments.get("system"):
            messages.insert(0, {"role": "system", "content": arguments["system"]})
        return await self._answer(Conversation(messages), arguments)

    async def generate(self, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._answer(arguments["text"], arguments)

    async def embed(self, arguments: Mapping[str, Any]) -> ToolResult:
        engine = self._engine(arguments, "embed")
        async with self._running:
            found = await engine.embed(arguments["texts"], timeout=self._limits.seconds)
        vectors = [[float(f"{value:.6g}") for value in each.vector.tolist()] for each in found]
        return ToolResult(json.dumps({"model": engine.name, "embeddings": vectors}))

    async def _answer(self, prompt: str | Conversation, arguments: Mapping[str, Any]) -> ToolResult:
        most = min(arguments.get("max_tokens", 512), self._limits.answer_tokens)
        params = SamplingParams(max_tokens=most, temperature=arguments.get("temperature", 0.0))
        async with self._running:
            engine = self._engine(arguments, "chat")
            completion = await _completion(await engine.answer(prompt, params, timeout=self._limits.seconds))
        cut = f"\n[cut after {most} tokens]" if completion.finish_reason == "length" else ""
        return ToolResult(completion.text.strip() + cut)

    def _engine(self, arguments: Mapping[str, Any], ability: str) -> AsyncEngine:
        return self._engines[arguments.get("model") or self.names_of(ability)[0]]


async def _completion(stream: Any) -> Completion:
    try:
        async for chunk in stream:
            if chunk.completion is not None:
                completion: Completion = chunk.completion
                return completion
    finally:
        await stream.aclose()
    raise InternalError("an answer ended without saying so")


def _abilities(engine: AsyncEngine) -> list[str]:
    """Return what a model can; of one elsewhere it is not known whether it embeds."""
    if engine.report is None:
        return ["chat"]
    if engine.report.ranks:
        return []
    return ["embed"] if engine.report.embeds_only else ["chat", "embed"]


_ANSWER_SETTINGS = {
    "max_tokens": {"type": "integer", "minimum": 1, "default": 512, "description": "Most tokens of the answer."},
    "temperature": {
        "type": "number",
        "minimum": 0,
        "maximum": 2,
        "default": 0,
        "description": "0 always takes the likeliest token.",
    },
}
_LIST = ToolSpec("list_models", "List the models, and what they can do.", parameters({}), is_read_only=True)
_CHAT = ToolSpec(
    "chat",
    "Ask a language model on this machine: to answer, summarise, classify, extract or rewrite.",
    parameters(
        {"message": {"type": "string", "minLength": 1, "description": "The task, and the text it is about."}},
        {"system": {"type": "string", "description": "How to behave."}, **_ANSWER_SETTINGS},
    ),
    is_read_only=True,
)
_GENERATE = ToolSpec(
    "generate",
    "Let a language model on this machine continue a text as it is.",
    parameters({"text": {"type": "string", "minLength": 1, "description": "The text to continue."}}, _ANSWER_SETTINGS),
    is_read_only=True,
)
_EMBED = ToolSpec(
    "embed",
    "Turn texts into vectors that are near each other for texts of similar meaning; the result is JSON.",
    parameters(
        {
            "texts": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": 1,
                "maxItems": _MAX_TEXTS,
                "description": "The texts.",
            }
        }
    ),
    is_read_only=True,
)
