"""Run language models on the CPU you already have, near the limit of that CPU.

>>> from treadle import LLM, SamplingParams
>>> with LLM("smollm2:135m") as llm:
...     print(llm.chat([{"role": "user", "content": "Name the capital of Japan."}], SamplingParams(temperature=0)).text)
"""

from __future__ import annotations

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from treadle.agents.budget import Budget, Prices, Usage
    from treadle.agents.events import CallBegan, CallEnded, ReasoningPiece, RunEnded, TextPiece, TurnBegan, Warned
    from treadle.agents.function_tool import FunctionTool, tool
    from treadle.agents.loop import Agent
    from treadle.agents.result import AgentResult
    from treadle.agents.tool import Tool, ToolResult, ToolSpec
    from treadle.engine.adapters import AdapterInfo
    from treadle.engine.async_llm import AsyncLLM
    from treadle.engine.completion import ChatMessage, Completion, CompletionChunk, Timings, TokenLogprob
    from treadle.engine.conversation import Conversation
    from treadle.engine.counters import PoolCounters, SchedulerCounters
    from treadle.engine.kv.block_store import StoreStats
    from treadle.engine.llm import LLM
    from treadle.engine.prompt import EncodedPrompt
    from treadle.engine.ranking import RankedDocument
    from treadle.engine.remote.engine import RemoteEngine
    from treadle.engine.remote.http import RemoteLimits
    from treadle.engine.remote.llm import RemoteLLM
    from treadle.engine.sampling import SamplingParams
    from treadle.engine.statistics import EngineStats, StepStats
    from treadle.engine.structured.form import ChoiceForm, JsonForm, RegexForm
    from treadle.engine.structured.guide import Constraint
    from treadle.errors import (
        CapacityError,
        DeadlineError,
        DownloadError,
        InternalError,
        ModelFileError,
        RemoteError,
        TemplateError,
        ToolError,
        TreadleError,
        UnsupportedModelError,
        UsageError,
    )

__all__ = [
    "LLM",
    "AdapterInfo",
    "Agent",
    "AgentResult",
    "AsyncLLM",
    "Budget",
    "CallBegan",
    "CallEnded",
    "CapacityError",
    "ChatMessage",
    "ChoiceForm",
    "Completion",
    "CompletionChunk",
    "Constraint",
    "Conversation",
    "DeadlineError",
    "DownloadError",
    "EncodedPrompt",
    "EngineStats",
    "FunctionTool",
    "InternalError",
    "JsonForm",
    "ModelFileError",
    "PoolCounters",
    "Prices",
    "RankedDocument",
    "ReasoningPiece",
    "RegexForm",
    "RemoteEngine",
    "RemoteError",
    "RemoteLLM",
    "RemoteLimits",
    "RunEnded",
    "SamplingParams",
    "SchedulerCounters",
    "StepStats",
    "StoreStats",
    "TemplateError",
    "TextPiece",
    "Timings",
    "TokenLogprob",
    "Tool",
    "ToolError",
    "ToolResult",
    "ToolSpec",
    "TreadleError",
    "TurnBegan",
    "UnsupportedModelError",
    "Usage",
    "UsageError",
    "Warned",
    "tool",
]

# Imported when first asked for: `import treadle.errors` must not load the native core.
_MODULES = {
    **dict.fromkeys(("Budget", "Prices", "Usage"), "treadle.agents.budget"),
    **dict.fromkeys(
        ("CallBegan", "CallEnded", "ReasoningPiece", "RunEnded", "TextPiece", "TurnBegan", "Warned"),
        "treadle.agents.events",
    ),
    **dict.fromkeys(("FunctionTool", "tool"), "treadle.agents.function_tool"),
    "Agent": "treadle.agents.loop",
    "AgentResult": "treadle.agents.result",
    **dict.fromkeys(("Tool", "ToolResult", "ToolSpec"), "treadle.agents.tool"),
    "LLM": "treadle.engine.llm",
    "AdapterInfo": "treadle.engine.adapters",
    "AsyncLLM": "treadle.engine.async_llm",
    "Constraint": "treadle.engine.structured.guide",
    "Conversation": "treadle.engine.conversation",
    **dict.fromkeys(("ChoiceForm", "JsonForm", "RegexForm"), "treadle.engine.structured.form"),
    "EngineStats": "treadle.engine.statistics",
    "PoolCounters": "treadle.engine.counters",
    "SchedulerCounters": "treadle.engine.counters",
    "StepStats": "treadle.engine.statistics",
    "StoreStats": "treadle.engine.kv.block_store",
    "EncodedPrompt": "treadle.engine.prompt",
    "RankedDocument": "treadle.engine.ranking",
    "RemoteEngine": "treadle.engine.remote.engine",
    "RemoteLLM": "treadle.engine.remote.llm",
    "RemoteLimits": "treadle.engine.remote.http",
    "SamplingParams": "treadle.engine.sampling",
    **dict.fromkeys(
        ("ChatMessage", "Completion", "CompletionChunk", "Timings", "TokenLogprob"), "treadle.engine.completion"
    ),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(_importlib.import_module(_MODULES.get(name, "treadle.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
