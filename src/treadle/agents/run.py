"""One run of an agent: the model is asked, its calls are made, and so on until it answers or something ends it.

Leaves to others: one answer of the model (``model_turn``), calls (``dispatch``), the conversation (``history``), and
starting runs (``loop``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.agents import instructions
from treadle.agents.answer_shape import ANSWER_TOOL, AnswerShape
from treadle.agents.arguments import canonical, decode_arguments, read_arguments
from treadle.agents.bounded_text import preview
from treadle.agents.dispatch import Dispatcher
from treadle.agents.events import TurnBegan, Warned
from treadle.agents.history import History, OpenCall
from treadle.agents.loop_detector import LoopDetector
from treadle.agents.model_turn import Emit, ModelAnswer, ModelTurn
from treadle.agents.result import AgentResult, EndReason
from treadle.agents.tool import Tool, ToolSpec, is_name
from treadle.agents.trace import Trace, span
from treadle.engine.conversation import Conversation
from treadle.errors import ContextError, ToolError, TreadleError
from treadle.models.tool_dialects.call_json import dump_arguments

if TYPE_CHECKING:
    from treadle.agents.budget import Spending
    from treadle.engine.contract import AsyncEngine
    from treadle.engine.request import Priority
    from treadle.engine.sampling import SamplingParams
    from treadle.models.tool_dialects import ToolCall

__all__ = ["Run", "Setup"]

# This part of a conversation that is too long is shortened at a time.
_SHORTENED_PART = 0.3


@dataclass(frozen=True)
class Setup:
    """What all runs of an agent have in common."""

    engine: AsyncEngine
    tools: Mapping[str, Tool]
    params: SamplingParams
    priority: Priority
    shape: AnswerShape | None
    max_result_chars: int
    trace_path: Path | None = None
    forces_calls: bool = False


@dataclass(frozen=True)
class _Outcome:
    end: EndReason
    answer: str = ""
    data: Any = None
    error: TreadleError | None = None


class Run:
    """A run over a history that ends with something for the model to read."""

    def __init__(self, setup: Setup, history: History, spending: Spending, emit: Emit) -> None:
        self._setup = setup
        self._history = history
        self._spending = spending
        self._emit = emit
        self._shape = setup.shape
        self._detector = LoopDetector()
        self._gives_up = self._was_encouraged = False  # whether an answer now would follow nothing but failures
        self._dispatcher = Dispatcher(setup.tools, history, setup.max_result_chars, emit)
        specs = [tool.spec for tool in setup.tools.values()]
        self._specs: list[ToolSpec] = [*specs, *([self._shape.spec] if self._shape else ())]

    async def go(self, task: str) -> AgentResult:
        """Return how it ended; errors of the engine and of the transcript end it, too."""
        with Trace.open(preview(task, 80), path=self._setup.trace_path, model=self._setup.engine.name) as trace:
            try:
                outcome = await self._work()
            except TreadleError as error:
                outcome = _Outcome("context" if isinstance(error, ContextError) else "error", error=error)
            usage = self._spending.usage
            with suppress(TreadleError):  # if that is what failed, the result says so already
                error_text = None if outcome.error is None else str(outcome.error)
                data = outcome.data
                plain = data.model_dump(mode="json") if hasattr(data, "model_dump") else data
                self._history.finish(outcome.end, outcome.answer, plain, error_text, usage)
        return AgentResult(
            answer=outcome.answer,
            data=outcome.data,
            end=outcome.end,
            messages=self._history.messages,
            usage=usage,
            trace=trace,
            error=outcome.error,
        )

    async def _work(self) -> _Outcome:
        calls = self._history.open_calls()
        if calls:  # of a run that was cut off
            await self._dispatch(calls)
        self._history.show_results()
        while True:
            reason = self._spending.near_end()
            if reason is not None:
                return await self._close(reason, instructions.closing_note(reason))
            outcome = await self._turn()
            if outcome is not None:
                return outcome

    async def _turn(self) -> _Outcome | None:
        """Let the model act once; return how the run ends, if it does."""
        with span("turn", f"turn {self._spending.usage.turns + 1}"):
            answer = await self._ask()
            if answer.end in ("budget", "deadline"):
                self._history.note_down("cut", text=answer.read.content)
                reason = self._spending.near_end() or ("seconds" if answer.end == "deadline" else "tokens")
                return await self._close(reason, instructions.closing_note(reason))
            calls = answer.read.calls
            if calls or answer.read.broken:
                return await self._act(answer)
            if not answer.read.content.strip():
                return await self._retry(answer, instructions.EMPTY_ANSWER)
            if self._is_to_be_encouraged():
                return await self._retry(answer, instructions.TRY_AGAIN)
            self._history.add_answer(answer.read.content, (), answer.reasoning)
            if answer.end == "length":
                await self._warn("the answer is cut off, as it reached the most tokens that one may have")
            if self._shape is not None:
                return await self._close("answered", instructions.ANSWER_IN_FORM)
            return _Outcome("answered", answer.read.content.strip())

    async def _act(self, answer: ModelAnswer) -> _Outcome | None:
        """Make the calls of an answer, and tell the model of those that cannot be."""
        calls, broken = self._sorted_out(answer)
        finals = [call for call in calls if self._shape is not None and call.name == ANSWER_TOOL]
        if finals and len(calls) == 1 and not broken:
            return await self._finish_with(answer, finals[0])
        texts = [answer.read.content, *(text for text, _ in broken)]
        self._history.add_answer("\n".join(text for text in texts if text), calls, answer.reasoning)
        for call in finals:
            self._history.end_call(call, instructions.NOT_ALONE, is_error=True, seconds=0.0)
        pairs = await self._dispatch([call for call in calls if call not in finals])
        pairs += [(canonical(call.name, call.arguments), instructions.NOT_ALONE) for call in finals]
        if broken:
            note = instructions.broken_note([problem for _, problem in broken])
            if answer.end == "length":
                note += "\n" + instructions.CUT_OFF
            await self._warn(note)
            self._history.note(note)
            pairs += broken
        return await self._judge(pairs)

    def _sorted_out(self, answer: ModelAnswer) -> tuple[list[OpenCall], list[tuple[str, str]]]:
        """Return the calls that a conversation can hold, and the texts of the others, each with its problem."""
        calls: list[OpenCall] = []
        broken = [(each.text, f"{preview(each.text)}: {each.problem}") for each in answer.read.broken]
        for call in answer.read.calls:
            problem = self._unspeakable(call)
            if problem is None:
                arguments = dump_arguments(decode_arguments(call.arguments, {}) or {})
                calls.append(OpenCall(self._history.next_call_id(), call.name, arguments))
            else:
                broken.append((f"{call.name} {call.arguments}", f"{preview(call.name, 80) or 'no name'}: {problem}"))
        return calls, broken

    def _unspeakable(self, call: ToolCall) -> str | None:
        """Say why a call cannot even be shown to the model again: later requests would be refused for it."""
        try:
            decode_arguments(call.arguments, {})
        except ToolError as error:
            return str(error)
        if is_name(call.name):
            return None
        return f"there is no such tool. The tools are: {', '.join(spec.name for spec in self._specs)}"

    async def _dispatch(self, calls: Sequence[OpenCall]) -> list[tuple[str, str]]:
        """Make calls, and return each in its one form with its result."""
        with span("dispatch", f"{len(calls)} calls"):
            began = self._spending.usage.seconds
            results = await self._dispatcher.run(calls, self._spending.tool_seconds_left())
            self._spending.add_tools(len(calls), self._spending.usage.seconds - began)
        self._gives_up = all(result.is_error for result in results)
        self._history.show_results()
        return [
            (canonical(call.name, call.arguments), result.text) for call, result in zip(calls, results, strict=True)
        ]

    async def _judge(self, pairs: Sequence[tuple[str, str]]) -> _Outcome | None:
        verdict = self._detector.observe(pairs)
        if verdict == "warn":
            await self._warn(instructions.LOOP_WARNING)
            self._history.note(instructions.LOOP_WARNING)
        return await self._close("loop", instructions.loop_note()) if verdict == "stop" else None

    async def _retry(self, answer: ModelAnswer, note: str) -> _Outcome | None:
        self._history.add_answer(answer.read.content, (), answer.reasoning)
        await self._warn(note)
        self._history.note(note)
        return await self._judge([("", note)])

    async def _finish_with(self, answer: ModelAnswer, call: OpenCall) -> _Outcome | None:
        """Take the structured answer; what is wrong with it is told to the model."""
        assert self._shape is not None
        try:
            text, data = self._shape.read(read_arguments(call.arguments, self._shape.spec))
            if self._is_to_be_encouraged():
                raise ToolError(instructions.TRY_AGAIN)
        except ToolError as error:
            self._history.add_answer(answer.read.content, [call], answer.reasoning)
            text = f"Error: the answer was not taken. {error}"
            self._history.end_call(call, text, is_error=True, seconds=0.0)
            self._history.show_results()
            return await self._judge([(canonical(call.name, call.arguments), text)])
        self._history.add_answer(text, (), answer.reasoning)
        return _Outcome("answered", text, data)

    def _is_to_be_encouraged(self) -> bool:
        """Tell whether an answer comes right after calls that all failed, once in a run: small models give up early."""
        is_first = self._gives_up and not self._was_encouraged
        self._was_encouraged |= is_first
        return is_first

    async def _close(self, end: EndReason, note: str) -> _Outcome:
        """Ask for an answer one last time, without tools."""
        await self._warn(note)
        self._history.note(note)
        answer = await self._ask(is_closing=True)
        if self._shape is None:
            is_answer = not answer.read.calls and not answer.read.broken
            text = answer.read.content.strip() if is_answer else ""
            self._history.add_answer(text, (), answer.reasoning)
            return _Outcome(end, text)
        for call in answer.read.calls:
            with suppress(ToolError):
                text, data = self._shape.read(read_arguments(call.arguments, self._shape.spec))
                self._history.add_answer(text, (), answer.reasoning)
                return _Outcome(end, text, data)
        error = ToolError("the model gave no answer of the form that was asked for")
        return _Outcome("error" if end == "answered" else end, error=error)

    async def _ask(self, *, is_closing: bool = False) -> ModelAnswer:
        """Ask the model; where the conversation is too long for it, the oldest results are shortened."""
        setup = self._setup
        await self._emit(TurnBegan(self._spending.usage.turns + 1, is_closing))
        while True:
            turn = ModelTurn(
                setup.engine,
                setup.params,
                setup.priority,
                self._spending,
                {spec.name: spec.parameters for spec in self._specs},
                self._emit,
                is_closing=is_closing,
            )
            try:
                answer = await turn.ask(self._conversation(is_closing=is_closing))
            except ContextError:
                freed = self._history.shorten(int(self._history.num_chars() * _SHORTENED_PART))
                if not freed:
                    raise
                await self._warn(f"the conversation is too long: {freed} characters of old results were left out")
                continue
            self._history.note_down("usage", usage=asdict(self._spending.usage))
            return answer

    def _conversation(self, *, is_closing: bool) -> Conversation:
        messages, definitions = list(self._history.messages), [spec.definition() for spec in self._specs]
        if self._shape is not None and (is_closing or not self._setup.tools):
            return Conversation(messages, definitions, "required", (ANSWER_TOOL,), is_parallel=False)
        if is_closing or not definitions:
            return Conversation(messages, choice="none")
        if self._setup.forces_calls:
            return Conversation(messages, definitions, "required", is_parallel=False)
        return Conversation(messages, definitions)

    async def _warn(self, text: str) -> None:
        self._history.note_down("warning", text=text)
        await self._emit(Warned(text))
