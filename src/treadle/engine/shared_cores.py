"""The cores that an engine computes on, and running its steps without those that others have borrowed.

Leaves to others: who borrows when (``agents.co_schedule``), and programs that do not ask: the native workers notice
those (see ``thread_watch``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from treadle.engine.plan import ModelRunner, StepPlan, StepResult
from treadle.hardware.plan import UNPINNED, ThreadPlan
from treadle.hardware.topology import Topology, lending_order

__all__ = ["LendingRunner", "SharedCores"]


class SharedCores:
    """The cores of an engine, some of which it leaves to others for a while. Any thread may use it.

    Args:
        cores: The CPUs of each core of this process, in the order in which the engine gives them up.
        threads: Of each thread of the engine the CPU it stays on, or -1.
    """

    def __init__(self, cores: Sequence[frozenset[int]], threads: Sequence[int]) -> None:
        self._cores, self._threads = cores, threads
        self._num_lent = 0
        self._num_requests = 0
        self._held_until = 0.0
        self._wake: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[], None]] = []

    @property
    def cores(self) -> Sequence[frozenset[int]]:
        """Return the CPUs of each core, the first to be lent first."""
        return self._cores

    @property
    def has_places(self) -> bool:
        """Tell whether it is known which cores the engine leaves; False if the system places its threads."""
        return UNPINNED not in self._threads

    @property
    def num_spare(self) -> int:
        """Return how many cores the engine never uses."""
        return max(0, len(self._cores) - len(self._threads))

    @property
    def num_requests(self) -> int:
        """Return how many requests the engine has to compute."""
        return self._num_requests

    @property
    def num_lent(self) -> int:
        """Return how many cores others have."""
        return self._num_lent

    def lend(self, num_cores: int) -> None:
        """Leave the first ``num_cores`` of ``cores`` to others from the next step on; the engine keeps one thread."""
        self._num_lent = num_cores

    def hold(self, seconds: float) -> None:
        """Let the engine begin no step for so long; 0 lets it go on.

        It hears of new requests meanwhile. A step that is under way goes on.
        """
        self._held_until = time.monotonic() + seconds
        self._wake()

    def held_seconds(self) -> float:
        """Return how long the engine is to begin no step, from now on."""
        return max(0.0, self._held_until - time.monotonic())

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when it has changed how long the engine is held."""
        self._wake = wake

    def kept(self, threads: list[int]) -> list[int]:
        """Return the threads that go on with what is lent now."""
        num_kept = len(threads) - max(0, self._num_lent - self.num_spare)
        return threads[: max(1, num_kept)]

    def replan(self, cores: Sequence[frozenset[int]], threads: Sequence[int]) -> None:
        """Take note that the engine may use other cores from now on."""
        self._cores, self._threads = cores, threads

    def note_requests(self, num_requests: int) -> None:
        """Take note of how many requests the engine has; to be called in its thread, between steps."""
        if num_requests != self._num_requests:
            self._num_requests = num_requests
            for listener in tuple(self._listeners):
                listener()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` in the engine's thread when ``num_requests`` changes; it must neither block nor raise."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Undo ``add_listener``."""
        self._listeners.remove(listener)


class LendingRunner:
    """Runs plans as another runner does, on the threads whose cores are not lent.

    Args:
        runner: Computes the steps.
        plans: The threads of answers and of prompts.
        topology: Tells the cores of this process as they are now.
    """

    def __init__(
        self, runner: ModelRunner, plans: tuple[ThreadPlan, ThreadPlan], topology: Callable[[], Topology]
    ) -> None:
        self._runner = runner
        self._topology = topology
        self._threads = plans[0].cpus, plans[1].cpus
        self.cores = SharedCores(*self._layout())
        self._num_withheld = 0

    @property
    def num_threads(self) -> int:
        """Return how many threads computed the latest step."""
        return self._runner.num_threads

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every chunk of ``plan``, as ``Runner.run`` does."""
        if self._num_withheld != self.cores.num_lent:
            self._withhold()
        return self._runner.run(plan)

    def set_threads(self, cpus: list[int], prompt_cpus: list[int]) -> None:
        """Give the next steps other threads, as ``ModelRunner.set_threads`` does."""
        self._threads = cpus, prompt_cpus
        self.cores.replan(*self._layout())
        self._withhold()

    def limit_threads(self, most: int | None) -> None:
        """Let the next steps use at most so many threads; None lifts the limit."""
        self._runner.limit_threads(most)

    def _withhold(self) -> None:
        self._num_withheld = self.cores.num_lent
        self._runner.set_threads(*(self.cores.kept(threads) for threads in self._threads))

    def _layout(self) -> tuple[list[frozenset[int]], list[int]]:
        longer = max(self._threads, key=len)
        return lending_order(self._topology(), longer), longer
