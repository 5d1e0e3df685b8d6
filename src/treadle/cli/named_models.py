"""The models of a command that offers several, each under the name that clients use: MODEL or NAME=MODEL.

Leaves to others: what a model is (``models.store``, ``engine.open_engine``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treadle.engine.remote.address import is_engine_url, parse_address
from treadle.errors import UsageError

__all__ = ["named_models"]


def named_models(models: Sequence[str], *, are_elsewhere: bool = False) -> dict[str, str]:
    """Return what to load by the name clients use: the one given, else the model's own without folder and ending.

    Args:
        models: What was typed. An ``=`` in a URL, or in the path of a file that is there, is a part of it.
        are_elsewhere: Whether they are names for an engine at a URL, which are left as they are.

    Raises:
        UsageError: A name or a model is empty, or two have the same name.
    """
    sources: dict[str, str] = {}
    for model in models:
        is_whole = is_engine_url(model) or Path(model).is_file()
        name, separator, source = ("", "", model) if is_whole else model.partition("=")
        if not separator:
            name, source = _usual_name(model, are_elsewhere=are_elsewhere), model
        if not name or not source:
            raise UsageError(f"{model!r}: expected MODEL or NAME=MODEL")
        if name in sources:
            raise UsageError(f"two models are called {name}", hint="give one of them another name: NAME=MODEL")
        sources[name] = source
    return sources


def _usual_name(model: str, *, are_elsewhere: bool) -> str:
    if is_engine_url(model):
        address = parse_address(model)
        return address.model or address.host
    return model if are_elsewhere else Path(model).name.removesuffix(".gguf")
