"""The commands ``treadle cache list``, ``clear`` and ``verify``: prompts kept on disk.

What is in the folder is left to ``engine.kv.cache_folder``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

import typer

from treadle.cli.console import console
from treadle.cli.table import print_rows
from treadle.config import Settings
from treadle.engine.kv.cache_folder import CachedModel, CacheFolder, Verdict
from treadle.errors import UsageError
from treadle.models.sources.files import format_bytes
from treadle.models.store import ModelStore, find_stored

__all__ = ["register"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(name="cache", help="Look after the prompts kept on disk.", no_args_is_help=True)
    group.command("list")(list_cache)
    group.command("clear")(clear)
    group.command("verify")(verify)
    app.add_typer(group)


def list_cache(as_json: AsJson = False) -> None:
    """List the prompts kept on disk, by model.

    A model has more than one line if its blocks differ in layout, or come from more than one build of Treadle.
    """
    models = _folder().models()
    if as_json:
        console.out(json.dumps([_facts(model) for model in models], indent=2))
        return
    if not models:
        console.note("no prompts are kept; `treadle run --disk-cache 4GiB` keeps them")
        return
    rows = [("MODEL", "ID", "BLOCKS", "TOKENS", "SIZE", "LAST USED")]
    for model in models:
        counts = (str(len(model.files)), str(_num_tokens(model)), format_bytes(model.num_bytes))
        rows.append(
            (_name(model), model.id, *counts, f"{_last_used(model):%Y-%m-%d %H:%M}" if model.files else "never")
        )
    print_rows(rows)
    console.note(f"{format_bytes(sum(model.num_bytes for model in models))} in {_folder().path}")


def clear(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Of this model only: its name or ID.")] = None,
) -> None:
    """Delete the prompts kept on disk. Running models go on without them."""
    folder = _folder()
    models = folder.models()
    chosen = models if model is None else _choose(models, model)
    for each in chosen:
        folder.clear(each)
    console.note(f"{format_bytes(sum(each.num_bytes for each in chosen))} set free")


def verify(as_json: AsJson = False) -> None:
    """Read all prompts kept on disk and delete what is damaged.

    Files that another release wrote, or that are none of Treadle's, are reported and left alone.
    """
    folder = _folder()
    models = folder.models()
    found = list(_checked(folder, models))
    wrong = [verdict for verdict in found if verdict.problem]
    num_bytes = sum(verdict.file.num_bytes for verdict in found)
    if as_json:
        problems = [
            {"path": str(verdict.file.path), "problem": verdict.problem, "deleted": verdict.is_deleted}
            for verdict in wrong
        ]
        console.out(json.dumps({"blocks": len(found), "bytes": num_bytes, "problems": problems}, indent=2))
        return
    for verdict in wrong:
        console.out(f"{verdict.file.path}: {verdict.problem} ({'deleted' if verdict.is_deleted else 'left alone'})")
    console.note(f"{len(found)} blocks read, {format_bytes(num_bytes)}: {len(found) - len(wrong)} sound")


def _folder() -> CacheFolder:
    return CacheFolder(Settings.from_environment().home)


def _checked(folder: CacheFolder, models: Sequence[CachedModel]) -> Iterator[Verdict]:
    from rich.console import Console  # noqa: PLC0415  slow to import, rarely wanted
    from rich.progress import Progress  # noqa: PLC0415

    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=console.is_quiet or not terminal.is_terminal) as bars:
        task = bars.add_task("reading", total=sum(model.num_bytes for model in models))
        for model in models:
            for verdict in folder.verify_all(model.files):
                bars.advance(task, verdict.file.num_bytes)
                yield verdict


def _choose(models: Sequence[CachedModel], wanted: str) -> list[CachedModel]:
    stored = find_stored(wanted, ModelStore())
    path = None if stored is None else str(stored.path)
    chosen = [
        model
        for model in models
        if wanted == model.id
        or (model.facts is not None and (model.facts.name.lower() == wanted.lower() or model.facts.path == path))
    ]
    if not chosen:
        names = ", ".join(f"{_name(model)} ({model.id})" for model in models) or "none"
        raise UsageError(f"no prompts of a model {wanted!r} are kept", hint=f"there are: {names}")
    return chosen


def _name(model: CachedModel) -> str:
    return "unknown" if model.facts is None else model.facts.name


def _num_tokens(model: CachedModel) -> int:
    return len(model.files) * model.block_tokens


def _last_used(model: CachedModel) -> datetime:
    return datetime.fromtimestamp(model.used_ns / 1e9, tz=timezone.utc).astimezone()


def _facts(model: CachedModel) -> dict[str, Any]:
    return {
        "id": model.id,
        "name": _name(model),
        "path": None if model.facts is None else model.facts.path,
        "layout": None if model.facts is None else model.facts.layout,
        "blocks": len(model.files),
        "tokens": _num_tokens(model),
        "bytes": model.num_bytes,
        "last_used": _last_used(model).isoformat() if model.files else None,
    }
