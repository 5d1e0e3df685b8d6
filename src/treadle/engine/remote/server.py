"""What is behind a URL: which kind of server, which model, how much context, and what it takes beyond OpenAI's API.

Leaves to others: asking (``remote.http``) and writing requests (``remote.request``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.engine.remote.retry import with_retries
from treadle.errors import RemoteError, UsageError

if TYPE_CHECKING:
    from treadle.engine.remote.address import RemoteAddress
    from treadle.engine.remote.http import RemoteHttp

__all__ = ["RemoteServer", "ServerKind", "find_server"]

_MAX_RETRIES = 1
_CONTINUATION = {"continue_final_message": True, "add_generation_prompt": False}
_SAMPLING = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids")


@dataclass(frozen=True)
class ServerKind:
    """A kind of server, told by what ``/v1/models`` calls the owner of its models.

    Args:
        name: As messages call it.
        sampling: How it spells settings of ours that OpenAI's API lacks.
        has_forms: Takes patterns and choices, as ``structured_outputs``, for chats and texts alike.
        has_template_variables: Takes ``chat_template_kwargs``.
        has_priority: Takes our two classes of priority.
        has_continuous_usage: Counts tokens in every event of a stream, if asked to.
        has_allowed_tools: Takes a choice of several tools without the others being left out.
        continuation: The fields that make an answer go on with the last message, None if it cannot.
        tokenizes: Whose spelling its ``/tokenize`` has, None if it has none.
    """

    name: str
    sampling: Mapping[str, str] = field(default_factory=dict)
    has_forms: bool = False
    has_template_variables: bool = False
    has_priority: bool = False
    has_continuous_usage: bool = False
    has_allowed_tools: bool = False
    continuation: Mapping[str, Any] | None = None
    tokenizes: str | None = None


_OPENAI = ServerKind("a server that takes the fields of OpenAI's API only")
_KINDS = {
    "treadle": ServerKind(
        "Treadle",
        sampling={name: name for name in _SAMPLING},
        has_forms=True,
        has_template_variables=True,
        has_priority=True,
        has_continuous_usage=True,
        has_allowed_tools=True,
        continuation=_CONTINUATION,
        tokenizes="vllm",
    ),
    "vllm": ServerKind(
        "vLLM",
        sampling={name: name for name in _SAMPLING},
        has_forms=True,
        has_template_variables=True,
        has_continuous_usage=True,
        continuation=_CONTINUATION,
        tokenizes="vllm",
    ),
    "sglang": ServerKind(
        "SGLang",
        sampling={name: name for name in _SAMPLING},
        has_template_variables=True,
        continuation={"continue_final_message": True},
    ),
    "llamacpp": ServerKind(
        "llama.cpp",
        sampling={
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
            "ignore_eos": "ignore_eos",
        },
        has_template_variables=True,
        continuation={},  # it goes on with a last message of the assistant in any case
        tokenizes="llamacpp",
    ),
}


@dataclass(frozen=True)
class RemoteServer:
    """One model of a server; ``context`` and ``vocab_size`` are None where it does not tell."""

    kind: ServerKind
    model: str
    context: int | None = None
    vocab_size: int | None = None


async def find_server(http: RemoteHttp, address: RemoteAddress, max_retries: int) -> RemoteServer:
    """Ask a server for its models and return the one that is meant.

    Raises:
        UsageError: It has no model of that name, or several and none is named.
        RemoteError: It cannot be reached, or what it says cannot be understood.
        CapacityError: It is too busy.
    """
    try:
        # Whoever mistyped a URL does not want to wait for many attempts.
        found = await with_retries(min(max_retries, _MAX_RETRIES), lambda: http.get(f"{address.url}/models"))
    except UsageError:
        if address.model is None:
            raise
        return RemoteServer(_OPENAI, address.model)  # it keeps no list, which is no reason not to ask it
    models = _models(address, found)
    if address.model is None and len(models) == 1:
        facts = next(iter(models.values()))
    elif address.model in models:
        facts = models[address.model]
    elif address.model is not None and not any(_kind(each) in _KINDS.values() for each in models.values()):
        return RemoteServer(_OPENAI, address.model)  # gateways answer to more names than they list
    else:
        raise _no_model(address, list(models))
    return _read(facts)


def _models(address: RemoteAddress, found: Any) -> dict[str | None, dict[str, Any]]:
    data = found.get("data") if isinstance(found, dict) else None
    if not isinstance(data, list) or not all(isinstance(each, dict) and "id" in each for each in data):
        raise RemoteError(
            f"{address.url}/models: expected a list of models, found {str(found)[:80]}",
            hint="the URL of an engine is what OpenAI clients call its base URL, and mostly ends in /v1",
        )
    return {str(each["id"]): each for each in data}


def _no_model(address: RemoteAddress, names: list[Any]) -> UsageError:
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "none"
    if address.model is None:
        return UsageError(
            f"the engine at {address.host} has {len(names)} models: {shown}", hint=f"name one: {address.url}#MODEL"
        )
    return UsageError(f"the engine at {address.host} has no model {address.model!r:.80}; it has {shown}")


def _read(facts: Mapping[str, Any]) -> RemoteServer:
    details = facts.get("meta")
    meta: Mapping[str, Any] = details if isinstance(details, dict) else {}
    context = next((facts[key] for key in ("context_length", "max_model_len") if key in facts), meta.get("n_ctx"))
    return RemoteServer(_kind(facts), facts["id"], _count(context), _count(meta.get("n_vocab")))


def _kind(facts: Mapping[str, Any]) -> ServerKind:
    owner = facts.get("owned_by")
    return _KINDS.get(owner, _OPENAI) if isinstance(owner, str) else _OPENAI


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
