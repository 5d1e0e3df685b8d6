"""The command ``treadle trace``: where the time of agents' tasks went, as text, as a page, as JSON, for a collector.

Leaves to others: the figures (``agents.trace``) and drawing (``cli.waterfall``, ``cli.page``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.console import console
from treadle.cli.table import print_rows
from treadle.cli.waterfall import label_of, print_waterfall, show_seconds
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.agents.trace import Group, SpanKind, Trace, TraceSummary

__all__ = ["register"]

_PIPE_WIDTH = 110
_MAX_TASKS = 20
_MAX_ROWS = 8
_PARTS: Mapping[Group, tuple[SpanKind, ...]] = {
    "model": ("model", "queue", "prefill", "decode"),
    "tools": ("tool", "sandbox", "network"),
    "waiting": ("wait",),
    "own": ("task", "turn", "parse", "dispatch"),
}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("trace")(trace)


def trace(
    files: Annotated[list[Path], typer.Argument(help="Files that agents have written with --trace.")],
    *,
    task: Annotated[
        int | None,
        typer.Option("--task", min=1, help="Draw the task of this number; by default the only one there is."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="How many spans of a task get a line of their own, the longest first.")
    ] = 40,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page to this file, which a browser shows without a network.")
    ] = None,
    otel_endpoint: Annotated[
        str | None,
        typer.Option("--otel-endpoint", help="Send the traces to an OTLP collector, such as http://localhost:4318."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show where the time of agents' tasks went: shares of model and tools, critical path, and a waterfall of spans.

    Bars are solid where a span decided how long the task took, and pale where it ran beside others.
    """
    from treadle.agents.trace import read_traces, summarise  # noqa: PLC0415  only for this command

    traces, notes = read_traces(files)
    if task is not None and task > len(traces):
        raise UsageError(f"--task {task}: expected a number up to {len(traces)}, the tasks in the files")
    for note in notes:
        console.warn(note)
    if html is not None:
        _write_page(html, traces, notes)
    if otel_endpoint is not None:
        _send(otel_endpoint, traces)
    if as_json:
        from treadle.cli.trace_facts import trace_facts  # noqa: PLC0415  no other command needs what it imports

        console.out(json.dumps(trace_facts(traces, notes, has_spans=False), indent=2))
    elif html is None and otel_endpoint is None:
        chosen = traces if task is None else [traces[task - 1]]
        _print(chosen, summarise(chosen), rows)


def _write_page(path: Path, traces: Sequence[Trace], notes: Sequence[str]) -> None:
    from treadle.cli.page import make_page  # noqa: PLC0415  reads its parts
    from treadle.cli.trace_facts import trace_facts  # noqa: PLC0415

    page = make_page("Where the time went", "trace", trace_facts(traces, notes, has_spans=True))
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--html {path}: the page cannot be written: {error.strerror}") from None
    console.note(f"wrote {path}")


def _send(endpoint: str, traces: Sequence[Trace]) -> None:
    from treadle.agents.trace.otel import TraceExporter  # noqa: PLC0415  an extra

    with TraceExporter(endpoint) as exporter:
        for trace in traces:
            exporter.export(trace)
    console.note(f"sent {len(traces)} {'trace' if len(traces) == 1 else 'traces'} to {endpoint}")


def _print(traces: Sequence[Trace], summary: TraceSummary, max_rows: int) -> None:
    print_rows(list(_groups(summary)))
    console.out("")
    print_rows(list(_facts(summary)))
    console.out("")
    print_rows(list(_path(summary)))
    if summary.tools:
        console.out("")
        print_rows(list(_tools(summary)))
    console.out("")
    if len(traces) == 1:
        width = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns
        print_waterfall(traces[0], width=width, max_rows=max_rows)
    else:
        print_rows(list(_tasks(traces)))


def _groups(summary: TraceSummary) -> Iterator[tuple[str, ...]]:
    yield "", "wall".rjust(8), "share", "CPU".rjust(8), "made of"
    for group, seconds in summary.groups.items():
        times = {kind: summary.kinds[kind] for kind in _PARTS[group] if kind in summary.kinds}
        cpu = [time.cpu_seconds for time in times.values() if time.cpu_seconds is not None]
        parts = ", ".join(
            f"{kind} {show_seconds(time.wall_seconds)}" for kind, time in times.items() if time.wall_seconds
        )
        yield group, _wall(seconds), _percent(summary.share(group)), _wall(sum(cpu)) if cpu else "", parts
    yield "all", _wall(summary.wall_seconds), _percent(1.0), "", ""


def _facts(summary: TraceSummary) -> Iterator[tuple[str, str]]:
    if summary.num_tasks > 1:
        yield "tasks", f"{summary.num_tasks}, half of them within {show_seconds(summary.median_seconds)}"
    dropped = f"; there was no room for {summary.num_dropped:,} more" if summary.num_dropped else ""
    yield "covered", f"{100 * summary.coverage:.1f} % of the time by spans{dropped}"
    share = summary.cached_tokens / summary.prompt_tokens if summary.prompt_tokens else 0.0
    prompts = f"{summary.prompt_tokens:,} in prompts, {100 * share:.0f} % of them cached"
    yield "tokens", f"{prompts}; {summary.answer_tokens:,} in answers"
    if summary.process_cpu_seconds:  # a task that was cut off has not told
        yield "CPU", f"{show_seconds(summary.process_cpu_seconds)} in the agents' process, its children not counted"


def _path(summary: TraceSummary) -> Iterator[tuple[str, ...]]:
    yield "critical path", "wall".rjust(8), "share"
    for share in summary.path[:_MAX_ROWS]:
        label = label_of(share.kind, share.name) + (f" x{share.num_spans}" if share.num_spans > 1 else "")
        yield label, _wall(share.wall_seconds), _percent(share.wall_seconds / summary.wall_seconds)
    rest = sum(share.wall_seconds for share in summary.path[_MAX_ROWS:])
    if rest:
        yield f"{len(summary.path) - _MAX_ROWS} others", _wall(rest), _percent(rest / summary.wall_seconds)


def _tools(summary: TraceSummary) -> Iterator[tuple[str, ...]]:
    yield "tool", "calls", "failed", "wall".rjust(8), "CPU".rjust(8)
    for name, time in list(summary.tools.items())[:_MAX_ROWS]:
        cpu = "" if time.cpu_seconds is None else _wall(time.cpu_seconds)
        yield name, f"{time.num_calls:>5}", f"{time.num_errors:>6}", _wall(time.wall_seconds), cpu
    if len(summary.tools) > _MAX_ROWS:
        yield f"{len(summary.tools) - _MAX_ROWS} others", "", "", "", ""


def _tasks(traces: Sequence[Trace]) -> Iterator[tuple[str, ...]]:
    """The slowest tasks, by the numbers that ``--task`` takes."""
    yield "task", "wall".rjust(8), "model", "tools", "name"
    numbered = sorted(enumerate(traces, 1), key=lambda item: -item[1].root.seconds)
    for number, trace in numbered[:_MAX_TASKS]:
        summary = trace.summary()
        model, tools = _percent(summary.share("model")), _percent(summary.share("tools"))
        yield f"{number:>4}", _wall(trace.root.seconds), model, tools, trace.name
    if len(traces) > _MAX_TASKS:
        yield "", "", "", "", f"and {len(traces) - _MAX_TASKS} quicker ones"


def _wall(seconds: float) -> str:
    return show_seconds(seconds).rjust(8)


def _percent(share: float) -> str:
    return f"{100 * share:3.0f} %"
