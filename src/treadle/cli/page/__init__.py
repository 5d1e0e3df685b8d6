"""Pages that a browser shows without a network or a server: one file with style, script and figures inside.

Leaves to others: the figures (the commands), and drawing them (the scripts in this folder).
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import Any, Literal

__all__ = ["make_page"]

_FOLDER = files("treadle.cli") / "page"
# Colours and type are those of the server's page.
_TOKENS = files("treadle.server") / "dashboard" / "tokens.css"


def make_page(title: str, name: Literal["profile", "trace"], facts: dict[str, Any]) -> str:
    """Return a page that shows figures, in HTML.

    Args:
        title: Of the page.
        name: Of the files in this folder that it is made of.
        facts: What the script finds as JSON; text in it may be anybody's, and never becomes markup.
    """
    tokens = _TOKENS.read_text(encoding="utf-8")
    style = "\n" + tokens + "\n" + _read("page.css") + "\n" + _read(f"{name}.css")
    script = "\n" + _read("draw.js") + "\n" + _read(f"{name}.js")
    # Nothing but these two may run or apply, whatever the figures bring with them.
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n"
        f"{_read(f'{name}.html')}"
        f'<script type="application/json" id="facts">{_as_script(facts)}</script>\n'
        f'<script type="module">{script}</script>\n</html>\n'
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _as_script(facts: dict[str, Any]) -> str:
    """Return JSON in which nothing can end the element it stands in."""
    text = json.dumps(facts, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
