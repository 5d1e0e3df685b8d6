"""Turns the name of a model into everything that answers with it: file, tokenizer, template, memory plan, runner.

Leaves to others: finding and fetching files (``models.store``) and serving requests (``LLM``).
"""

from __future__ import annotations

import errno
import os
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from treadle.config import Settings, parse_bytes
from treadle.engine.batching import DEFAULT_SLOWDOWN, Batching
from treadle.engine.file_digest import FileStamp, stamp_files
from treadle.engine.kv_type import DEFAULT_KV_TYPE
from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_BATCH_TOKENS, MAX_NUM_REQUESTS, MemoryPlan, plan_memory
from treadle.engine.open_store import open_block_store
from treadle.engine.runner import CORE_PATH, NativeRunner
from treadle.engine.step_work import StepWork, work_of
from treadle.hardware.memory import memlock_limit_bytes, memory_budget
from treadle.hardware.plan import ThreadPlan, plan_threads
from treadle.models.gguf import ModelFile
from treadle.models.store import resolve_model

if TYPE_CHECKING:
    from treadle.engine.block_store import TieredStore
    from treadle.models.chat_template import ChatTemplate
    from treadle.models.tokenizer import Tokenizer

__all__ = ["LoadOptions", "LoadReport", "LoadedModel", "load_model"]


class LoadOptions(TypedDict, total=False):
    """How to load a model: the arguments that ``LLM`` explains."""

    context: int | None
    memory: int | str | None
    ram_cache: int | str | None
    disk_cache: int | str | None
    threads: int | None
    mlock: bool
    isa: str | None
    kv_type: str | None
    max_num_requests: int
    slowdown: float | None
    progress: Callable[[int, int], None] | None


@dataclass(frozen=True)
class LoadReport:
    """How a model was loaded; sizes in bytes.

    ``decode_bytes`` is what one token of one sequence reads of the weights, ``disk_cache_bytes`` the limit on KV blocks
    on disk, 0 without any.
    """

    path: Path
    name: str
    architecture: str
    isa: str
    weight_bytes: int
    decode_bytes: int
    thread_plan: ThreadPlan
    memory_plan: MemoryPlan
    load_seconds: float
    disk_cache_bytes: int = 0
    batching: Batching = field(default_factory=Batching)
    work: StepWork = field(default_factory=StepWork)


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to answer, and how it came to be."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    runner: NativeRunner
    report: LoadReport
    block_store: TieredStore | None = None


