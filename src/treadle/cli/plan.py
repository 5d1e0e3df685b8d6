"""The command ``treadle plan``: how a model would run on this machine, and why so.

Leaves to others: the choices (``engine.execution_plan``), and trying alternatives (``treadle tune``).
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.console import console
from treadle.cli.table import print_rows

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan")(plan)


def plan(
    model: Annotated[str, typer.Argument(help="Name of a stored model, or the path of a .gguf file.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    context: options.Context = None,
    memory: options.Memory = None,
    ram_cache: options.RamCache = None,
    disk_cache: options.DiskCache = None,
    kv_type: options.KvType = None,
    threads: options.Threads = None,
    prompt_threads: options.PromptThreads = None,
    pin: options.Pin = None,
    numa: options.Numa = None,
    huge_pages: options.HugePages = None,
    adapt: options.Adapt = None,
    mlock: options.Mlock = None,
) -> None:
    """Show how a model would run on this machine: threads, places, memory, context, and the reason of each choice.

    Options win over TREADLE_* variables, those over `treadle.toml` in this folder, that over `treadle.toml` in the
    user's configuration folder, and all of them over what is measured.
    """
    from treadle.engine.load import plan_model  # noqa: PLC0415  loads the native core

    chosen = plan_model(
        model,
        context=context,
        memory=memory,
        ram_cache=ram_cache,
        disk_cache=disk_cache,
        kv_type=kv_type,
        threads=threads,
        prompt_threads=prompt_threads,
        pin=pin,
        numa=numa,
        huge_pages=huge_pages,
        adapt=adapt,
        mlock=mlock,
    )
    if as_json:
        console.out(json.dumps(chosen.as_dict(), indent=2))
    else:
        print_rows(chosen.choices())
