"""Every error Treadle raises on purpose; the type says who can act.

TreadleError
├── UsageError          the caller: a wrong setting, request or path            exit 1, HTTP 400
│   ├── ContextError    the prompt: too long for the context
│   ├── TemplateError   the messages or the model's chat template
│   └── DownloadError   the source, the network, the disk
├── ModelFileError      whoever made the model file                             exit 1, HTTP 400
│   └── UnsupportedModelError   a sound file, but of a kind this engine does not run


├── RemoteError         whoever runs the engine at a URL                        exit 1, HTTP 502
├── CapacityError       whoever sizes the machine: needed against available     exit 1, HTTP 503
│   ├── DeadlineError   the same: a request's time was up before its answer ended
│   └── ClosedError     the same: the model was closed before that
├── SandboxUnavailableError   whoever sets the machine up: code cannot be isolated here   exit 1
├── ToolError           a tool of an agent: the model is shown the text, the run goes on
└── InternalError       us: a bug                                               exit 2, HTTP 500
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "CapacityError",
    "ClosedError",
    "ContextError",
    "DeadlineError",
    "DownloadError",
    "InternalError",
    "ModelFileError",
    "RemoteError",
    "SandboxUnavailableError",
    "TemplateError",
    "ToolError",
    "TreadleError",
    "UnsupportedModelError",
    "UsageError",
]


class TreadleError(Exception):
    """Base of every error Treadle raises on purpose.

    The text says what failed, on which object, expected against found; ``hint`` is what to type next.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def about(self, subject: str) -> Self:
        """Return the same error, its text beginning with what it is about."""
        told = copy(self)
        told.args = (f"{subject}: {self.args[0]}",)
        return told

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\nhint: {self.hint}" if self.hint else message


class UsageError(TreadleError):
    """The caller asked for something that cannot be.

    ``field`` is the place in the request that is at fault, if one is: a parameter by its name in the Python API, or a
    path such as ``messages[0].content``.
    """

    def __init__(self, message: str, *, hint: str | None = None, field: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class ContextError(UsageError):
    """A prompt leaves no room for an answer in the context."""

    def __init__(self, message: str, *, hint: str | None = None, field: str | None = "prompt") -> None:
        super().__init__(message, hint=hint, field=field)


class TemplateError(UsageError):
    """A chat template refused its messages, is broken, or went over its budget."""


class DownloadError(UsageError):
    """A model could not be fetched."""


class ModelFileError(TreadleError):
    """A model file is broken, hostile, or of a kind Treadle does not know."""


class UnsupportedModelError(ModelFileError):
    """A model file is of a kind that this engine does not run; another engine may."""


class RemoteError(TreadleError):
    """An engine elsewhere cannot be reached, or it failed."""


class CapacityError(TreadleError):
    """There is not enough memory, KV blocks or disk; says what is needed and what there is."""


class DeadlineError(CapacityError):
    """A request was not finished by the time its caller had set."""


class ClosedError(CapacityError):
    """A request was not finished when its model was closed."""


class ToolError(TreadleError):
    """A tool that an agent called has failed; the text is shown to the model, and the run goes on."""


class SandboxUnavailableError(TreadleError):
    """This machine has nothing to isolate a model's code with, or something forbids it; the hint is the way out."""


class InternalError(TreadleError):
    """A bug in Treadle."""

    exit_code = 2
