"""Where the time of agents goes: spans around everything a task does, on this machine's clocks.

Leaves to others: opening them where the work is done (the loop, the tools, the sandbox).
"""

from treadle.agents.trace.critical_path import PathStep, critical_path
from treadle.agents.trace.model_spans import add_model_spans
from treadle.agents.trace.record import Trace, read_traces
from treadle.agents.trace.span import Span, SpanKind, current_span, span
from treadle.agents.trace.summary import TraceSummary, summarise

__all__ = [
    "PathStep",
    "Span",
    "SpanKind",
    "Trace",
    "TraceSummary",
    "add_model_spans",
    "critical_path",
    "current_span",
    "read_traces",
    "span",
    "summarise",
]
