"""Answers a list of prompts, so many of them at a time, for a thread that waits.

Leaves to others: each answer (``CompletionStream``) and the requests behind it (``ModelHost``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from treadle.engine.answer import CompletionStream, Mailbox
from treadle.engine.completion import Completion
from treadle.engine.host import ModelHost
from treadle.engine.prompt import EncodedPrompt
from treadle.engine.sampling import SamplingParams
from treadle.engine.service import Service
from treadle.errors import CapacityError, UsageError

__all__ = ["answer_all", "max_pending", "open_stream"]

# Of one list the scheduler knows what runs and so many times that, up to a limit: enough to choose from, whatever the
# length of the list.
_WAITING_FACTOR = 3
_MAX_WAITING = 512


def answer_all(
    host: ModelHost, prompts: Sequence[EncodedPrompt], params: SamplingParams | None, service: Service
) -> list[Completion]:
    """Return the answers in the order of the prompts; an error of one is in its completion.

    Raises:
        UsageError: A prompt is empty or too long for the context, or the model was closed.
        CapacityError: A prompt and its answer could never fit in the KV blocks.
    """
    params = params or SamplingParams()
    _check(host, prompts, params)
    most = max_pending(host)
    completions: list[Completion] = []
    pending: deque[CompletionStream] = deque()
    try:
        for prompt in prompts:
            if len(pending) == most:
                completions.append(pending.popleft().wait())
            pending.append(open_stream(host, prompt, params, service, is_streamed=False))
        while pending:
            completions.append(pending.popleft().wait())
    finally:
        for stream in pending:
            stream.close()
    return completions


def max_pending(host: ModelHost) -> int:
    """Return how many requests of one list are to be queued at a time."""
    num_running = host.report.batching.max_num_requests
    return num_running + min(_WAITING_FACTOR * num_running, _MAX_WAITING)


def open_stream(
    host: ModelHost, prompt: EncodedPrompt, params: SamplingParams, service: Service, *, is_streamed: bool
) -> CompletionStream:
    """Queue a prompt; raises as ``answer_all`` does."""
    mailbox = Mailbox(wakes_for_each=is_streamed)
    # A bound method of the host, so that an open stream keeps its model alive.
    return CompletionStream(host.submit(prompt, params, service, mailbox.deliver), mailbox, cancel=host.cancel)


def _check(host: ModelHost, prompts: Sequence[EncodedPrompt], params: SamplingParams) -> None:
    """Refuse a list with a prompt that could never be served before any of it is computed."""
    for index, prompt in enumerate(prompts):
        try:
            host.max_length(prompt, params)
        except (CapacityError, UsageError) as error:
            if len(prompts) == 1:
                raise
            raise error.about(f"prompt {index} of the list") from None
