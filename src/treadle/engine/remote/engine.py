"""An OpenAI-compatible server as an engine: any URL, spoken to as the engines in this process are.

Leaves to others: computing, and whatever the server does not do is refused with its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treadle.config import Settings
from treadle.engine.conversation import Conversation
from treadle.engine.embedding import EmbeddingOptions
from treadle.engine.ranking import RankedDocument, RankingOptions
from treadle.engine.remote.address import find_api_key, parse_address
from treadle.engine.remote.answer import AnswerReader
from treadle.engine.remote.embeddings import embed_inputs
from treadle.engine.remote.http import RemoteHttp, RemoteLimits
from treadle.engine.remote.ranking import rank_documents
from treadle.engine.remote.request import chat_fields, write_request
from treadle.engine.remote.retry import with_retries
from treadle.engine.remote.server import RemoteServer, find_server
from treadle.engine.remote.stream import RemoteStream
from treadle.engine.sampling import SamplingParams
from treadle.errors import DeadlineError, RemoteError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from treadle.engine.adapters import AdapterInfo
    from treadle.engine.contract import Observe
    from treadle.engine.embedding import Embedding, Pooling
    from treadle.engine.prompt import Prompt
    from treadle.engine.remote.address import RemoteAddress
    from treadle.engine.request import Priority

__all__ = ["RemoteEngine"]

# The fields of a chat that its prompt is made of.
_RENDERED = ("messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")


class RemoteEngine:
    """A model of an OpenAI-compatible server. Use ``await RemoteEngine.connect(...)``, in the event loop that asks it.

    ``observe``, if set, is called for each prompt that is sent; what it returns is told what becomes of the answers.
    """

    observe: Observe | None = None
    report: None = None
    cores: None = None

    def __init__(self, address: RemoteAddress, http: RemoteHttp, server: RemoteServer, limits: RemoteLimits) -> None:
        self._address = address
        self._http = http
        self._server = server
        self._limits = limits
        self._is_closed = False

    @classmethod
    async def connect(
        cls, url: str, model: str | None = None, *, api_key: str | None = None, limits: RemoteLimits | None = None
    ) -> RemoteEngine:
        """Find out what a server is and which model of it is meant.

        Args:
            url: The base URL of OpenAI clients, such as ``http://host:8000/v1``; ``#model`` may follow.
            model: The name the server has for the model; not needed where there is only one.
            api_key: By default that of the host in the file ``TREADLE_ENGINE_KEY_FILE``, or else
                ``TREADLE_ENGINE_API_KEY``.
            limits: Times, retries, connections.

        Raises:
            UsageError: The URL is none, or the server has no such model.
            RemoteError: The server cannot be reached, or it is no OpenAI-compatible one.
            CapacityError: It is too busy.
        """
        address = parse_address(url, model)
        limits = limits or RemoteLimits()
        http = RemoteHttp(address, api_key or find_api_key(address.host, Settings.from_environment()), limits)
        try:
            return cls(address, http, await find_server(http, address, limits.max_retries), limits)
        except BaseException:
            await http.close()
            raise

    @property
    def name(self) -> str:
        """Return the name of the model, for messages."""
        return f"{self._server.model} at {self._address.host}"

    @property
    def context(self) -> int | None:
        """Return the most tokens that prompt and answer may have together, if the server tells."""
        return self._server.context

    @property
    def vocab_size(self) -> int | None:
        """Return how many tokens the model knows, if the server tells."""
        return self._server.vocab_size

    async def tokenize(self, prompt: str | Conversation) -> list[int]:
        """Return the token ids of a prompt, where the server tells them.

        Raises:
            UsageError: The server does not tell, or it refuses the prompt.
            RemoteError: It failed.
        """
        body: dict[str, Any] = {"model": self._server.model}
        if self._server.kind.tokenizes == "vllm":
            if isinstance(prompt, str):
                body["prompt"] = prompt
            else:
                fields = chat_fields(self._server.kind, prompt)
                body |= {key: fields[key] for key in _RENDERED if key in fields}
        elif self._server.kind.tokenizes == "llamacpp" and isinstance(prompt, str):
            body |= {"content": prompt, "add_special": True}
        else:
            raise self._cannot("count or show the tokens of this")
        found = await self._ask("/tokenize", body, "tokens")
        if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
            raise RemoteError(f"the engine at {self._address.host}: expected token ids, found {found!r:.80}")
        return found

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``, where the server tells it; raises as ``tokenize`` does."""
        if self._server.kind.tokenizes is None:
            raise self._cannot("turn tokens into text")
        field = "prompt" if self._server.kind.tokenizes == "vllm" else "content"
        return str(await self._ask("/detokenize", {"model": self._server.model, "tokens": list(token_ids)}, field))

    async def answer(
        self,
        prompt: Prompt | Conversation,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        adapter: str | None = None,
    ) -> RemoteStream:
        """Answer a prompt or a conversation; the request is sent when the first chunk is asked for.

        A request that fails before its first token is repeated where that may help, after waits that grow.

        Raises:
            UsageError: The server cannot do what is asked, or the engine was closed. What the server itself refuses
                is raised by the stream.
        """
        if self._is_closed:
            raise UsageError(f"{self.name} was closed")
        if adapter is not None:
            raise self._no_adapters(adapter)
        params = params or SamplingParams()
        path, body = write_request(self._server, prompt, params, priority)
        host, url = self._address.host, self._address.url + path

        def make_reader() -> AnswerReader:
            return AnswerReader(
                host,
                num_answers=params.n,
                has_logprobs=params.logprobs is not None,
                needs_call=isinstance(prompt, Conversation) and prompt.choice == "required",
            )

        return RemoteStream(
            lambda: self._http.events(url, body),
            make_reader,
            max_retries=self._limits.max_retries,
            deadline=None if timeout is None else asyncio.get_running_loop().time() + timeout,
            observe=self.observe,
        )

    async def embed(
        self,
        inputs: Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        priority: Priority = "interactive",  # noqa: ARG002  servers have none for embeddings
        timeout: float | None = None,
        on_embedding: Callable[[Embedding], None] | None = None,
    ) -> list[Embedding]:
        """Return the vectors of a list of inputs, in its order, of the length 1; the server decides how they are made.

        Raises:
            UsageError: The server refuses an input, or ``pooling`` or ``normalize`` is set.
            RemoteError: It failed.
            DeadlineError: The time was up.
        """
        work = embed_inputs(
            self._http,
            f"{self._address.url}/embeddings",
            self._body(truncate_prompt_tokens),
            inputs,
            EmbeddingOptions(pooling, normalize, dimensions),
            max_retries=self._limits.max_retries,
            on_embedding=on_embedding,
        )
        try:
            return await asyncio.wait_for(work, timeout)
        except asyncio.TimeoutError:
            raise DeadlineError(f"the time of the request was up before {self.name} had embedded its inputs") from None

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = True,
        truncate_prompt_tokens: int | None = None,
        priority: Priority = "interactive",  # noqa: ARG002  servers have none for rankings
        timeout: float | None = None,
        on_embedding: Callable[[Embedding], None] | None = None,
    ) -> list[RankedDocument]:
        """Return the documents, the best first, with the scores that the server gives.

        Raises:
            UsageError: The server refuses a text, or ``normalize`` is off.
            RemoteError: It failed.
            DeadlineError: The time was up.
        """
        work = rank_documents(
            self._http,
            f"{self._address.url}/rerank",
            {**self._body(truncate_prompt_tokens), "query": query},
            documents,
            RankingOptions(top_n, normalize),
            max_retries=self._limits.max_retries,
            on_embedding=on_embedding,
        )
        try:
            return await asyncio.wait_for(work, timeout)
        except asyncio.TimeoutError:
            raise DeadlineError(f"the time of the request was up before {self.name} had ranked the documents") from None

    def _body(self, truncate_prompt_tokens: int | None) -> dict[str, Any]:
        """Return what requests for vectors and for rankings have in common."""
        body: dict[str, Any] = {"model": self._server.model}
        if truncate_prompt_tokens is not None:
            body["truncate_prompt_tokens"] = truncate_prompt_tokens
        return body

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """Return nothing: a server names its adapters as models."""
        return ()

    async def load_adapter(self, name: str, path: str | Path, scale: float = 1.0) -> AdapterInfo:  # noqa: ARG002
        """Refuse: raises UsageError, always."""
        raise self._no_adapters(name)

    async def unload_adapter(self, name: str) -> None:
        """Refuse: raises UsageError, always."""
        raise self._no_adapters(name)

    def stats(self) -> None:
        """Return nothing: how a server is doing is its own to tell."""

    async def close(self) -> None:
        """Close every connection, which ends what still runs; may be called twice."""
        self._is_closed = True
        await self._http.close()

    async def __aenter__(self) -> RemoteEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, path: str, body: dict[str, Any], field: str) -> Any:
        found = await with_retries(self._limits.max_retries, lambda: self._http.post(self._address.root + path, body))
        if not isinstance(found, dict) or field not in found:
            raise RemoteError(f"the engine at {self._address.host}: expected {field!r}, found {str(found)[:80]}")
        return found[field]

    def _no_adapters(self, name: str) -> UsageError:
        return UsageError(
            f"adapter {name}: {self.name} is an engine elsewhere, which has adapters of its own",
            hint="load it there, and name it as the model: URL#ADAPTER",
        )

    def _cannot(self, what: str) -> UsageError:
        return UsageError(f"{self.name} is {self._server.kind.name}, which cannot {what}")
