"""The conversation of a run: what the model is shown, and the same on record.

Leaves to others: the file (``transcript``), and when something is said (``run``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treadle.agents.budget import Usage
from treadle.agents.transcript import VERSION, Transcript
from treadle.errors import UsageError

__all__ = ["History", "OpenCall"]

Message = dict[str, Any]

# What is left of a result that must make room, and how long one must be to be worth it.
_SHORT_CHARS = 200
_MIN_LONG_CHARS = 600


@dataclass(frozen=True)
class OpenCall:
    """A call whose result is not known; ``arguments`` is JSON text. ``has_begun`` says that it may have been made."""

    call_id: str
    name: str
    arguments: str
    has_begun: bool = False


class History:
    """The messages of a run; all that is said goes to ``transcript`` first, if there is one.

    What is wrong with the file is raised as ``UsageError`` by whatever wrote to it.
    """

    def __init__(self, transcript: Transcript | None = None) -> None:
        self.messages: list[Message] = []
        self.transcript = transcript
        self.usage = Usage()
        self.end: Mapping[str, Any] | None = None
        self._num_calls = 0
        self._begun: set[str] = set()
        self._results: dict[str, Message] = {}

    @classmethod
    def reopen(cls, path: Path) -> History:
        """Return the history in a file, to go on with.

        Raises:
            UsageError: The file cannot be read, or is no transcript.
        """
        transcript, lines = Transcript.reopen(path)
        history = cls()
        try:
            for number, line in enumerate(lines, 1):
                try:
                    history._replay(line)
                except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    raise UsageError(f"transcript {path}: line {number} makes no sense: {reason}") from None
        except BaseException:
            transcript.close()
            raise
        history.transcript = transcript
        return history

    def begin(self, task: str, *, instructions: str, model: str, tools: Sequence[str]) -> None:
        """Begin a run, or go on with another task after one has ended."""
        if not self.messages:
            self.note_down("run", version=VERSION, task=task, model=model, tools=list(tools))
            if instructions:
                self.add({"role": "system", "content": instructions})
        self.end = None
        self.usage = Usage()
        self.add({"role": "user", "content": task})

    def add(self, message: Message, **more: Any) -> None:
        """Add a message; ``more`` goes on record only."""
        self.note_down("message", message=message, **more)
        self._take(message)

    def add_answer(self, content: str, calls: Sequence[OpenCall], reasoning: str = "") -> None:
        """Add what the model said, with the calls that it makes."""
        message: Message = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        self.add(message, **({"reasoning": reasoning} if reasoning else {}))

    def note(self, text: str) -> None:
        """Tell the model something, at the end of what it reads next.

        That is not a message of its own: many templates take only turns that alternate.
        """
        self.note_down("note", text=text)
        self._append_note(text)

    def next_call_id(self) -> str:
        """Return a new name for a call: nine letters and digits, which every template takes."""
        self._num_calls += 1
        return f"call{self._num_calls:05d}"

    def begin_call(self, call: OpenCall) -> None:
        """Put on record that a call is made, before it is."""
        self._begun.add(call.call_id)
        self.note_down("call", id=call.call_id, name=call.name, arguments=call.arguments)

    def end_call(self, call: OpenCall, text: str, *, is_error: bool, seconds: float) -> None:
        """Put the result of a call on record."""
        self.note_down("result", id=call.call_id, name=call.name, text=text, is_error=is_error, seconds=seconds)
        self._results[call.call_id] = _result_message(call.call_id, call.name, text)

    def show_results(self) -> None:
        """Show the model all results that are there, in the order of its calls."""
        order = [call["id"] for call in self._last_calls()]
        self.messages += [self._results.pop(call_id) for call_id in order if call_id in self._results]

    def open_calls(self) -> list[OpenCall]:
        """Return the calls of the last answer that have no result, in their order."""
        shown = {message.get("tool_call_id") for message in self.messages}
        return [
            OpenCall(
                call["id"], call["function"]["name"], call["function"]["arguments"], has_begun=call["id"] in self._begun
            )
            for call in self._last_calls()
            if call["id"] not in self._results and call["id"] not in shown
        ]

    def finish(self, reason: str, answer: str, data: Any, error: str | None, usage: Usage) -> None:
        """Put on record how the run ended."""
        self.note_down("end", reason=reason, answer=answer, data=data, error=error, usage=asdict(usage))

    def shorten(self, num_chars: int) -> int:
        """Shorten the oldest results, those of the last answer at the end, until so much is gone; return how much."""
        freed = 0
        for message in self.messages:
            if freed >= num_chars:
                break
            content = message["content"]
            if message["role"] != "tool" or len(content) < _MIN_LONG_CHARS:
                continue
            omitted = len(content) - _SHORT_CHARS
            note = f"[... {omitted} characters left out to make room; call the tool again if you need them ...]"
            message["content"] = f"{content[:_SHORT_CHARS]}\n{note}"
            freed += len(content) - len(message["content"])
        return freed

    def num_chars(self) -> int:
        """Return how long all messages are together."""
        return sum(len(message["content"]) + len(str(message.get("tool_calls", ""))) for message in self.messages)

    def note_down(self, kind: str, **fields: Any) -> None:
        """Put something on record that the model is not shown."""
        if self.transcript is not None:
            self.transcript.write(kind, fields)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self.transcript is not None:
            self.transcript.close()

    def _take(self, message: Message) -> None:
        self.messages.append(message)

    def _append_note(self, text: str) -> None:
        last = self.messages[-1]
        if last["role"] == "assistant":
            self._take({"role": "user", "content": text})
        else:
            last["content"] = f"{last['content']}\n\n{text}"

    def _last_calls(self) -> list[dict[str, Any]]:
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return list(message.get("tool_calls", ()))
            if message["role"] != "tool":
                return []
        return []

    def _replay(self, line: Mapping[str, Any]) -> None:
        """Take in a line of a file."""
        kind = line["kind"]
        if kind == "message":
            self.show_results()
            self._take(dict(line["message"]))
            self._num_calls += len(line["message"].get("tool_calls", ()))
            self.end = None if line["message"]["role"] == "user" else self.end
        elif kind == "note":
            self.show_results()
            self._append_note(line["text"])
        elif kind == "call":
            self._begun.add(line["id"])
        elif kind == "result":
            self._results[line["id"]] = _result_message(line["id"], line["name"], line["text"])
        elif kind == "usage":
            self.usage = Usage(**line["usage"])
        elif kind == "end":
            self.end = dict(line)


def _result_message(call_id: str, name: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": text}
