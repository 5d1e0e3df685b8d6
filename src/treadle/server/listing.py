"""Pages of lists, as the OpenAI API has them.

Leaves to others: what is listed (``server.routes``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Query

from treadle.server.errors import ApiError

__all__ = ["Limit", "Order", "listed", "page_of"]

Limit = Annotated[int, Query(ge=1, le=100)]
Order = Literal["asc", "desc"]


def page_of(ids: Sequence[str], *, after: str | None, limit: int, order: Order) -> tuple[list[str], bool]:
    """Return one page of ids, which come in ascending order, and whether there are more.

    Raises:
        ApiError: There is nothing of the id ``after``.
    """
    ordered = list(ids) if order == "asc" else list(reversed(ids))
    if after is not None and after not in ordered:
        raise ApiError(400, f"after: there is no item {after!r:.80}", param="after", code="invalid_value")
    rest = ordered[ordered.index(after) + 1 if after is not None else 0 :]
    return rest[:limit], len(rest) > limit


def listed(shown: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return the object of a page."""
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return {"object": "list", "data": list(shown), **ends, "has_more": has_more}
