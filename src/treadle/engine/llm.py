"""The Python API: load a model, ask it, get answers.

Leaves to others: loading (``engine.load``) and the requests behind the answers (``ModelHost``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast, overload

from treadle.engine.answer import CompletionStream
from treadle.engine.answer_batch import answer_all, open_stream
from treadle.engine.completion import Completion
from treadle.engine.host import ModelHost
from treadle.engine.load import load_model
from treadle.engine.prompt import EncodedPrompt, Messages, Prompt, PromptList, is_prompt
from treadle.engine.sampling import SamplingParams
from treadle.engine.service import Service
from treadle.engine.text_model import TextModel
from treadle.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.engine.adapters import AdapterInfo
    from treadle.engine.load import LoadOptions
    from treadle.engine.request import Priority
    from treadle.engine.structured.guide import Constraint

__all__ = ["LLM"]


class LLM(TextModel):
    """A model in memory. Any number of threads may ask it; their requests are computed together.

    Use it as a context manager, or call ``close``, to give its memory back.

    Args:
        model: A catalog name such as "smollm2:135m", "hf:org/repo[:quant]", a URL, or the path of a GGUF file. What is
            not on this machine is pulled into the store first.
        context: Most tokens of prompt and answer together; by default the smallest of the model's own, 8192 and what
            fits in the memory this process may use.
        memory: Bytes, or text such as "6GiB", for weights, KV blocks and caches together; KV blocks get what the rest
            leaves. By default ``TREADLE_MEMORY``, or else as much as is usual within what is free.
        ram_cache: Memory, at most a quarter of all, that keeps KV blocks when the pool needs their room; by default
            ``TREADLE_RAM_CACHE``, or else none.
        disk_cache: Disk, in Treadle's folder and for all models together, that keeps KV blocks of prompts also beyond
            the end of this process; by default ``TREADLE_DISK_CACHE``, or else none.
        adapter_memory: Memory set aside for adapters; by default ``TREADLE_ADAPTER_MEMORY``, or else what is left.
        max_adapters: Most adapters in memory; by default ``TREADLE_MAX_ADAPTERS``, or else 16.
        threads: Threads that compute; by default the physical cores this process may use, see ``treadle plan``.
        prompt_threads: Threads that read prompts; by default as many.
        reserve_cores: Cores that are left to other programs; by default ``TREADLE_RESERVE_CORES``, or else none.
        pin: Whether threads stay on their CPUs; by default if they fill the usable cores.
        numa: Where memory comes from on machines with several nodes: "node", "interleave",
            "replicated" (a copy of the weights on each), "default", or "auto".
        huge_pages: Whether memory asks for huge pages; by default it does.
        adapt: Whether fewer threads run while a CPU quota, other programs or tools take their CPUs; by default they do.
        mlock: Keep the model out of swap; warns (``RuntimeWarning``) and goes on where the system forbids it.
        isa: Name of the kernels to use ("ref", "avx2", ...); by default the best this CPU runs, or ``TREADLE_ISA``.
        kv_type: How keys and values of the context are kept: "f16", or "q8_0", which takes about half the memory and
            is slightly less exact. By default ``TREADLE_KV_TYPE``, or else "f16".
        max_num_requests: Most requests, 1 to 512, that are computed together; others wait.
        slowdown: Beside interactive answers, prompts make a step at most about so many times as long as it were without
            them; ``None`` fills every step, which is best for throughput.
        engine: What computes: "native", this package's own core, or "llamacpp", which runs any GGUF file if the extra
            ``treadle[llamacpp]`` is installed. By default the core where it can and llama.cpp where not;
            ``report.engine`` says which and why.
        progress: Called while the weights load with the bytes done and the bytes in all.

    What is not given is read from ``TREADLE_*`` variables, then from ``treadle.toml`` in the current folder and in the
    user's configuration folder.

    Raises:
        UsageError: There is no such model or file, or a setting is out of range.
        DownloadError: The model could not be fetched.
        ModelFileError: The file is broken or of a kind Treadle does not know.
        CapacityError: Weights or context do not fit in memory; says the largest context that does.
    """

    def __init__(self, model: str | Path, **options: Unpack[LoadOptions]) -> None:
        self._host = ModelHost(load_model(model, **options))

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
        constraint: Callable[[], Constraint] | None = None,
        adapter: str | None = None,
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: PromptList,
        params: SamplingParams | None = None,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
        constraint: Callable[[], Constraint] | None = None,
        adapter: str | None = None,
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Prompt | PromptList,
        params: SamplingParams | None = None,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
        constraint: Callable[[], Constraint] | None = None,
        adapter: str | None = None,
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each of a list of prompts in one batch.

        Answers come in the order of the prompts. In a list an answer that failed has the ``finish_reason`` "error"; a
        single one raises its error.

        Args:
            prompt: Text, whose control tokens are plain text, a list of token ids, or what ``chat_prompt`` returns.
            params: How to sample; by default ``SamplingParams()``.
            priority: "interactive", the default for one prompt, goes before "batch", the default for a list.
            timeout: Seconds from now in which each answer must have ended.
            constraint: Makes what an answer may be, token by token; called once for each answer.
            adapter: The name of an adapter that ``load_adapter`` has read.

        Raises:
            UsageError: A prompt is empty or too long for the context, there is no such adapter, or the model was
                closed.
            CapacityError: A prompt and its answer could never fit in the KV blocks.
            DeadlineError: The time was up.
        """
        prompts = self._host.prompts.read_all(
            prompt if isinstance(prompt, list) and not is_prompt(prompt) else [prompt]
        )
        if is_prompt(prompt):
            service = Service(priority or "interactive", timeout, constraint, adapter)
            return _raise_error(answer_all(self._host, prompts, params, service)[0])
        return answer_all(self._host, prompts, params, Service(priority or "batch", timeout, constraint, adapter))

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        adapter: str | None = None,
        **variables: Any,
    ) -> Completion:
        """Answer a conversation, rendered with the model's own chat template.

        Args:
            messages: The turns so far, as mappings with "role" and "content".
            params: How to sample; by default ``SamplingParams()``.
            priority: As in ``generate``.
            timeout: As in ``generate``.
            adapter: As in ``generate``.
            variables: Given to the template as they are, such as ``tools`` or ``enable_thinking``.

        Raises:
            TemplateError: The template refused the messages.
            UsageError: The model has no template or was closed, or the conversation is too long for the context.
            DeadlineError: The time was up.
        """
        prompt = self.chat_prompt(messages, **variables)
        return _raise_error(answer_all(self._host, [prompt], params, Service(priority, timeout, adapter=adapter))[0])

    def chat_prompt(self, messages: Messages, **variables: Any) -> EncodedPrompt:
        """Return a conversation as a prompt, for lists of them in ``generate``; raises as ``chat`` does."""
        return self._host.prompts.read_chat(messages, variables)

    def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        adapter: str | None = None,
        **variables: Any,
    ) -> CompletionStream:
        """Answer a prompt, or a conversation if given messages, chunk by chunk.

        The last chunk carries the whole ``completion``. Closing the iterator early frees the request. Raises as
        ``generate`` and ``chat`` do.
        """
        if is_prompt(prompt):
            if variables:
                raise UsageError(f"stream: {', '.join(variables)} is for the chat template, but a prompt has none")
            encoded = self._host.prompts.read(prompt)
        else:
            encoded = self.chat_prompt(cast(Messages, prompt), **variables)
        service = Service(priority, timeout, adapter=adapter)
        return open_stream(self._host, encoded, params or SamplingParams(), service, is_streamed=True)

    def load_adapter(self, name: str, path: str | Path, scale: float = 1.0) -> AdapterInfo:
        """Read an adapter (LoRA, a GGUF file) for this model; from then on requests may name it.

        Any number of requests with different adapters, and with none, are computed together.

        Args:
            name: What requests call it.
            path: Its file.
            scale: Multiplies the scale that the file gives.

        Raises:
            UsageError: The name is taken, there is no such file, or the model runs through another engine than the
                core.
            ModelFileError: The file is broken, or no adapter of this model.
            CapacityError: There are ``max_adapters`` already, or not enough memory for one more.
        """
        return self._host.adapters.load(name, path, scale)

    def unload_adapter(self, name: str) -> None:
        """Refuse new requests for an adapter; its memory is freed when the last of those that run has ended.

        Raises:
            UsageError: There is no adapter of that name.
        """
        self._host.adapters.unload(name)

    def close(self) -> None:
        """End what still runs and give the model's memory back; may be called twice."""
        self._host.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _raise_error(completion: Completion) -> Completion:
    error = next((each.error for each in (completion, *completion.alternatives) if each.error is not None), None)
    if error is not None:
        raise error
    return completion
