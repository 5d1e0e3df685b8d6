"""Models as tools over MCP, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from scripted_model import ScriptedEngine, text

from command import environment, treadle
from engine.remote.scripted_engine import CHAT, DONE, Events, delta, models, usage
from local_server import local_server
from patience import PATIENCE_SECONDS
from treadle.agents.mcp_server import ModelToolLimits, make_server, model_tools
from treadle.errors import UsageError


class Embedder(ScriptedEngine):
    """Also embeds, with the length of each text as its vector."""

    def __init__(self, script: list[Any]) -> None:
        super().__init__(script)
        self.report = SimpleNamespace(embeds_only=False, ranks=False)

    async def embed(self, inputs: Any, **_: Any) -> list[Any]:
        if "bad" in inputs:
            raise UsageError("the input 'bad' is too long")
        return [SimpleNamespace(vector=np.array([len(each), 1 / 3], dtype=np.float32)) for each in inputs]


def with_client(engines: dict[str, Any], test: Callable[[Client], Awaitable[Any]], **limits: Any) -> Any:
    async def run() -> Any:
        async with Client(make_server(model_tools(engines, ModelToolLimits(**limits)))) as client:
            return await test(client)

    return asyncio.run(run())


async def call(client: Client, name: str, **arguments: Any) -> tuple[str, bool]:
    result = await client.call_tool(name, arguments)
    return "".join(block.text for block in result.content), bool(result.is_error)  # type: ignore[union-attr]


def test_a_model_is_asked_with_chat() -> None:
    engine = ScriptedEngine([text(" Tokyo. ", finish_reason="length")])

    async def test(client: Client) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["list_models", "chat", "generate"]
        asked = await call(client, "chat", message="The capital of Japan?", system="Be brief.", max_tokens=99_999)
        assert asked == ("Tokyo.\n[cut after 100 tokens]", False)
        listed = json.loads((await call(client, "list_models"))[0])
        assert listed == [{"name": "m", "model": "scripted", "context": None, "can": ["chat"]}]

    with_client({"m": engine}, test, answer_tokens=100)
    assert [each["content"] for each in engine.asked[0].messages] == ["Be brief.", "The capital of Japan?"]
    assert (engine.params[0].max_tokens, engine.params[0].temperature) == (100, 0)
    assert engine.timeouts == [600.0]


def test_several_models_are_told_apart_and_texts_become_vectors() -> None:
    engines = {"a": ScriptedEngine([text("A")]), "b": Embedder([text("B")])}

    async def test(client: Client) -> None:
        assert await call(client, "chat", message="Who?") == ("A", False)
        assert await call(client, "chat", message="Who?", model="b") == ("B", False)
        told, is_error = await call(client, "embed", texts=["ab", "abc"])
        assert (json.loads(told)["embeddings"], is_error) == ([[2.0, 0.333333], [3.0, 0.333333]], False)

    with_client(engines, test)


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("nothing", {}, "there is no tool 'nothing'; there are list_models, chat, generate, embed"),
        ("chat", {}, "message"),
        ("chat", {"message": "x", "model": "c"}, "model"),
        ("chat", {"message": "x", "temperature": 9}, "temperature"),
        ("chat", {"message": "x", "more": 1}, "more"),
        ("embed", {"texts": []}, "texts"),
        ("embed", {"texts": ["x"] * 65}, "texts"),
        ("embed", {"texts": ["bad"]}, "the input 'bad' is too long"),
    ],
)
def test_what_cannot_be_is_an_error_of_the_call(name: str, arguments: dict[str, Any], problem: str) -> None:
    async def test(client: Client) -> None:
        told, is_error = await call(client, name, **arguments)
        assert is_error
        assert problem in told

    with_client({"a": Embedder([text("A")]), "b": Embedder([text("B")])}, test)


def test_no_more_calls_run_together_than_may() -> None:
    running = most = 0

    class Counting(Embedder):
        async def embed(self, inputs: Any, **_: Any) -> list[Any]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(20):
                await asyncio.sleep(0)
            running -= 1
            return [SimpleNamespace(vector=np.zeros(2, dtype=np.float32)) for _ in inputs]

    async def test(client: Client) -> None:
        await asyncio.gather(*(call(client, "embed", texts=["x"]) for _ in range(9)))

    with_client({"m": Counting([text("A")])}, test, num_running=3)
    assert most == 3


def test_the_command_serves_over_stdio_and_ends_with_its_client() -> None:
    with local_server() as far:
        far.routes["/v1/models"] = models("acme", "big")
        far.routes[CHAT] = Events([delta(content="From afar."), delta(finish_reason="stop"), usage(7, 3), DONE])
        command = ["-m", "treadle", "mcp-serve", f"far={far.url}/v1#big"]

        async def ask() -> tuple[str, bool]:
            parameters = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
            async with Client(parameters) as client:
                return await call(client, "chat", message="Hello")

        assert asyncio.run(ask()) == ("From afar.", False)
        done = subprocess.run(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(),
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"serving far over stdin and stdout\n")


def test_ctrl_c_ends_the_command_though_its_client_is_still_there() -> None:
    with local_server() as far:
        far.routes["/v1/models"] = models("acme", "big")
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", "mcp-serve", f"far={far.url}/v1#big"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        with process:
            assert process.stderr is not None
            assert process.stdout is not None
            assert process.stderr.readline() == b"serving far over stdin and stdout\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 130
            assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("m=",), "'m=': expected MODEL or NAME=MODEL"),
        (("a=x.gguf", "a=y.gguf"), "two models are called a"),
        (("/nothing/here.gguf",), "no such file"),
    ],
)
def test_the_command_refuses_what_cannot_be(arguments: tuple[str, ...], problem: str) -> None:
    result = treadle("mcp-serve", *arguments)
    assert (result.code, result.out) == (1, "")
    assert problem in result.err
