"""What serving.py can put a load on: the engine in this process, servers that it starts itself, any URL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from http_client import HttpClient

from treadle import AsyncLLM, SamplingParams

HERE = Path(__file__).parent
READY_SECONDS = 600
Messages = list[dict[str, str]]


@dataclass
class Usage:
    """What an answer says about its prompt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


class Target(Protocol):
    """Answers conversations greedily and with exactly as many tokens as asked for."""

    name: str

    async def start(self) -> None: ...

    async def ask(self, messages: Messages, num_tokens: int, on_text: Callable[[str], None]) -> Usage: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def close(self) -> None: ...

    def facts(self) -> dict[str, Any]: ...


class InProcess:
    """Treadle as a library, in the process and the event loop of the benchmark."""

    name = "treadle"

    def __init__(self, model: Path, **options: Any) -> None:
        self._model = model
        self._options = options
        self._llm: AsyncLLM | None = None

    @property
    def llm(self) -> AsyncLLM:
        assert self._llm is not None
        return self._llm

    async def start(self) -> None:
        self._llm = await AsyncLLM.load(self._model, **self._options)

    async def ask(self, messages: Messages, num_tokens: int, on_text: Callable[[str], None]) -> Usage:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        completion = None
        async with self.llm.generate(self.llm.chat_prompt(messages), params) as stream:
            async for chunk in stream:
                if chunk.text:
                    on_text(chunk.text)
                completion = chunk.completion
        assert completion is not None
        return Usage(completion.prompt_tokens, completion.cached_tokens)

    def pause(self) -> None:
        """Do nothing: an engine without requests sleeps."""

    resume = pause

    async def close(self) -> None:
        if self._llm is not None:
            await self._llm.close()

    def facts(self) -> dict[str, Any]:
        stats = self.llm.stats()
        return {
            "kernels": self.llm.report.isa,
            "overhead_share": stats.steps.overhead_share,
            "resident_bytes": stats.resident_bytes,
        }


class HttpTarget:
    """Any server that speaks the OpenAI chat API."""

    def __init__(self, name: str, url: str, model: str) -> None:
        self.name = name
        self._url = url.rstrip("/")
        self._model = model

    @property
    def url(self) -> str:
        """Where it listens, known once it has started."""
        return self._url

    @property
    def client(self) -> HttpClient:
        return HttpClient(self._url)

    async def start(self) -> None:
        for _ in range(READY_SECONDS):
            with contextlib.suppress(OSError):
                if (await self.client.get("/health")).status == HTTPStatus.OK:
                    return
            self.check_alive()
            await asyncio.sleep(1)
        raise TimeoutError(f"{self._url} was not ready after {READY_SECONDS} s")

    async def ask(self, messages: Messages, num_tokens: int, on_text: Callable[[str], None]) -> Usage:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reader = _EventReader(on_text)
        reply = await self.client.post("/v1/chat/completions", body, reader.read)
        if reply.status != HTTPStatus.OK or reader.error is not None:
            raise RuntimeError(f"{reply.status} {reader.error or bytes(reply.body[:500])!r}")
        return reader.usage

    def check_alive(self) -> None:
        """Raise if the server is known to be gone."""

    def pause(self) -> None:
        """Do nothing: somebody else's process."""

    resume = pause

    async def close(self) -> None:
        """Do nothing: no connection outlives its request."""

    def facts(self) -> dict[str, Any]:
        return {"url": self._url}


class _EventReader:
    """Reads the events of one chat stream."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self.usage = Usage()
        self.error: str | None = None

    def read(self, content: bytes) -> None:
        if not content.startswith(b"{"):
            return
        event = json.loads(content)
        if "error" in event:
            self.error = str(event["error"])
            return
        for choice in event["choices"]:
            if text := choice["delta"].get("content"):
                self._on_text(text)
        if found := event.get("usage"):
            details = found.get("prompt_tokens_details") or {}
            self.usage = Usage(found["prompt_tokens"], details.get("cached_tokens") or 0)


class ServerProcess(HttpTarget):
    """A server in a process group of its own, stopped while others are measured: some engines spin when idle."""

    def __init__(self, name: str, command: list[str], *, url: str = "", settings: dict[str, str] | None = None) -> None:
        super().__init__(name, url, "default")
        self._command = command
        self._settings = settings or {}
        self._facts: dict[str, Any] = {"command": " ".join(Path(part).name for part in command)}
        self._process: subprocess.Popen[str] | None = None

    async def start(self) -> None:
        announces = not self._url
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if announces else sys.stderr.fileno(),
            text=True,
            start_new_session=True,
            env={**os.environ, **self._settings},
        )
        if announces:
            assert self._process.stdout is not None
            line = await asyncio.to_thread(self._process.stdout.readline)
            if not line:
                raise RuntimeError(f"its process ended with status {await asyncio.to_thread(self._process.wait)}")
            self._facts |= json.loads(line)
            self._url = self._facts.pop("url")
        await super().start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def check_alive(self) -> None:
        if self._process is not None and (status := self._process.poll()) is not None:
            raise RuntimeError(f"its process ended with status {status}")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def close(self) -> None:
        await super().close()
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def facts(self) -> dict[str, Any]:
        assert self._process is not None
        return {**self._facts, "resident_bytes": resident_bytes(self._process.pid)}

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def llama_server(python: str, model: Path, threads: int, slots: int, context: int) -> ServerProcess:
    script = HERE / "peers/llama_server.py"
    return ServerProcess("llama.cpp", [python, str(script), str(model), str(threads), str(slots), str(context)])


def vllm_server(python: str, model: Path, port: int, threads: int, context: int) -> ServerProcess:
    """vLLM reads no GGUF file here but a folder beside it, with bf16 weights and tokenizer, its name ending in `-bf16`.

    Transformers makes the tokenizer: `AutoTokenizer.from_pretrained(FOLDER, gguf_file=NAME).save_pretrained(...)`.
    """
    folder = model.with_name(model.stem + "-bf16")
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", "bfloat16"]
    command += ["--max-model-len", str(context), "--port", str(port), "--host", "127.0.0.1"]
    command += ["--enable-prefix-caching", "--served-model-name", "default"]
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus))}
    return ServerProcess("vllm", command, url=f"http://127.0.0.1:{port}", settings=settings)


def treadle_server(model: Path, port: int, threads: int, context: int, *options: str) -> ServerProcess:
    command = [sys.executable, "-m", "treadle", "serve", f"default={model}", "--port", str(port)]
    command += ["--threads", str(threads), "--context", str(context), *options]
    return ServerProcess("treadle serve", command, url=f"http://127.0.0.1:{port}")
