"""The command ``treadle profile``: where the time of a model goes on this machine, and what would help.

Leaves to others: measuring and judging (``engine.profile``) and the tables (``cli.profile_tables``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.console import console
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.profile.record import ProfileRecord

__all__ = ["register"]

_STDOUT = "-"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("profile")(profile)


def profile(
    model: Annotated[
        str,
        typer.Argument(
            help="Name of a stored model, the path of a .gguf file, or a .json file of --json to show once more."
        ),
    ],
    *,
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="Lengths of prompts in tokens; by default 128,512,2048.")
    ] = None,
    streams: Annotated[
        str | None, typer.Option("--streams", help="Numbers of streams that decode; by default 1,2,4,8,16.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", help="Tokens that each stream holds; by default 256.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long it may take, about; every cell is measured twice at least.")
    ] = 45.0,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write all that was measured to a file; - prints it, and nothing else.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", help="A file of --json; show what became faster or slower since.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page to this file, which a browser shows without a network.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show the operators of every cell.")] = False,
    memory: options.Memory = None,
    kv_type: options.KvType = None,
    threads: options.Threads = None,
    prompt_threads: options.PromptThreads = None,
    pin: options.Pin = None,
    numa: options.Numa = None,
    huge_pages: options.HugePages = None,
    mlock: options.Mlock = None,
    quiet: options.Quiet = False,  # noqa: ARG001  its callback has told the console
) -> None:
    """Measure prompts and decoding apart, operator by operator, and say in words what bounds each and what would help.

    Reads prompts of several lengths, and lets several numbers of streams decode. Each is compared with what memory and
    arithmetic of this machine give meanwhile. Nothing else should run.
    """
    from treadle.cli.profile_facts import profile_facts  # noqa: PLC0415  loads the native core
    from treadle.engine.profile.comparison import compare as compare_records  # noqa: PLC0415
    from treadle.engine.profile.record_file import read_record, record_text  # noqa: PLC0415

    if not seconds > 0:
        raise UsageError(f"--seconds: expected above 0, found {seconds:g}")
    old = None if compare is None else read_record(compare)
    target = None if json_file in (None, _STDOUT) else _writable("--json", str(json_file))
    page = None if html is None else _writable("--html", str(html))
    if model.endswith(".json"):
        record = read_record(Path(model))
    else:
        record = _measure(
            model,
            prompts=_numbers("--prompts", prompts),
            streams=_numbers("--streams", streams),
            stream_context=context,
            seconds=seconds,
            memory=memory,
            kv_type=kv_type,
            threads=threads,
            prompt_threads=prompt_threads,
            pin=pin,
            numa=numa,
            huge_pages=huge_pages,
            mlock=mlock,
        )
    if target is not None:
        target.write_text(record_text(record), encoding="utf-8")
        console.note(f"kept in {target}")
    if json_file == _STDOUT:
        console.out(record_text(record), end="")
    comparison = None if old is None else compare_records(old, record)
    shown_model = "MODEL" if model.endswith(".json") else model
    if page is not None:
        _write_page(page, profile_facts(record, shown_model, comparison, old))
    if json_file == _STDOUT:
        return
    from treadle.cli.profile_tables import print_comparison, print_profile  # noqa: PLC0415  rich is slow to import

    print_profile(record, shown_model, shows_all=show_all)
    if comparison is not None and old is not None:
        print_comparison(comparison, old)


def _write_page(path: Path, facts: dict[str, Any]) -> None:
    from treadle.cli.page import make_page  # noqa: PLC0415  reads its parts

    path.write_text(make_page("Where a model spends its time", "profile", facts), encoding="utf-8", errors="replace")
    console.note(f"wrote {path}")


def _measure(model: str, **given: object) -> ProfileRecord:
    from treadle.cli.bandwidth import remember_bandwidth  # noqa: PLC0415
    from treadle.engine.profile.run import profile as measure  # noqa: PLC0415
    from treadle.hardware.machine_speed import MachineSpeed  # noqa: PLC0415

    record = measure(model, progress=_show, **given)  # type: ignore[arg-type]
    _show("")
    speeds: dict[int, list[MachineSpeed]] = {}
    for sample in record.speeds:
        found = MachineSpeed(sample.read_bytes_per_second, sample.int8_ops_per_second)
        speeds.setdefault(sample.num_threads, []).append(found)
    remember_bandwidth(speeds)
    return record


def _numbers(name: str, text: str | None) -> list[int] | None:
    """Return the numbers of a list such as 1,2,4; an empty one leaves that work out."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise UsageError(f"{name}: expected numbers such as 1,2,4, found {text!r:.60}")
    return [int(word) for word in words]


def _writable(option: str, name: str) -> Path:
    """Return where to write; raises UsageError now, not after a minute of measuring, if there is no such folder."""
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{option}: expected a file in a folder that is there, found {name:.200}")
    return path


def _show(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty() and not console.is_quiet:
        console.draw(text)
