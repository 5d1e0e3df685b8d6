"""What the Python APIs have in common: how a loaded model is, whoever asks it.

Leaves to others: asking it (``LLM``, ``AsyncLLM``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.engine.adapters import AdapterInfo
    from treadle.engine.host import ModelHost
    from treadle.engine.load import LoadReport
    from treadle.engine.shared_cores import SharedCores
    from treadle.engine.statistics import EngineStats

__all__ = ["HostedModel"]


class HostedModel:
    """A model in memory, of which only the facts are told here."""

    _host: ModelHost

    @property
    def report(self) -> LoadReport:
        """Return how the model was loaded."""
        return self._host.report

    @property
    def name(self) -> str:
        """Return the name of the model, for messages."""
        return self._host.report.name

    @property
    def context(self) -> int:
        """Return the most tokens that prompt and answer may have together."""
        return self._host.context

    @property
    def has_chat_template(self) -> bool:
        """Tell whether the model's file carries the template that ``a chat`` needs."""
        return self._host.prompts.has_chat_template

    @property
    def adapters(self) -> list[AdapterInfo]:
        """Return the adapters that requests may name, the oldest first."""
        return self._host.adapters.infos

    @property
    def cores(self) -> SharedCores | None:
        """Return the cores that compute, to borrow some; None if their number is to stay as planned."""
        return self._host.cores

    def stats(self) -> EngineStats:
        """Return how the engine is doing: what runs and waits, the cache, rates, where the time of its steps goes."""
        return self._host.stats()
