"""The command ``treadle mcp-serve``: models as tools for whoever speaks MCP.

Leaves to others: the tools and the protocol (``agents.mcp_server``), and loading (``cli.loading``).
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import options
from treadle.cli.console import console
from treadle.cli.loading import open_async_model
from treadle.cli.named_models import named_models
from treadle.cli.option_groups import ConsoleOptions, EngineOptions, expand_groups

if TYPE_CHECKING:
    from treadle.engine.outset import PlanOptions

__all__ = ["register"]

_EXIT_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("mcp-serve")(expand_groups(mcp_serve))


def mcp_serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="What to serve, as MODEL or NAME=MODEL; the first is the default."),
    ] = None,
    *,
    max_answer_tokens: Annotated[
        int, typer.Option("--max-answer-tokens", min=1, help="Most tokens of any answer.")
    ] = 2048,
    request_timeout: Annotated[
        float, typer.Option("--request-timeout", min=1, help="Seconds in which an answer must have ended.")
    ] = 600.0,
    engine: EngineOptions,
    _console: ConsoleOptions,
) -> None:
    """Serve models as MCP tools over stdin and stdout.

    The tools are list_models, chat, generate and, of models in this process, embed. An MCP client starts the command
    and ends it by closing its stdin. It listens on no port.
    """
    asyncio.run(
        _serve(
            named_models(models or [options.DEFAULT_MODEL]), engine.as_arguments(), max_answer_tokens, request_timeout
        )
    )


async def _serve(sources: dict[str, str], load: PlanOptions, max_answer_tokens: int, request_timeout: float) -> None:
    from treadle.agents.mcp_server import (  # noqa: PLC0415  not before `--help` is answered
        ModelToolLimits,
        make_server,
        model_tools,
        serve_stdio,
    )

    make_server(())  # tells that the package is missing before a model is loaded
    async with AsyncExitStack() as stack:
        engines = {}
        for name, source in sources.items():
            engines[name] = await open_async_model(source, default=source, embeds=True, **load)
            stack.push_async_callback(engines[name].close)
        tools = model_tools(engines, ModelToolLimits(answer_tokens=max_answer_tokens, seconds=request_timeout))
        serving = asyncio.create_task(serve_stdio(make_server(tools)))
        if await _is_stopped(serving, f"serving {', '.join(sources)} over stdin and stdout"):
            await stack.aclose()
            # The SDK reads stdin in a thread that nothing but the end of stdin wakes, and would wait for it.
            os._exit(_EXIT_INTERRUPTED)


async def _is_stopped(serving: asyncio.Task[None], note: str) -> bool:
    """Wait until the client has gone, or a signal comes, and tell whether it was that."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows has no such handlers; Ctrl-C ends the process there
            loop.add_signal_handler(number, stopped.set)
    console.note(note)
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if serving.done():
        await serving
    return not serving.done()
