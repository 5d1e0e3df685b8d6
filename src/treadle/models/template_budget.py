"""Limits on what rendering one chat template may cost: steps, processor time, and the text it builds.

Where a template spends is watched by ``template_sandbox``; this module keeps the account.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any

from jinja2.utils import Namespace

__all__ = ["BudgetExceeded", "TemplateBudget"]

_MAX_STEPS = 1_000_000
_MAX_SECONDS = 1.0
_STEPS_PER_CLOCK_LOOK = 16
_MAX_TEXT = 1_000_000
_MAX_BUILT = 64
_ELEMENT_COST = 64
_MAX_ELEMENTS = 1_000_000
_MAX_CONTAINERS = 100_000
_MAX_INTEGER_BITS = 4096
_CONTAINERS = (list, tuple, dict, Namespace)

_current: ContextVar[TemplateBudget] = ContextVar("treadle_template_budget")


class BudgetExceeded(Exception):  # noqa: N818 - it is control flow towards a TemplateError, not an error of its own
    """The template wanted more than it may have."""


class TemplateBudget:
    """What one rendering may still use.

    Args:
        inputs: The values given to the template. They set how long a text may grow.
        share: The part of the usual steps and time this rendering gets.
    """

    def __init__(self, inputs: Any, *, share: float = 1.0) -> None:
        self._steps_left = int(_MAX_STEPS * share)
        self._deadline = time.thread_time() + _MAX_SECONDS * share
        self._input_lengths: dict[int, int] = {}
        self._max_text = _MAX_TEXT + 4 * self._add_input(inputs)
        self._built_left = _MAX_BUILT * self._max_text

    @staticmethod
    def current() -> TemplateBudget:
        """The budget of the rendering that runs in this thread."""
        return _current.get()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Make this the current budget for a while."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def step(self) -> None:
        """Count one step, and look at the clock now and then."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise BudgetExceeded(f"it takes more than {_MAX_STEPS} steps")
        if self._steps_left % _STEPS_PER_CLOCK_LOOK == 0 and time.thread_time() > self._deadline:
            raise BudgetExceeded(f"it takes longer than {_MAX_SECONDS:g} s")

    def allow_text(self, length: int) -> None:
        """Account for a text about to be built."""
        if length > self._max_text:
            raise BudgetExceeded(f"it builds a text of {length} characters, more than {self._max_text}")
        self._built_left -= length
        if self._built_left < 0:
            raise BudgetExceeded(f"it builds more than {_MAX_BUILT * self._max_text} characters in all")

    def allow_elements(self, count: int) -> None:
        """Account for a list about to be built."""
        if count > _MAX_ELEMENTS:
            raise BudgetExceeded(f"it builds a list of {count} elements, more than {_MAX_ELEMENTS}")
        self._built_left -= count * _ELEMENT_COST
        self.allow_text(0)

    def allow_integer(self, bits: int) -> None:
        """Refuse numbers that only serve to fill memory."""
        if bits > _MAX_INTEGER_BITS:
            raise BudgetExceeded(f"it computes a number of {bits} bits, more than {_MAX_INTEGER_BITS}")

    def account(self, value: Any) -> Any:
        """Account for a value that an operation gave; returns it."""
        if isinstance(value, (str, bytes)):
            self.allow_text(len(value))
        elif isinstance(value, int):
            self.allow_integer(value.bit_length())
        elif isinstance(value, (list, tuple, dict)) and id(value) not in self._input_lengths:
            self.allow_elements(len(value))
        return value

    def measure(self, value: Any) -> int:
        """The length a value has at least when written out, each shared part counted wherever it occurs.

        Lists that hold themselves, or each other many times over, would take for ever to compare or write; they are
        refused.
        """
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        length, num_containers, pending = 0, 0, [value]
        while pending:
            container = pending.pop()
            num_containers += 1
            known = self._input_lengths.get(id(container))
            if known is not None:
                length += known
                continue
            for child in _children(container):
                if isinstance(child, _CONTAINERS):
                    pending.append(child)
                length += len(child) if isinstance(child, str) else 1
            if length > self._max_text or num_containers + len(pending) > _MAX_CONTAINERS:
                raise BudgetExceeded(
                    f"it handles values of more than {self._max_text} characters or {_MAX_CONTAINERS} lists"
                )
        return length

    def _add_input(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        length = sum(1 + self._add_input(child) for child in _children(value))
        self._input_lengths[id(value)] = length
        return length


def _children(container: Any) -> Iterable[Any]:
    if isinstance(container, Namespace):
        container = getattr(container, "_Namespace__attrs")  # noqa: B009 - the name is private to Jinja and unknown to mypy
    return chain(container, container.values()) if isinstance(container, dict) else container
