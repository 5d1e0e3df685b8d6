"""The command ``treadle run``: one prompt, one answer.

Leaves to others: the model (``cli.loading``) and the answer (``LLM``).
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.adapters import load_adapter
from treadle.cli.answer import print_answer
from treadle.cli.console import console
from treadle.cli.loading import open_model
from treadle.cli.option_groups import ConsoleOptions, EngineOptions, SamplingOptions, expand_groups
from treadle.cli.summary import closing_line, completion_facts, engine_line
from treadle.engine.sampling import SamplingParams
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.completion import Completion
    from treadle.engine.llm import LLM
    from treadle.engine.remote.llm import RemoteLLM

__all__ = ["register"]

Request = str | list[dict[str, Any]]  # a prompt, or messages


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("run")(expand_groups(run))


def run(
    prompt: Annotated[str | None, typer.Argument(help="What to answer; `-` or nothing reads it from stdin.")] = None,
    *,
    model: options.Model = None,
    system: options.System = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object once the answer is there.")] = False,
    sampling: SamplingOptions,
    adapter: options.Adapter = None,
    engine: EngineOptions,
    _console: ConsoleOptions,
) -> None:
    """Answer one prompt.

    The answer goes to stdout, everything else to stderr. Text on stdin follows the prompt, so that
    `treadle run "Summarise:" < notes.txt` works.
    """
    started = time.perf_counter()
    params = sampling.params()
    text = _read_prompt(prompt)
    with open_model(model, **engine.as_arguments()) as llm:
        name = load_adapter(llm, adapter)
        request = _request(llm, text, system=system, is_raw=raw)
        chosen = {} if name is None else {"adapter": name}
        if as_json:
            completion = _print_json(llm, request, params, chosen)
        else:
            completion = _print_stream(llm, request, params, chosen, started)
        if completion.finish_reason == "length":
            console.note("the answer was cut: --max-tokens or the context was reached")
        console.note(closing_line(completion, llm))
        if llm.report is not None:
            console.detail(engine_line(llm.stats()))


def _read_prompt(prompt: str | None) -> str:
    """Join the argument and what is on stdin; a terminal is only read when asked to with `-`."""
    parts = [] if prompt in (None, "-") else [prompt]
    if prompt == "-" or not console.is_interactive:
        parts.append(console.read_all())
    text = "\n\n".join(part for part in parts if part and part.strip())
    if not text:
        raise UsageError("there is no prompt", hint='type `treadle run "Why is the sky blue?"`, or pipe text into it')
    return text


def _request(llm: LLM | RemoteLLM, text: str, *, system: str | None, is_raw: bool) -> Request:
    if is_raw or not llm.has_chat_template:
        if system is not None:
            problem = "--raw leaves out" if is_raw else f"{llm.name} has no"
            raise UsageError(f"--system: there is no place for it, as {problem} the chat template")
        if not is_raw:
            console.note(f"{llm.name} has no chat template: continuing the prompt as plain text, as with --raw")
        return text
    messages = [{"role": "user", "content": text}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _print_json(llm: LLM | RemoteLLM, request: Request, params: SamplingParams, chosen: dict[str, Any]) -> Completion:
    completion = (
        llm.generate(request, params, **chosen) if isinstance(request, str) else llm.chat(request, params, **chosen)
    )
    console.out(json.dumps(completion_facts(completion, llm), ensure_ascii=False))
    return completion


def _print_stream(
    llm: LLM | RemoteLLM, request: Request, params: SamplingParams, chosen: dict[str, Any], started: float
) -> Completion:
    asked = time.perf_counter() - started
    with llm.stream(request, params, **chosen) as stream:
        completion = print_answer(stream)
    first_token = asked + completion.timings.queued_seconds + completion.timings.prefill_seconds
    console.detail(f"first token {first_token:.2f} s after the start of the command")
    return completion
