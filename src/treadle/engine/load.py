"""Turns the name of a model into everything that answers with it: file, tokenizer, template, memory plan, runner.

Leaves to others: finding and fetching files (``models.store``) and serving requests (``LLM``).
"""

from __future__ import annotations

import errno
import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from treadle.config import Settings
from treadle.engine.adapters import MAX_NUM_ADAPTERS
from treadle.engine.batching import DEFAULT_SLOWDOWN, Batching
from treadle.engine.choose import NATIVE, EngineChoice, choose_engine
from treadle.engine.embedding import Pooling, default_pooling
from treadle.engine.execution_plan import ExecutionPlan, MachineView, plan_execution, plan_threads_of
from treadle.engine.file_digest import FileStamp, stamp_files
from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_NUM_REQUESTS, MemoryPlan
from treadle.engine.open_runner import open_runner, suit_settings
from treadle.engine.open_store import open_block_stores
from treadle.engine.runner import CORE_PATH, NativeRunner
from treadle.engine.shared_cores import LendingRunner, SharedCores
from treadle.engine.step_work import StepWork, work_of
from treadle.engine.thread_watch import ThreadWatch
from treadle.engine.tuning import apply_tuning
from treadle.hardware.limits import cpu_quota
from treadle.hardware.memory import memlock_limit_bytes, memory_budget, read_huge_pages, set_huge_pages
from treadle.hardware.plan import ThreadPlan
from treadle.hardware.topology import read_topology
from treadle.models.gguf import ModelFile
from treadle.models.store import resolve_model
from treadle.models.tool_dialects.reasoning import find_reasoning

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.engine.block_store import TieredStore
    from treadle.engine.plan import ModelRunner
    from treadle.models.chat_template import ChatTemplate
    from treadle.models.text_encoder import TextEncoder
    from treadle.models.tokenizer import Tokenizer

__all__ = [
    "LoadOptions",
    "LoadReport",
    "LoadedModel",
    "PlanOptions",
    "load_model",
    "plan_model",
    "read_settings",
    "view_machine",
]


class PlanOptions(TypedDict, total=False):
    """How a model is to run: the arguments that ``LLM`` explains."""

    context: int | None
    memory: int | str | None
    ram_cache: int | str | None
    disk_cache: int | str | None
    adapter_memory: int | str | None
    max_adapters: int | None
    kv_type: str | None
    isa: str | None
    threads: int | None
    prompt_threads: int | None
    reserve_cores: int | None
    pin: bool | None
    numa: str | None
    huge_pages: bool | None
    adapt: bool | None
    mlock: bool | None
    engine: str | None


class LoadOptions(PlanOptions, total=False):
    """How to load a model: the arguments that ``LLM`` explains."""

    max_num_requests: int
    slowdown: float | None
    progress: Callable[[int, int], None] | None


@dataclass(frozen=True)
class LoadReport:
    """How a model was loaded; sizes in bytes.

    ``decode_bytes`` is what one token of one sequence reads of the weights, ``disk_cache_bytes`` the limit on KV blocks
    on disk, 0 without any. ``pooling`` is how ``LLM.embed`` makes vectors unless it is told, and ``embeds_only`` says
    that the model gives no answers. ``reasons`` says that it writes to itself before it answers.
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
    reasons: bool = False

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
    """A model that is ready to answer, and how it came to be; ``shares_blocks`` says that KV blocks hold contents."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    runner: ModelRunner
    report: LoadReport
    block_stores: Sequence[TieredStore] = ()
    shares_blocks: bool = True
    watch: ThreadWatch | None = None
    cores: SharedCores | None = None


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
    batching = Batching(max_num_requests, slowdown)
    settings = read_settings(options)
    file = ModelFile.open(resolve_model(model))
    stamp = _stamp(file)
    choice = choose_engine(file, settings.engine)
    if file.is_encoder and choice.name == "native":
        batching = batching.for_texts()
    settings = suit_settings(settings, choice, batching)
    machine = view_machine()
    if choice.name == "native":
        settings = apply_tuning(settings, file, machine)
    plan = plan_execution(
        file,
        settings,
        machine,
        max_num_requests=batching.max_num_requests,
        frees_windows=choice.name == "native",
    )
    set_huge_pages(plan.huge_pages)
    opener = partial(open_runner, file, choice, isa=settings.isa, plan=plan, batching=batching)
    tokenizer, template, runner = _load_parts(file, opener, progress)
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
    report = LoadReport(
        path=file.path,
        name=file.name,
        architecture=file.architecture,
        isa=runner.kernels,
        weight_bytes=runner.weight_bytes,
        decode_bytes=runner.decode_bytes,
        plan=plan,
        load_seconds=time.perf_counter() - started,
        disk_cache_bytes=settings.disk_cache_bytes,
        batching=batching,
        work=work_of(file, weight_bytes=runner.decode_bytes, kv_type=plan.memory.kv_type),
        engine=choice,
        max_adapters=settings.max_adapters or MAX_NUM_ADAPTERS,
        pooling=default_pooling(file.metadata, file.architecture, is_encoder=file.is_encoder),
        embeds_only=file.is_encoder,
        reasons=template is not None and find_reasoning(template.source) is not None,
    )
    loaded = LoadedModel(tokenizer, template, runner, report, block_stores, bool(block_memories))
    return _adapting(loaded, settings, plan) if plan.adapts else loaded


def _adapting(loaded: LoadedModel, settings: Settings, plan: ExecutionPlan) -> LoadedModel:
    """Let the number of threads follow what others need."""
    threads = plan.threads, plan.prompt_threads
    lending = LendingRunner(loaded.runner, threads, read_topology)
    watch = ThreadWatch(
        lending, threads, replan=lambda cpus: plan_threads_of(settings, view_machine(cpus), plan.placement)
    )
    return replace(loaded, watch=watch, cores=lending.cores)


def plan_model(model: str | Path, **options: Unpack[PlanOptions]) -> ExecutionPlan:
    """Return how a model on this machine would run, without loading its weights; raises as ``LLM`` does."""
    file, settings, machine = ModelFile.open(resolve_model(model, pull=False)), read_settings(options), view_machine()
    batching = Batching()
    is_native = choose_engine(file, settings.engine).name == "native"
    if is_native:
        settings = apply_tuning(settings, file, machine)
        batching = batching.for_texts() if file.is_encoder else batching
    return plan_execution(file, settings, machine, max_num_requests=batching.max_num_requests, frees_windows=is_native)


def usual_memory_bytes(model: str | Path, **options: Unpack[PlanOptions]) -> int:
    """Return how much memory a model takes where it is not told how much there is for it; raises as ``LLM`` does."""
    file, settings, machine = ModelFile.open(resolve_model(model)), read_settings(options), view_machine()
    memory = plan_execution(file, replace(settings, memory_bytes=None), machine).memory
    caches_bytes = memory.ram_cache_bytes + memory.disk_buffer_bytes + settings.adapter_memory_bytes
    return memory.weight_bytes + memory.kv_bytes + memory.scratch_bytes + caches_bytes


def read_settings(options: PlanOptions) -> Settings:
    """Return the settings of the environment, with the options that were given in the stead of theirs."""
    unknown = options.keys() - PlanOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"a model is loaded without the argument {min(unknown)!r}")
    return Settings.from_environment().override(**options)


def view_machine(affinity: Collection[int] = ()) -> MachineView:
    """Return what of this machine a plan depends on, as it is now."""
    return MachineView(read_topology(affinity=affinity), cpu_quota(Path("/")), memory_budget(), read_huge_pages())


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
