"""Leaves out the oldest of a conversation that is too long for the model, where a request allows that.

Leaves to others: counting tokens (the engine) and what the items say (``server.response_items``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.errors import ContextError
from treadle.server.response_items import Item, read_conversation

if TYPE_CHECKING:
    from treadle.engine.contract import AsyncEngine
    from treadle.server.schema.responses import InputTokensRequest

__all__ = ["fit_items"]

_INSTRUCTING = ("system", "developer")


async def fit_items(
    engine: AsyncEngine, body: InputTokensRequest, items: Sequence[Item], max_tokens: int | None = None
) -> Sequence[Item]:
    """Return the items that the model is to read: all, unless ``truncation`` is "auto" and they are too many.

    The prompt then leaves room for ``max_tokens`` of an answer, at most half of the context, or for an eighth of it
    where no limit is given. Whole turns go first, the oldest before the others, then the oldest calls of the last one
    with their results. Instructions, messages of system and developer, the last message of the user and what follows
    the last results stay, even if that is too much: the engine refuses it then.

    Raises:
        ApiError: An item is wrong.
        TreadleError: The engine cannot count, or refuses the conversation.
    """
    context = engine.context
    if body.truncation != "auto" or context is None:
        return items
    most = context - min(context // 8 if max_tokens is None else max_tokens, context // 2)

    async def fits(kept: Sequence[Item]) -> bool:
        try:
            return len(await engine.tokenize(read_conversation(body, kept))) <= most
        except ContextError:
            return False

    if await fits(items):
        return items
    groups = _groups(items)
    low, high = 1, len(groups)  # how many to leave out
    while low < high:
        middle = (low + high) // 2
        if await fits(_without(items, groups[:middle])):
            high = middle
        else:
            low = middle + 1
    return _without(items, groups[:high])


def _groups(items: Sequence[Item]) -> list[list[int]]:
    """Return the places of what may be left out, in the order in which it goes."""
    places = [place for place, item in enumerate(items) if item.get("role") not in _INSTRUCTING]
    turns: list[list[int]] = []
    for place in places:
        begins = _is_user(items[place]) and not (turns and _is_user(items[turns[-1][-1]]))
        if begins or not turns:
            turns.append([])
        turns[-1].append(place)
    steps: list[list[int]] = []
    for place in turns[-1] if turns else ():
        if _is_user(items[place]):
            continue
        if not steps or (_is_output(items[steps[-1][-1]]) and not _is_output(items[place])):
            steps.append([])
        steps[-1].append(place)
    return [*turns[:-1], *steps[:-1]]


def _without(items: Sequence[Item], groups: Sequence[Sequence[int]]) -> list[Item]:
    """Leave groups out, and results of calls that are in them wherever they are."""
    gone = {place for group in groups for place in group}
    calls = {items[place].get("call_id") for place in gone if not _is_output(items[place])} - {None}
    return [
        item
        for place, item in enumerate(items)
        if place not in gone and not (_is_output(item) and item.get("call_id") in calls)
    ]


def _is_user(item: Item) -> bool:
    return item.get("role") == "user"


def _is_output(item: Item) -> bool:
    return item.get("type") == "function_call_output"
