"""Turns the name of a model into everything that answers with it: file, tokenizer, template, memory plan, runner.

Leaves to others: finding and fetching files (``models.store``) and serving requests (``LLM``).
"""

from __future__ import annotations

import errno
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.config import Settings
from treadle.engine.adapters import MAX_NUM_ADAPTERS
from treadle.engine.batching import DEFAULT_SLOWDOWN, Batching
from treadle.engine.choose import NATIVE, EngineChoice
from treadle.engine.embedding import Pooling
from treadle.engine.execution_plan import ExecutionPlan, plan_threads_of
from treadle.engine.file_digest import FileStamp, stamp_files
from treadle.engine.kv.open_store import open_block_stores
from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_NUM_REQUESTS, MemoryPlan
from treadle.engine.open_runner import open_runner
from treadle.engine.outset import Outset, PlanOptions, read_settings, set_out, view_machine
from treadle.engine.ranking import pooling_of
from treadle.engine.runner import CORE_PATH, NativeRunner
from treadle.engine.shared_cores import LendingRunner, SharedCores
from treadle.engine.step_work import StepWork, work_of
from treadle.engine.thread_watch import ThreadWatch
from treadle.hardware.memory import memlock_limit_bytes, set_huge_pages
from treadle.hardware.plan import ThreadPlan
from treadle.hardware.topology import read_topology
from treadle.models.gguf import ModelFile
from treadle.models.store import resolve_model
from treadle.models.tool_dialects.reasoning import find_reasoning

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.engine.kv.block_store import TieredStore
    from treadle.engine.plan import ModelRunner
    from treadle.models.chat_template import ChatTemplate
    from treadle.models.pair_format import PairFormat
    from treadle.models.text_encoder import TextEncoder
    from treadle.models.tokenizer import Tokenizer

__all__ = [
    "LoadOptions",
    "LoadReport",
    "LoadedModel",
    "load_model",
]


class LoadOptions(PlanOptions, total=False):
    """How to load a model: the arguments that ``LLM`` explains."""

    max_num_requests: int
    slowdown: float | None
    progress: Callable[[int, int], None] | None


@dataclass(frozen=True)
class LoadReport:
    """How a model was loaded; sizes in bytes.

    ``decode_bytes`` is what one token of one sequence reads of the weights, ``disk_cache_bytes`` the limit on KV blocks
    on disk, 0 without any. ``pooling`` is how ``LLM.embed`` makes vectors unless it is told. ``embeds_only`` says that
    the model reads whole texts, ``ranks`` that it scores documents, and ``reasons`` that it writes to itself first.
    """

    path: Path
    name: str
    architecture: str
    isa: str
    weight_bytes: int
    decode_bytes: int
    plan: ExecutionPlan
    load_seconds: float
    disk_cache_bytes: int = 0
    batching: Batching = field(default_factory=Batching)
    pooling: Pooling = "mean"
    work: StepWork = field(default_factory=StepWork)
    engine: EngineChoice = NATIVE
    max_adapters: int = MAX_NUM_ADAPTERS
    embeds_only: bool = False
    ranks: bool = False
    reasons: bool = False

    @property
    def gives_answers(self) -> bool:
        """Tell whether prompts are answered, and not only read."""
        return not (self.embeds_only or self.ranks)

    @property
    def thread_plan(self) -> ThreadPlan:
        """Return the threads that compute."""
        return self.plan.threads

    @property
    def memory_plan(self) -> MemoryPlan:
        """Return how the memory is divided."""
        return self.plan.memory


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to answer, and how it came to be; ``shares_blocks`` says that KV blocks hold contents.

    ``pairs`` is how one that ranks reads a query and a document.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    runner: ModelRunner
    report: LoadReport
    block_stores: Sequence[TieredStore] = ()
    shares_blocks: bool = True
    watch: ThreadWatch | None = None
    cores: SharedCores | None = None
    pairs: PairFormat | None = None


