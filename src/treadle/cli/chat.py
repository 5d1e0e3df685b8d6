"""The command ``treadle chat``: a conversation in the terminal, or one message per line of stdin.

Leaves to others: the model (``cli.loading``) and the answers (``LLM``).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from treadle.cli import options
from treadle.cli.adapters import load_adapter
from treadle.cli.answer import print_answer
from treadle.cli.console import console
from treadle.cli.loading import open_model
from treadle.cli.option_groups import ConsoleOptions, EngineOptions, SamplingOptions, expand_groups
from treadle.cli.summary import closing_line
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.completion import Completion
    from treadle.engine.llm import LLM
    from treadle.engine.remote.llm import RemoteLLM
    from treadle.engine.sampling import SamplingParams

__all__ = ["register"]

_PROMPT = "> "
_WAKE_SECONDS = 0.2
_HELP = """\
/help            this list
/clear           forget the conversation
/system TEXT     set the system message and start again; without TEXT remove it
/stats           what the last answer cost
/exit            leave, as Ctrl-D does
Ctrl-C stops an answer; at the prompt it leaves."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("chat")(expand_groups(chat))


def chat(
    *,
    model: options.Model = None,
    system: options.System = None,
    sampling: SamplingOptions,
    adapter: options.Adapter = None,
    engine: EngineOptions,
    _console: ConsoleOptions,
) -> None:
    """Talk with a model.

    The model sees the whole conversation with every message. Type /help for the commands. Without a terminal every
    line of stdin is one message.
    """
    with open_model(model, **engine.as_arguments()) as llm:
        if not llm.has_chat_template:
            raise UsageError(f"{llm.name} has no chat template", hint='type `treadle run --raw -m MODEL "text"`')
        _Conversation(llm, sampling.params(), system, load_adapter(llm, adapter)).hold()


class _Conversation:
    """The turns so far, and the loop that adds to them."""

    def __init__(self, llm: LLM | RemoteLLM, params: SamplingParams, system: str | None, adapter: str | None) -> None:
        self._llm = llm
        self._params = params
        self._chosen: dict[str, Any] = {} if adapter is None else {"adapter": adapter}
        self._system = system
        self._turns: list[dict[str, str]] = []
        self._last: Completion | None = None

    def hold(self) -> None:
        if console.is_interactive:
            console.note(
                f"{self._llm.name}, context {self._llm.context or 'unknown'} tokens. /help lists the commands."
            )
            with suppress(ImportError):
                import readline  # noqa: F401, PLC0415  gives input() line editing and history
        while (line := _read_line()) is not None:
            if line.startswith("/"):
                if not self._obey(line):
                    return
            elif line:
                self._answer(line)

    def _obey(self, line: str) -> bool:
        """Carry out a command; false to leave."""
        name, _, argument = line.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name == "/help":
            console.say(_HELP)
        elif name == "/clear":
            self._turns.clear()
            console.say("the conversation is forgotten")
        elif name == "/system":
            self._system = argument.strip() or None
            self._turns.clear()
            console.say("a new conversation begins")
        elif name == "/stats":
            self._show_stats()
        else:
            console.say(f"there is no command {name}; /help lists them")
        return True

    def _show_stats(self) -> None:
        if self._last is None:
            console.say("there is no whole answer yet")
        else:
            console.say(closing_line(self._last, self._llm))

    def _answer(self, text: str) -> None:
        self._turns.append({"role": "user", "content": text})
        opening = [] if self._system is None else [{"role": "system", "content": self._system}]
        said: list[str] = []
        try:
            with self._llm.stream([*opening, *self._turns], self._params, **self._chosen) as stream:
                self._last = print_answer(stream, said)
            console.detail(closing_line(self._last, self._llm))
        except KeyboardInterrupt:
            console.out("")
            console.note("stopped")
            if not said:
                self._turns.pop()
                return
        except UsageError as error:
            # Too long for the context, or refused by the template: the conversation goes on without this message.
            console.error(error)
            console.say("/clear begins a new conversation")
            self._turns.pop()
            return
        self._turns.append({"role": "assistant", "content": "".join(said)})


def _read_line() -> str | None:
    """Return the next message without its line end, or None when there are no more or Ctrl-C was typed."""
    if not console.is_interactive:
        line = console.read_line()
        return line.strip() if line else None
    try:
        with _woken_up():
            if sys.stdout.isatty():
                return input(_PROMPT).strip()
            sys.stderr.write(_PROMPT)  # stdout holds answers only
            sys.stderr.flush()
            return input().strip()
    except (EOFError, KeyboardInterrupt):
        sys.stderr.write("\n")
        return None


@contextmanager
def _woken_up() -> Iterator[None]:
    """Wake ``input`` up now and then: a Ctrl-C just before it waits for keys is otherwise not seen until the next."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _WAKE_SECONDS, _WAKE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
