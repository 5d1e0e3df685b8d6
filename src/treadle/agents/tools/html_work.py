"""Takes title and visible text from an HTML page, in a child process because pages may be made to take for ever.

Leaves to others: getting the page (``fetch``), starting and stopping the process (``child``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

__all__ = ["work"]

_HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "head", "title"})
_INLINE = frozenset({"a", "abbr", "b", "bdi", "code", "em", "font", "i", "kbd", "label", "mark", "q", "s", "small"})
_INLINE_TOO = frozenset({"span", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr"})
_CELLS = frozenset({"td", "th"})
_VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})


def work(request: Mapping[str, Any]) -> str:
    """Return the title, if there is one, and below it the text of the page ``html``."""
    page = _Page()
    page.feed(request["html"])
    page.close()
    return page.text()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._title: list[str] = []
        self._text: list[str] = []
        self._is_title = False
        self._hidden_tag = ""  # what hides all within it, and how many of its kind are open
        self._num_open = 0

    def text(self) -> str:
        title = " ".join("".join(self._title).split())
        lines = (" ".join(line.split()).removesuffix(" |") for line in "".join(self._text).split("\n"))
        body = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
        return f"Title: {title}\n\n{body}".strip() if title else body

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._is_title = tag == "title" and not self._title and self._hidden_tag in ("", "head")
        if self._hidden_tag:
            self._num_open += tag == self._hidden_tag and tag not in _VOID
            if tag != "body" or self._hidden_tag != "head":
                return
            self._hidden_tag = ""  # the end of the head may be left out
        if tag in _VOID:
            self._text.append("\n" if tag in ("br", "hr") else "")
        elif tag in _HIDDEN or _is_hidden(dict(attributes)):
            self._hidden_tag, self._num_open = tag, 1
        elif tag == "li":
            self._text.append("\n- ")
        elif tag not in _INLINE and tag not in _INLINE_TOO and tag not in _CELLS:
            self._text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._is_title = False
        if self._hidden_tag:
            self._num_open -= tag == self._hidden_tag
            if self._num_open == 0:
                self._hidden_tag = ""
        elif tag in _CELLS:
            self._text.append(" | ")
        elif tag not in _INLINE and tag not in _INLINE_TOO:
            self._text.append("\n")

    def handle_data(self, data: str) -> None:
        if self._is_title:
            self._title.append(data)
        elif not self._hidden_tag:
            self._text.append(data)


def _is_hidden(attributes: Mapping[str, str | None]) -> bool:
    style = (attributes.get("style") or "").replace(" ", "").lower()
    is_unseen = "display:none" in style or "visibility:hidden" in style
    return "hidden" in attributes or attributes.get("aria-hidden") == "true" or is_unseen
