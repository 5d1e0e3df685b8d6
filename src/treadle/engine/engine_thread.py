"""Runs an engine in a thread of its own, so that any number of threads can share it.

Leaves to others: what a step does (``Engine``) and what an answer looks like (``LLM``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from operator import methodcaller

from treadle.engine.engine import Engine
from treadle.engine.request import Request
from treadle.errors import ClosedError, UsageError

__all__ = ["EngineThread", "closed_error"]

_Order = Callable[[Engine], object]
_Hook = Callable[[], None]
_Orders = queue.SimpleQueue[_Order | None]


class EngineThread:
    """The one thread that touches an engine; others leave it orders, which it carries out between two steps.

    Keeping steps away from the caller's thread means that Ctrl-C cannot cut a step in half. The engine belongs to the
    thread alone and goes with it. ``before_step`` and ``after_step`` are called in the thread around each step, the
    latter when its events are delivered, and once more at the end. ``held_seconds`` is asked before a step how long it
    is to wait, after every order, and when the thread goes to sleep.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        before_step: _Hook | None = None,
        after_step: _Hook | None = None,
        held_seconds: Callable[[], float] | None = None,
    ) -> None:
        self._orders: _Orders = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(
            target=_serve,
            args=(engine, self._orders, before_step or _nothing, after_step or _nothing, held_seconds or _no_seconds),
            name="treadle-engine",
            daemon=True,
        )
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request that ``Scheduler.check`` has passed; raises UsageError when closed."""
        with self._lock:  # nothing may follow the order to end
            if self._is_closed:
                raise closed_error()
            self._orders.put(methodcaller("submit", request))

    def cancel(self, request: Request) -> None:
        """Forget a request and free its blocks before the next step; does nothing for one that has ended."""
        self._orders.put(methodcaller("cancel", request))

    def wake(self) -> None:
        """Have the thread ask anew how long its next step is to wait."""
        self._orders.put(_look_again)

    def close(self) -> None:
        """End the requests that still run with an error, and the thread; may be called twice."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._orders.put(None)
        if threading.current_thread() is not self._thread:  # the garbage collector may call from anywhere
            self._thread.join()


def closed_error() -> UsageError:
    """Return the error for a request that finds the model gone."""
    return UsageError("the model was closed", hint="load it again to go on")


def _nothing() -> None:
    pass


def _no_seconds() -> float:
    return 0.0


def _serve(
    engine: Engine, orders: _Orders, before_step: _Hook, after_step: _Hook, held_seconds: Callable[[], float]
) -> None:
    engine.scheduler.cache.wake = lambda: orders.put(_look_again)
    is_open = True
    while is_open:
        try:
            is_open = _carry_out(engine, orders, held_seconds)
            if is_open:
                before_step()
                engine.step()
        except Exception as error:  # whoever waits for an answer must hear of it
            engine.abort(error)
        after_step()
    engine.abort(ClosedError("the model was closed before the answer ended"))
    after_step()


def _look_again(_: Engine) -> None:
    """Do nothing: an order that ends the thread's sleep."""


def _carry_out(engine: Engine, orders: _Orders, held_seconds: Callable[[], float]) -> bool:
    """Carry out the orders there are, sleeping while a step would do nothing or is to wait; false when told to end."""
    seconds = engine.scheduler.idle_seconds()
    while True:
        held = held_seconds()
        timeout = held if seconds == 0 else seconds
        try:
            order = orders.get(block=timeout != 0, timeout=timeout)
        except queue.Empty:
            return True
        if order is None:
            return False
        order(engine)
        seconds = 0.0
