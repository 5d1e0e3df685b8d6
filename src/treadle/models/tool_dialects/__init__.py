"""How models spell tool calls and reasoning in their answers, one file per dialect, and how to read them as they come.

Leaves to others: showing tools to the model (``chat_template``) and forcing a call (``engine.constraints``).
"""

from treadle.models.tool_dialects.dialect import DIALECTS, Dialect, find_dialect
from treadle.models.tool_dialects.parts import AnswerParser, Content, Part, Reasoning, ToolCall, ToolSchemas
from treadle.models.tool_dialects.reasoning import ReasoningMarkers, ReasoningParser, find_reasoning

__all__ = [
    "DIALECTS",
    "AnswerParser",
    "Content",
    "Dialect",
    "Part",
    "Reasoning",
    "ReasoningMarkers",
    "ReasoningParser",
    "ToolCall",
    "ToolSchemas",
    "find_dialect",
    "find_reasoning",
]