def load_model(
    model: str | Path,
    *,
    context: int | None = None,
    memory: int | str | None = None,
    ram_cache: int | str | None = None,
    disk_cache: int | str | None = None,
    threads: int | None = None,
    mlock: bool = False,
    isa: str | None = None,
    kv_type: str | None = None,
    max_num_requests: int = MAX_NUM_REQUESTS,
    slowdown: float | None = DEFAULT_SLOWDOWN,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Load a model; the arguments are those of ``LLM``."""
    started = time.perf_counter()
    batching = Batching(max_num_requests, slowdown)
    settings = _settings(memory=memory, ram_cache=ram_cache, disk_cache=disk_cache)
    file = ModelFile.open(resolve_model(model))
    stamp = _stamp(file)
    thread_plan = plan_threads(threads)
    memory_plan = plan_memory(
        file.name,
        file.hyperparameters,
        file_bytes=file.file_bytes,
        budget=memory_budget(),
        memory_bytes=settings.memory_bytes,
        ram_cache_bytes=settings.ram_cache_bytes,
        has_disk_cache=settings.disk_cache_bytes > 0,
        context=context,
        kv_type=settings.kv_type or DEFAULT_KV_TYPE if kv_type is None else kv_type,
        max_num_requests=batching.max_num_requests,
    )
    isa = settings.isa if isa is None else isa
    tokenizer, template, runner = _load_parts(file, isa, thread_plan.cpus, memory_plan, progress)
    if mlock:
        _lock_memory(runner, memory_plan)
    block_store = open_block_store(
        runner.block_memory,
        name=file.name,
        paths=file.paths,
        stamp=stamp,
        core=CORE_PATH,
        block_tokens=KV_BLOCK_TOKENS,
        home=settings.home,
        ram_bytes=memory_plan.ram_cache_bytes,
        disk_bytes=settings.disk_cache_bytes,
        buffer_bytes=memory_plan.disk_buffer_bytes,
    )
    report = LoadReport(
        path=file.path,
        name=file.name,
        architecture=file.architecture,
        isa=runner.model.isa,
        weight_bytes=runner.model.weight_bytes,
        decode_bytes=runner.model.decode_bytes,
        thread_plan=thread_plan,
        memory_plan=memory_plan,
        load_seconds=time.perf_counter() - started,
        disk_cache_bytes=settings.disk_cache_bytes,
        batching=batching,
        work=work_of(file, weight_bytes=runner.model.decode_bytes, kv_type=memory_plan.kv_type),
    )
    return LoadedModel(tokenizer, template, runner, report, block_store)


def _settings(**sizes: int | str | None) -> Settings:
    """Return the settings of the environment, with the sizes that were given in the stead of theirs."""
    given: dict[str, Any] = {
        f"{name}_bytes": parse_bytes(name, size) for name, size in sizes.items() if size is not None
    }
    return replace(Settings.from_environment(), **given)


def _stamp(file: ModelFile) -> FileStamp | None:
    try:
        return stamp_files(file.paths)
    except OSError:  # gone since it was opened
        return None


def _load_parts(
    file: ModelFile, isa: str, cpus: list[int], plan: MemoryPlan, progress: Callable[[int, int], None] | None
) -> tuple[Tokenizer, ChatTemplate | None, NativeRunner]:
    """Build the tokenizer while the native side packs weights, which it does without the interpreter's lock."""
    is_abandoned = threading.Event()

    def report(done_bytes: int, total_bytes: int) -> None:
        if is_abandoned.is_set():
            raise CancelledError
        if progress is not None:
            progress(done_bytes, total_bytes)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="treadle-load") as executor:
        try:
            loading = executor.submit(
                NativeRunner.load,
                file,
                isa=isa,
                cpus=cpus,
                num_blocks=plan.num_blocks,
                kv_type=plan.kv_type,
                max_batch_tokens=MAX_BATCH_TOKENS,
                progress=report,
            )
            tokenizer, template = _read_text_parts(file)
            return tokenizer, template, loading.result()
        except BaseException:
            is_abandoned.set()
            raise


def _read_text_parts(file: ModelFile) -> tuple[Tokenizer, ChatTemplate | None]:
    from treadle.models.chat_template import ChatTemplate  # noqa: PLC0415  imported while the weights load
    from treadle.models.tokenizer import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_metadata(file.metadata)
    NativeRunner.trim_heap()  # it left tens of MB behind, and the weights still have to come
    return tokenizer, ChatTemplate.from_metadata(file.metadata, tokenizer.vocabulary)


def _lock_memory(runner: NativeRunner, plan: MemoryPlan) -> None:
    error_number = runner.lock_memory()
    if error_number == 0:
        return
    needed_bytes = plan.weight_bytes + plan.kv_bytes + plan.scratch_bytes
    limit_bytes = memlock_limit_bytes()
    if limit_bytes is None or error_number not in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
        text = f"mlock failed: {os.strerror(error_number)}; the model may be swapped out"
    else:
        text = (
            f"mlock: the limit is {limit_bytes // 1024:,} KiB and the model needs {needed_bytes // 1024:,} KiB; it may "
            f"be swapped out. Type `ulimit -l {needed_bytes // 1024}` first, or raise the hard limit (memlock) as root"
        )
    warnings.warn(text, RuntimeWarning, stacklevel=4)