def load_model(
    model: str | Path,
    *,
    max_num_requests: int = MAX_NUM_REQUESTS,
    slowdown: float | None = DEFAULT_SLOWDOWN,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[PlanOptions],
) -> LoadedModel:
    """Load a model; the arguments are those of ``LLM``."""
    started = time.perf_counter()
    outset = set_out(ModelFile.open(resolve_model(model)), read_settings(options), Batching(max_num_requests, slowdown))
    file, settings, batching = outset.file, outset.settings, outset.batching
    stamp = _stamp(file)
    plan = outset.plan()
    set_huge_pages(plan.huge_pages)
    opener = partial(open_runner, file, outset.choice, isa=settings.isa, plan=plan, batching=batching)
    tokenizer, template, runner = _load_parts(file, opener, progress)
    pairs = _read_pair_format(file, tokenizer) if file.ranks else None
    if plan.locks_memory:
        _lock_memory(runner, plan.memory)
    block_memories = () if file.is_encoder else runner.block_memories
    block_stores = open_block_stores(
        block_memories,
        name=file.name,
        paths=file.paths,
        stamp=stamp,
        core=CORE_PATH,
        block_tokens=KV_BLOCK_TOKENS,
        home=settings.home,
        ram_bytes=plan.memory.ram_cache_bytes,
        disk_bytes=settings.disk_cache_bytes,
        buffer_bytes=plan.memory.disk_buffer_bytes,
    )
    report = _report(outset, plan, runner, template, time.perf_counter() - started)
    loaded = LoadedModel(tokenizer, template, runner, report, block_stores, bool(block_memories), pairs=pairs)
    return _adapting(loaded, settings, plan) if plan.adapts else loaded


def _report(
    outset: Outset, plan: ExecutionPlan, runner: ModelRunner, template: ChatTemplate | None, load_seconds: float
) -> LoadReport:
    file = outset.file
    return LoadReport(
        path=file.path,
        name=file.name,
        architecture=file.architecture,
        isa=runner.kernels,
        weight_bytes=runner.weight_bytes,
        decode_bytes=runner.decode_bytes,
        plan=plan,
        load_seconds=load_seconds,
        disk_cache_bytes=outset.settings.disk_cache_bytes,
        batching=outset.batching,
        work=work_of(file, weight_bytes=runner.decode_bytes, kv_type=plan.memory.kv_type),
        engine=outset.choice,
        max_adapters=outset.settings.max_adapters or MAX_NUM_ADAPTERS,
        pooling=pooling_of(file),
        embeds_only=file.is_encoder,
        ranks=file.ranks,
        reasons=template is not None and find_reasoning(template.source) is not None,
    )


def _adapting(loaded: LoadedModel, settings: Settings, plan: ExecutionPlan) -> LoadedModel:
    """Let the number of threads follow what others need."""
    threads = plan.threads, plan.prompt_threads
    lending = LendingRunner(loaded.runner, threads, read_topology)
    watch = ThreadWatch(
        lending, threads, replan=lambda cpus: plan_threads_of(settings, view_machine(cpus), plan.placement)
    )
    return replace(loaded, watch=watch, cores=lending.cores)


def _stamp(file: ModelFile) -> FileStamp | None:
    try:
        return stamp_files(file.paths)
    except OSError:  # gone since it was opened
        return None


def _load_parts(
    file: ModelFile, opener: Callable[..., ModelRunner], progress: Callable[[int, int], None] | None
) -> tuple[Tokenizer, ChatTemplate | None, ModelRunner]:
    """Build the tokenizer while the weights are read and packed, which needs no interpreter's lock."""
    is_abandoned = threading.Event()

    def report(done_bytes: int, total_bytes: int) -> None:
        if is_abandoned.is_set():
            raise CancelledError
        if progress is not None:
            progress(done_bytes, total_bytes)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="treadle-load") as executor:
        try:
            loading = executor.submit(opener, progress=report)
            tokenizer, template = _read_text_parts(file, lambda: loading.result().create_encoder())
            return tokenizer, template, loading.result()
        except BaseException:
            is_abandoned.set()
            raise


def _read_text_parts(file: ModelFile, other: Callable[[], TextEncoder | None]) -> tuple[Tokenizer, ChatTemplate | None]:
    from treadle.models.chat_template import ChatTemplate  # noqa: PLC0415  imported while the weights load
    from treadle.models.tokenizer import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_metadata(file.metadata, other=other, is_complete=file.is_encoder)
    NativeRunner.trim_heap()  # it left tens of MB behind, and the weights still have to come
    return tokenizer, ChatTemplate.from_metadata(file.metadata, tokenizer.vocabulary)


def _read_pair_format(file: ModelFile, tokenizer: Tokenizer) -> PairFormat:
    from treadle.models.pair_format import PairFormat  # noqa: PLC0415  few models need it

    return PairFormat.from_metadata(file.metadata, file.architecture, tokenizer)


def _lock_memory(runner: ModelRunner, plan: MemoryPlan) -> None:
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
