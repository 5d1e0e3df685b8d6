"""Opens the model of a command and shows how that goes: pulling, a bar if loading takes long, the plan with --verbose.

Leaves to others: fetching (``models.store``) and loading (``LLM``).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from treadle.cli.console import console
from treadle.cli.options import DEFAULT_MODEL
from treadle.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.engine.contract import AsyncEngine
    from treadle.engine.llm import LLM
    from treadle.engine.load import LoadOptions, LoadReport
    from treadle.engine.remote.llm import RemoteLLM
    from treadle.models.download import Progress, PullEvent

__all__ = ["open_async_model", "open_model"]

_BAR_DELAY_SECONDS = 0.5
_BAR_CHARS = 30


def open_model(model: str | None, **options: Unpack[LoadOptions]) -> LLM | RemoteLLM:
    """Load a model, pulling it first if it is not on this machine, or connect to the engine that has it.

    Args:
        model: By default the small one, or the only one of an engine elsewhere.
        options: The arguments of ``LLM``; ``engine`` may be a URL.

    Raises:
        UsageError: There is no such model, it gives no answers, or an option is for models in this process only.
        TreadleError: As ``LLM`` and ``RemoteLLM`` do.
    """
    from treadle.engine.open_engine import find_engine_url  # noqa: PLC0415  not before `--help` is answered

    found = find_engine_url(model, options.get("engine"))
    if found is not None:
        _refuse_local_options(options)
        from treadle.engine.remote.llm import RemoteLLM  # noqa: PLC0415  slow to import, not always wanted

        return RemoteLLM(*found)
    path = _find_model(DEFAULT_MODEL if model is None else model)
    from treadle.engine.embedding import answers_refused  # noqa: PLC0415
    from treadle.engine.llm import LLM  # noqa: PLC0415  not before a wrong name was refused

    with _LoadBar(path.name) as bar:
        options["progress"] = bar.update
        llm = LLM(path, **options)
    if not llm.report.gives_answers:
        llm.close()
        raise answers_refused(llm.name, ranks=llm.report.ranks)
    _tell(llm.report)
    return llm


async def open_async_model(
    model: str | None, *, default: str, embeds: bool = False, **options: Unpack[LoadOptions]
) -> AsyncEngine:
    """Do what ``open_model`` does for commands that ask in an event loop.

    Args:
        model: As for ``open_model``.
        default: The model by default.
        embeds: Whether one that only embeds will do.
        options: As for ``open_model``.
    """
    from treadle.engine.open_engine import find_engine_url  # noqa: PLC0415

    found = find_engine_url(model, options.get("engine"))
    if found is not None:
        _refuse_local_options(options)
        from treadle.engine.remote.engine import RemoteEngine  # noqa: PLC0415

        return await RemoteEngine.connect(*found)
    is_abandoned = threading.Event()
    try:
        path = await asyncio.to_thread(_find_model, default if model is None else model, is_abandoned)
    except asyncio.CancelledError:
        is_abandoned.set()
        raise
    from treadle.engine.async_llm import AsyncLLM  # noqa: PLC0415
    from treadle.engine.embedding import answers_refused  # noqa: PLC0415

    with _LoadBar(path.name) as bar:
        options["progress"] = bar.update
        llm = await AsyncLLM.load(path, **options)
    if not llm.report.gives_answers and (llm.report.ranks or not embeds):
        await llm.close()
        raise answers_refused(llm.name, ranks=llm.report.ranks)
    _tell(llm.report)
    return llm


def _tell(report: LoadReport) -> None:
    if report.engine.reason:
        console.note(report.engine.reason)
    if console.is_verbose:
        _describe(report)


def _refuse_local_options(options: LoadOptions) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if name != "engine" and value is not None]
    if given:
        raise UsageError(f"{', '.join(given)}: an engine elsewhere has settings of its own")


def _find_model(model: str, is_abandoned: threading.Event | None = None) -> Path:
    from treadle.models.store import resolve_model  # noqa: PLC0415

    with ExitStack() as stack:
        display: Progress | None = None

        def show(event: PullEvent) -> None:
            nonlocal display
            if is_abandoned is not None and is_abandoned.is_set():
                raise CancelledError
            if display is None:
                console.note(f"{model} is not on this machine yet: pulling it, once")
                from treadle.cli.pull_display import pull_display  # noqa: PLC0415  slow to import, rarely wanted

                display = stack.enter_context(pull_display(quiet=console.is_quiet))
            display(event)

        return resolve_model(model, progress=show)


def _describe(report: LoadReport) -> None:
    memory = report.memory_plan
    console.detail(f"model: {report.name} ({report.architecture}), {report.path}")
    console.detail(f"kernels: {report.isa}")
    for name, value, reason in report.plan.choices():
        console.detail(f"{name}: {value} ({reason})")
    console.detail(
        f"memory: weights {report.weight_bytes / 1e6:.0f} MB, KV up to {memory.kv_bytes / 1e6:.0f} MB, "
        f"scratch up to {memory.scratch_bytes / 1e6:.0f} MB, "
        f"caches up to {(memory.ram_cache_bytes + memory.disk_buffer_bytes) / 1e6:.0f} MB"
    )
    console.detail(f"prompts on disk: up to {report.disk_cache_bytes / 1e6:.0f} MB for all models")
    console.detail(f"loaded in {report.load_seconds:.2f} s")


class _LoadBar:
    """A bar on stderr for loads that take long enough to wonder, on a terminal only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shows_at = time.monotonic() + _BAR_DELAY_SECONDS
        self._is_wanted = sys.stderr is not None and sys.stderr.isatty() and not console.is_quiet
        self._percent = -1

    def update(self, done_bytes: int, total_bytes: int) -> None:
        if not self._is_wanted or total_bytes == 0 or time.monotonic() < self._shows_at:
            return
        percent = 100 * done_bytes // total_bytes
        if percent == self._percent:
            return
        self._percent = percent
        bar = ("#" * (_BAR_CHARS * percent // 100)).ljust(_BAR_CHARS, "-")
        console.draw(f"loading {self._name} [{bar}] {percent:3d} %")

    def __enter__(self) -> _LoadBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._percent >= 0:
            console.draw("")
