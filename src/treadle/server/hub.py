"""The models a server offers by name: loads one when it is first asked for, unloads it when memory or time says so.

Leaves to others: loading itself (``engine``) and which routes use a model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from treadle.engine.remote.address import is_engine_url
from treadle.errors import CapacityError, ModelFileError, UsageError
from treadle.server.errors import ApiError, shutting_down
from treadle.server.observers import ObserveModel, Observers
from treadle.server.recent import RecentRequests

if TYPE_CHECKING:
    from treadle.engine.contract import AnswerObserver, AsyncEngine, OpenTimings

__all__ = ["AdapterSource", "InUse", "ModelHub", "ServedModel"]

_log = logging.getLogger("treadle.server")


@dataclass(frozen=True)
class AdapterSource:
    """An adapter (LoRA) that clients name as a model; ``scale`` multiplies the one its file gives."""

    name: str
    path: str
    scale: float = 1.0
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass
class ServedModel:
    """One model by the name clients use, loaded or not. ``num_users`` requests keep it from being unloaded.

    ``last_used`` is the hub's time at which it was loaded or a request for it ended, whichever was later. Its
    ``adapters``, by name, are read again whenever it is loaded. ``loading`` is the work that all requests for it
    await, and ``is_broken`` tells that the last attempt failed.
    """

    name: str
    source: str
    created: int = field(default_factory=lambda: int(time.time()))
    engine: AsyncEngine | None = None
    loading: asyncio.Task[AsyncEngine] | None = None
    is_broken: bool = False
    num_users: int = 0
    last_used: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    recent: RecentRequests = field(default_factory=RecentRequests)
    adapters: dict[str, AdapterSource] = field(default_factory=dict)

    @property
    def is_loading(self) -> bool:
        """Tell whether it is being loaded now."""
        return self.loading is not None


class InUse(NamedTuple):
    """What a request holds while it runs: a model, its engine, and the adapter that was named, if one was.

    ``name`` is the one that was asked for.
    """

    model: ServedModel
    engine: AsyncEngine
    adapter: str | None
    name: str


def _note_failure(task: asyncio.Task[AsyncEngine]) -> None:
    """Look at what ended a task, as perhaps nobody awaits it any more."""
    if not task.cancelled():
        task.exception()


class ModelHub:
    """All models of one server; they share the memory this process may use.

    Args:
        sources: What to load, by the name that clients use; the first is the default. A source that was there before
            is no other model but another name for it.
        load: Loads a source.
        adapters: Of the default model.
        idle_unload: Seconds without a request after which a model is unloaded; ``None`` keeps it.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        load: Callable[[str], Awaitable[AsyncEngine]],
        *,
        adapters: Sequence[AdapterSource] = (),
        idle_unload: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models: dict[str, ServedModel] = {}
        self.aliases: dict[str, ServedModel] = {}
        by_source: dict[str, ServedModel] = {}
        for name, source in sources.items():
            if source in by_source:
                self.aliases[name] = by_source[source]
            else:
                self.models[name] = by_source[source] = ServedModel(name, source)
        for adapter in adapters:
            self._refuse_taken(adapter.name)
            self.default.adapters[adapter.name] = adapter
        self._load = load
        self._idle_unload = idle_unload
        self._clock = clock
        # One at a time, so that the memory each finds free is still free when it takes it.
        self._load_lock = asyncio.Lock()
        self.is_closing = False
        self._is_starting = False
        # Told of every prompt that is queued, beside the model's own list of recent ones.
        self.observers: list[ObserveModel] = []

    @property
    def default(self) -> ServedModel:
        """Return the model for requests that name none."""
        return next(iter(self.models.values()))

    @property
    def loaded(self) -> list[ServedModel]:
        """Return the models in memory."""
        return [model for model in self.models.values() if model.engine is not None]

    def find(self, name: str | None) -> ServedModel:
        """Return the model of that name, or with an adapter of that name; raises ApiError 404 when there is none."""
        if name is None:
            return self.default
        if name in self.aliases:
            return self.aliases[name]
        for model in self.models.values():
            if name == model.name or name in model.adapters:
                return model
        text = f"there is no model {name!r:.80} here; this server has {', '.join(self._names())}"
        raise ApiError(404, text, param="model", code="model_not_found")

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[InUse]:
        """Hold a model, loaded if need be, for as long as a request runs; an adapter's name stands for its model.

        Raises:
            ApiError: There is no model of that name, or what was served by it cannot be loaded any more.
            CapacityError: There is not enough memory for it beside those that are in use.
        """
        model = self.find(name)
        if self.is_closing:
            raise shutting_down()
        model.num_users += 1
        try:
            engine = await self._usable(model)
            yield InUse(model, engine, name if name in model.adapters else None, name or model.name)
        finally:
            model.num_users -= 1
            model.last_used = self._clock()

    async def load_adapter(self, model: ServedModel, adapter: AdapterSource) -> None:
        """Read an adapter of a model and offer it under its name.

        Raises:
            UsageError: The name is taken, or as ``AsyncEngine.load_adapter`` does.
            TreadleError: The adapter or its model could not be loaded.
        """
        self._refuse_taken(adapter.name)
        async with self.use(model.name) as held:
            await held.engine.load_adapter(adapter.name, adapter.path, adapter.scale)
            model.adapters[adapter.name] = adapter

    async def unload_adapter(self, name: str) -> None:
        """Offer an adapter no more; raises ApiError 404 when there is none of that name."""
        model = self.find(name)
        if name not in model.adapters:
            raise ApiError(404, f"{name!r:.80} is no adapter", param="lora_name", code="model_not_found")
        del model.adapters[name]
        if model.engine is not None:
            await model.engine.unload_adapter(name)

    async def load_default(self) -> None:
        """Load the model for requests that name none, if it is not; raises TreadleError when it cannot be."""
        self._is_starting = True
        try:
            await self._loaded(self.default)
        finally:
            self._is_starting = False

    def idle_seconds(self, model: ServedModel) -> float | None:
        """Return for how long nobody has used a model; None while somebody does, or it is not loaded."""
        return None if model.engine is None or model.num_users else self._clock() - model.last_used

    async def unload_idle(self) -> None:
        """Unload every model that nobody has used for long enough."""
        if self._idle_unload is None:
            return
        for model in self.loaded:
            idle = self.idle_seconds(model)
            if idle is not None and idle >= self._idle_unload:
                await self._unload(model)

    async def close(self) -> None:
        """Unload everything, whoever uses it, and load nothing any more."""
        self.is_closing = True
        for model in self.models.values():
            if model.loading is not None:
                model.loading.cancel()
                await asyncio.wait([model.loading])
            engine, model.engine = model.engine, None
            if engine is not None:
                await engine.close()

    async def _usable(self, model: ServedModel) -> AsyncEngine:
        try:
            return await self._loaded(model)
        except (UsageError, ModelFileError) as error:  # not the client's: what it asked for is on offer
            text = f"{model.name} cannot be loaded: {error}"
            raise ApiError(503, text, "server_error", code="model_unavailable") from error

    async def _loaded(self, model: ServedModel) -> AsyncEngine:
        """Return the engine of a model; all who wait for it share one attempt, which goes on when they leave."""
        if model.engine is not None:
            return model.engine
        if model.loading is None:
            model.loading = asyncio.create_task(self._open(model))
            model.loading.add_done_callback(_note_failure)
        return await asyncio.shield(model.loading)

    async def _open(self, model: ServedModel) -> AsyncEngine:
        try:
            # What is elsewhere takes no memory worth waiting for.
            turn = nullcontext() if is_engine_url(model.source) else self._load_lock
            async with model.lock, turn:
                model.engine = await self._load_with_adapters(model)
                model.is_broken, model.last_used = False, self._clock()
                return model.engine
        except (UsageError, ModelFileError) as error:
            model.is_broken = True
            if not self._is_starting:  # else it ends the command, which tells it
                _log.error("model %s cannot be loaded: %s", model.name, error.args[0])
            raise
        finally:
            model.loading = None

    async def _load_with_adapters(self, model: ServedModel) -> AsyncEngine:
        engine = await self._load_making_room(model)
        try:
            for adapter in model.adapters.values():
                await engine.load_adapter(adapter.name, adapter.path, adapter.scale)
        except BaseException:
            await engine.close()
            raise
        engine.observe = partial(self._observe, model)
        return engine

    def _names(self) -> list[str]:
        """Return every name that clients may use."""
        return [*self.models, *self.aliases, *(each for model in self.models.values() for each in model.adapters)]

    def _refuse_taken(self, name: str) -> None:
        if name in self._names():
            raise UsageError(f"there is a model or an adapter called {name} already", hint="choose another name")

    def _observe(self, model: ServedModel, num_prompt_tokens: int | None, timings: OpenTimings) -> AnswerObserver:
        told = [observe(model.name, num_prompt_tokens, timings) for observe in self.observers]
        return Observers([model.recent.begin(num_prompt_tokens, timings), *told])

    async def _load_making_room(self, model: ServedModel) -> AsyncEngine:
        while True:
            try:
                return await self._load(model.source)
            except CapacityError:
                unused = [other for other in self.loaded if other is not model and other.num_users == 0]
                if is_engine_url(model.source) or not unused:
                    raise
                await self._unload(min(unused, key=lambda other: other.last_used))

    async def _unload(self, model: ServedModel) -> None:
        async with model.lock:  # a request that comes now loads it again afterwards
            if model.engine is None or model.num_users:
                return
            engine, model.engine = model.engine, None
            await engine.close()
