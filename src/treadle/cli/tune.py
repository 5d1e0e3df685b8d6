"""The command ``treadle tune``: tries other ways to run a model on this machine and keeps what is faster.

Leaves to others: the trials (``engine.tune``) and the record (``engine.tuning``).
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.console import console
from treadle.cli.table import print_rows
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.tuning import Tuning

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("tune")(tune)


def tune(
    model: Annotated[str, typer.Argument(help="Name of a stored model, or the path of a .gguf file.")],
    *,
    seconds: Annotated[float, typer.Option("--seconds", help="How long it may take, about.")] = 50.0,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Also choose a KV type that is slightly less exact, if it is faster.")
    ] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove what was found for this model.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure other numbers of threads, pinning, huge pages and KV types, and keep what is faster for this model.

    It holds until the machine changes: processor, cores, CPU quota, kernel or version of Treadle. Nothing else should
    run meanwhile. What is set by TREADLE_* variables or `treadle.toml` is not tried, and wins over what is found.
    """
    from treadle.engine.outset import read_settings, view_machine  # noqa: PLC0415  loads the native core
    from treadle.engine.tune import tune as measure  # noqa: PLC0415
    from treadle.engine.tuning import forget_tuning, prepare_record, save_tuning  # noqa: PLC0415
    from treadle.models.gguf import ModelFile  # noqa: PLC0415
    from treadle.models.store import resolve_model  # noqa: PLC0415

    if not seconds > 0:
        raise UsageError(f"--seconds: expected above 0, found {seconds:g}")
    file = ModelFile.open(resolve_model(model, pull=False))
    settings = read_settings({})
    if forget:
        console.note("forgotten" if forget_tuning(settings.home, file) else "there was nothing to forget")
        return
    path = prepare_record(settings.home, file)
    found = measure(file, settings, view_machine(), seconds=seconds, takes_lossy=lossy, progress=_show)
    _show("")
    save_tuning(path, file, found)
    if as_json:
        console.out(json.dumps({"settings": found.settings, "measured": found.measured}, indent=2))
    else:
        _print(found)
    console.note(f"kept in {path}")


def _show(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty() and not console.is_quiet:
        console.draw(text)


def _print(found: Tuning) -> None:
    rows = [("", "prompt tok/s", "decode tok/s")]
    rows += [(trial["name"], _rate(trial["prompt_rate"]), _rate(trial["decode_rate"])) for trial in found.measured]
    print_rows(rows)
    console.out(f"kept: {_words(found.settings)}")


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}"


def _words(settings: dict[str, Any]) -> str:
    words = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return ", ".join(words) or "the plan's own choice, which nothing beat clearly"
