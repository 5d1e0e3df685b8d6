"""Separates what a model writes to itself, between ``<think>`` tags, from the answer.

Leaves to others: tool calls in the answer (the dialects).
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.models.tool_dialects.parts import AnswerParser, Part, Reasoning, overlap

__all__ = ["ReasoningMarkers", "ReasoningParser", "find_reasoning"]


@dataclass(frozen=True)
class ReasoningMarkers:
    """The tags around reasoning."""

    opening: str
    closing: str


_THINK = ReasoningMarkers("<think>", "</think>")
_THOUGHT_CHANNEL = ReasoningMarkers("<|channel>thought", "<channel|>")


def find_reasoning(template: str) -> ReasoningMarkers | None:
    """Return the tags a chat template knows, if its model reasons at all."""
    for markers in (_THINK, _THOUGHT_CHANNEL):
        if markers.closing in template:
            return markers
    return None


class ReasoningParser:
    """Reasoning at the start of an answer; all that follows goes to ``inner``.

    Args:
        markers: The tags.
        inner: Reads what is not reasoning.
        is_open: The prompt ends with the opening tag, so that the answer begins inside.
    """

    def __init__(self, markers: ReasoningMarkers, inner: AnswerParser, *, is_open: bool) -> None:
        self._markers = markers
        self._inner = inner
        self._state = "reasoning" if is_open else "start"
        self._held = ""
        self._follows_reasoning = False

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""
        if self._state == "answer":
            return self._push_inner(text)
        self._held += text
        if self._state == "start" and not self._leave_start():
            return []
        return self._advance()

    def finish(self) -> list[Part]:
        """Return what was held back; reasoning that was cut off stays reasoning."""
        held, self._held = self._held, ""
        if self._state == "reasoning":
            return [*([Reasoning(held)] if held else []), *self._inner.finish()]
        return [*(self._inner.push(held) if held else []), *self._inner.finish()]

    def _leave_start(self) -> bool:
        """Decide whether the answer begins with reasoning; false while that is open."""
        begin = self._held.lstrip()
        if self._markers.opening.startswith(begin) and begin != self._markers.opening:
            return False
        if begin.startswith(self._markers.opening):
            self._state = "reasoning"
            self._held = begin.removeprefix(self._markers.opening)
        else:
            self._state = "answer"
        return True

    def _advance(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._state == "answer":
            return self._push_inner(held)
        start = held.find(self._markers.closing)
        if start < 0:
            kept = overlap(held, self._markers.closing)
            self._held = held[len(held) - kept :]
            thought = held[: len(held) - kept]
            return [Reasoning(thought)] if thought else []
        self._state = "answer"
        self._follows_reasoning = True
        thought, rest = held[:start], held[start + len(self._markers.closing) :]
        return [*([Reasoning(thought)] if thought else []), *self._push_inner(rest)]

    def _push_inner(self, text: str) -> list[Part]:
        """Pass text on, without the line ends that only set the answer apart from the reasoning."""
        if self._follows_reasoning:
            text = text.lstrip("\n")
            self._follows_reasoning = not text
        return self._inner.push(text) if text else []
