"""The command ``treadle agent``: a model works on a task with tools.

Leaves to others: the work (``cli.agent_run``) and what is shown of it (``cli.agent_progress``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.console import console
from treadle.cli.option_groups import ConsoleOptions, EngineOptions, expand_groups
from treadle.engine.sampling import SamplingParams
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.agents.result import AgentResult

__all__ = ["register"]

DEFAULT_MODEL = "qwen2.5-coder:1.5b"
EXIT_STOPPED = 3

_POLICIES = ("adaptive", "fixed")
_MAX_SCHEMA_BYTES = 1 << 20
_STOPPED = {
    "loop": "it went round in circles",
    "context": "the conversation no longer fits the model",
    "turns": "--max-turns was reached",
    "tokens": "--max-tokens was reached",
    "seconds": "--max-seconds was reached",
    "tool_seconds": "--max-tool-seconds was reached",
}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("agent")(expand_groups(agent))


def _tools(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Tools")


def _budget(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Budget")


def agent(
    task: Annotated[str | None, typer.Argument(help="What to do; `-` or nothing reads it from stdin.")] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help=f"As for `treadle run`, but by default {DEFAULT_MODEL}."),
    ] = None,
    system: options.System = None,
    tools: Annotated[
        str, _tools("--tools", help="Which tools, with commas between: files, query, python, shell, fetch; or none.")
    ] = "files,query,python",
    workspace: Annotated[
        Path | None, _tools("--workspace", help="Folder that the tools work in; by default the current one.")
    ] = None,
    write: Annotated[bool, _tools("--write", help="Let the tools change what is in the workspace.")] = False,
    allow_host: Annotated[
        list[str] | None,
        _tools("--allow-host", help="Host, or beginning of a URL, that fetch may ask; may be given again."),
    ] = None,
    allow_private: Annotated[
        bool, _tools("--allow-private", help="Let names of allowed hosts lead into the own network.")
    ] = False,
    mcp: Annotated[
        list[str] | None,
        _tools("--mcp", help="MCP server, as [NAME=]COMMAND or [NAME=]URL; may be given again."),
    ] = None,
    mcp_allow: Annotated[
        list[str] | None, _tools("--mcp-allow", help="Tool of the MCP servers to have; may be given again; else all.")
    ] = None,
    unsafe_no_sandbox: Annotated[
        bool, _tools("--unsafe-no-sandbox", help="Run code without a sandbox, with all that you may do.")
    ] = False,
    max_turns: Annotated[int, _budget("--max-turns", help="Most answers of the model.")] = 20,
    max_tokens: Annotated[int, _budget("--max-tokens", help="Most tokens that the model reads and writes.")] = 50_000,
    max_seconds: Annotated[float, _budget("--max-seconds", help="Most seconds for the task.")] = 600.0,
    max_tool_seconds: Annotated[float, _budget("--max-tool-seconds", help="Most seconds in which tools run.")] = 300.0,
    max_answer_tokens: Annotated[
        int, _budget("--max-answer-tokens", help="Most tokens of one answer of the model.")
    ] = 1024,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    answer_schema: Annotated[
        Path | None, typer.Option("--answer-schema", help="File with the JSON schema that the answer must satisfy.")
    ] = None,
    transcript: Annotated[
        Path | None, typer.Option("--transcript", help="New file for what happens, to resume from.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Transcript of a run to go on with, or to give another task.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="File to add the times of the run to, for `treadle trace`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object once the answer is there.")] = False,
    policy: Annotated[
        str, typer.Option("--policy", help="How model and tools share the cores: adaptive or fixed.")
    ] = "adaptive",
    engine: EngineOptions,
    _console: ConsoleOptions,
) -> None:
    """Let a model work on a task with tools.

    The answer goes to stdout, everything else to stderr. The tools see the workspace only, and change it only with
    --write; code runs in a sandbox without a network. Exit code 3: the run was stopped before the model was done.
    """
    from treadle.agents.budget import Budget  # noqa: PLC0415  not before `--help` is answered
    from treadle.agents.tools.choice import ToolboxSettings  # noqa: PLC0415
    from treadle.cli.agent_run import AgentOrder, run_agent  # noqa: PLC0415

    if policy not in _POLICIES:
        raise UsageError(f"--policy {policy}: expected adaptive or fixed")
    order = AgentOrder(
        task=_read_task(task, is_resumed=resume is not None),
        model=model,
        default_model=DEFAULT_MODEL,
        load=engine.as_arguments(),
        toolbox=ToolboxSettings(
            kinds=_kinds(tools),
            workspace=_folder(workspace),
            is_writable=write,
            allowed_hosts=tuple(allow_host or ()),
            allow_private=allow_private,
            is_unsafe=unsafe_no_sandbox,
        ),
        servers=tuple(mcp or ()),
        server_tools=None if mcp_allow is None else frozenset(mcp_allow),
        policy="fixed" if policy == "fixed" else "adaptive",
        budget=Budget(max_turns, max_tokens, max_seconds, max_tool_seconds),
        params=SamplingParams(max_tokens=max_answer_tokens, temperature=temperature, seed=seed),
        system=system,
        schema=None if answer_schema is None else _read_schema(answer_schema),
        transcript=transcript,
        resume=resume,
        trace=trace,
    )
    try:
        result, name = asyncio.run(run_agent(order))
    except KeyboardInterrupt:
        if kept := transcript or resume:
            console.note(f"stopped; `treadle agent --resume {kept}` with the same options goes on")
        raise
    _tell(result, name, as_json=as_json)
    if result.error is not None:
        raise result.error
    if result.end != "answered":
        console.note(f"the agent was stopped before it was done: {_STOPPED.get(result.end, result.end)}")
        raise typer.Exit(EXIT_STOPPED)


def _read_task(task: str | None, *, is_resumed: bool) -> str | None:
    """Join the argument and what is on stdin; a run that is resumed has a task already."""
    parts = [] if task in (None, "-") else [task]
    if task == "-" or not (console.is_interactive or (is_resumed and task is None)):
        parts.append(console.read_all())
    text = "\n\n".join(part for part in parts if part and part.strip())
    if not text and not is_resumed:
        raise UsageError("there is no task", hint='type `treadle agent "How many lines has data.csv?"`')
    return text or None


def _kinds(tools: str) -> tuple[str, ...]:
    named = tuple(kind.strip() for kind in tools.split(",") if kind.strip())
    return () if named == ("none",) else named


def _folder(workspace: Path | None) -> Path:
    if workspace is not None:
        return workspace
    here = Path.cwd()
    if here in (Path.home(), Path(here.anchor)):
        raise UsageError(
            f"the current folder is {here}, all of which a model would see",
            hint="change to the folder of the task, or name it with --workspace",
        )
    return here


def _read_schema(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            schema = json.loads(file.read(_MAX_SCHEMA_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--answer-schema {path}: {error}") from None
    if not isinstance(schema, dict):
        raise UsageError(f"--answer-schema {path}: expected a JSON schema, which is an object")
    return schema


def _tell(result: AgentResult, model: str, *, as_json: bool) -> None:
    from treadle.cli.agent_progress import agent_facts, closing_line  # noqa: PLC0415

    if as_json:
        console.out(json.dumps(agent_facts(result, model), ensure_ascii=False))
    elif result.answer:
        console.out(result.answer)
    console.note(closing_line(result))
