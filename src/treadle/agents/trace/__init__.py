"""Where the time of agents goes: spans around everything a task does, on this machine's clocks.

Leaves to others: opening them where the work is done (the loop, the tools, the sandbox).
"""

from treadle.agents.trace.critical_path import PathStep, children_of, critical_path
from treadle.agents.trace.model_spans import add_model_spans
from treadle.agents.trace.record import Trace, read_traces
from treadle.agents.trace.spans import Span, SpanKind, charge_cpu, charge_thread, current_span, span
from treadle.agents.trace.summary import TraceSummary, summarise
from treadle.agents.trace.time_shares import GROUPS, Group, group_spans

__all__ = [
    "GROUPS",
    "Group",
    "PathStep",
    "Span",
    "SpanKind",
    "Trace",
    "TraceSummary",
    "add_model_spans",
    "charge_cpu",
    "charge_thread",
    "children_of",
    "critical_path",
    "current_span",
    "group_spans",
    "read_traces",
    "span",
    "summarise",
]
