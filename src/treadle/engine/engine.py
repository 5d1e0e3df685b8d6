"""The loop: schedule, run, apply, emit.

Leaves to others: when to step, and in which thread (``EngineThread``).
"""

from __future__ import annotations

from treadle.engine.plan import Runner, StepResult
from treadle.engine.request import Request
from treadle.engine.scheduler import Scheduler
from treadle.errors import InternalError, TreadleError

__all__ = ["Engine"]


class Engine:
    """Advances any number of requests together, one step at a time. Not thread-safe: one caller at a time."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self._runner = runner

    @property
    def has_work(self) -> bool:
        """Tell whether there is anything left to do, now or when something else has ended."""
        return self.scheduler.has_work

    def submit(self, request: Request) -> None:
        """Queue a request; it is told at once if it could never finish, or if nothing of its answer is left open."""
        if request.finish_reason is not None:
            request.deliver(request.end())
            return
        try:
            self.scheduler.add(request)
        except TreadleError as error:
            request.deliver(request.fail(error))

    def cancel(self, request: Request) -> None:
        """Forget a request and free what it holds; it sends no more events."""
        self.scheduler.cancel(request)

    def step(self) -> None:
        """Advance every request that has its turn; each is told what happened."""
        for event in self.scheduler.expire():
            event.request.deliver(event)
        plan = self.scheduler.schedule()
        result = self._runner.run(plan) if plan.chunks else StepResult()
        for event in self.scheduler.apply(plan, result):
            event.request.deliver(event)

    def abort(self, error: BaseException) -> None:
        """End every request because of ``error``; to be called when a step did not return."""
        if not isinstance(error, TreadleError):
            error = InternalError(f"the step that served this request was cut short: {type(error).__name__}: {error}")
        for event in self.scheduler.abort(error):
            event.request.deliver(event)
