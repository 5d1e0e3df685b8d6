"""Where an engine elsewhere is: its URL and the name it has for the model.

Leaves to others: asking it (``remote.http``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.config import Settings

__all__ = ["RemoteAddress", "find_api_key", "is_engine_url", "parse_address"]

_DEFAULT_PATH = "/v1"


@dataclass(frozen=True)
class RemoteAddress:
    """An engine elsewhere.

    The paths of its API follow ``url``, of which ``host`` is the name with the port. Without ``model`` it must have one
    model only.
    """

    url: str
    host: str
    model: str | None = None

    @property
    def root(self) -> str:
        """Return the URL without the version of the API, where servers put what is not OpenAI's."""
        return self.url.removesuffix("/v1")


def is_engine_url(source: str) -> bool:
    """Tell an engine elsewhere from a model file: a web address is one, unless it ends in ``.gguf``."""
    if not source.lower().startswith(("http://", "https://")):
        return False
    return not urlsplit(source).path.lower().endswith(".gguf")


def parse_address(source: str, model: str | None = None) -> RemoteAddress:
    """Read a URL such as ``http://host:8000/v1#model``; a URL without a path gets ``/v1``.

    Args:
        source: The URL; what follows ``#`` is the name of the model.
        model: Its name, if that is given apart.

    Raises:
        UsageError: It is no such URL, or it names two models.
    """
    try:
        parts = urlsplit(source)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"engine {source!r:.200}: {error}") from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise UsageError(f"engine {source!r:.200}: expected a URL such as http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"engine at {host}: its URL holds a user or a password, which logs and lists of processes would show",
            hint="set TREADLE_ENGINE_API_KEY instead",
        )
    if parts.query:
        raise UsageError(f"engine at {host}: expected a URL without `?`, found ?{parts.query:.80}")
    named = unquote(parts.fragment) or None
    if named is not None and model is not None and named != model:
        raise UsageError(f"engine {source!r:.200}: it names the model {named!r:.80}, but {model!r:.80} is asked for")
    path = parts.path.rstrip("/") or _DEFAULT_PATH
    return RemoteAddress(f"{parts.scheme.lower()}://{parts.netloc}{path}", parts.netloc, named or model)


def find_api_key(host: str, settings: Settings) -> str | None:
    """Return the key for an engine: the one its host has in the key file, else the one for all.

    Raises:
        UsageError: The key file cannot be read.
    """
    if settings.engine_key_file:
        path = Path(settings.engine_key_file).expanduser()
        for number, line in enumerate(_read_lines(path), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2:
                raise UsageError(f"key file {path}, line {number}: expected a host and a key")
            if words[0].lower() == host.lower():
                return words[1]
    return settings.engine_api_key or None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"key file {path}: {error}", hint="TREADLE_ENGINE_KEY_FILE names it") from None
