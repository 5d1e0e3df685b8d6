"""`treadle agent`, with a server whose answers are scripted in the place of a model."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from command import Result, environment, plain_numbers
from engine.remote.scripted_engine import CHAT, DONE, Events, delta, models, usage
from local_server import LocalServer, in_turn, local_server, text_answer
from patience import PATIENCE_SECONDS
from treadle.agents.sandbox import Sandbox
from treadle.agents.trace import Trace
from treadle.cli.main import main
from treadle.errors import SandboxUnavailableError

TASK = "How many rows has sales.csv?"


@pytest.fixture
def far() -> Iterator[LocalServer]:
    with local_server() as server:
        server.routes["/v1/models"] = models("acme", "big")
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "sales.csv").write_text("day,amount\n1,10\n2,20\n")
    return tmp_path / "work"


def says(text: str) -> Events:
    return Events([delta(content=text), delta(finish_reason="stop"), usage(20, 5, cached=8), DONE])


def calls(name: str, **arguments: Any) -> Events:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    return Events([delta(tool_calls=[call]), delta(finish_reason="tool_calls"), usage(10, 5), DONE])


def command(*arguments: str | Path, text: str = "") -> Result:
    """Run the command in this process, which is much faster."""
    out, err = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "stdin", io.StringIO(text)),
        pytest.raises(SystemExit) as ended,
    ):
        main(["agent", *map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return Result(ended.value.code, out.getvalue(), err.getvalue())


def agent(far: LocalServer, folder: Path, *arguments: str | Path, text: str = "") -> Result:
    return command("-m", f"{far.url}/v1#big", "--workspace", folder, *arguments, text=text)


COUNT = {"file": "sales.csv", "sql": "SELECT count(*) FROM data"}
QUIET_TOOLS = ("--tools", "files,query")


def sent(far: LocalServer, number: int) -> Any:
    return json.loads(far.bodies[number])


def test_the_answer_goes_to_stdout_and_what_is_done_to_stderr(far: LocalServer, folder: Path) -> None:
    far.routes[CHAT] = in_turn(calls("query_table", **COUNT), says("It has two rows."))
    result = agent(far, folder, TASK, *QUIET_TOOLS)
    assert (result.code, result.out) == (0, "It has two rows.\n")
    assert plain_numbers(result.err).split("\n") == [
        'query_table {"file": "sales.csv", "sql": "SELECT count(*) FROM data"}',
        "  = count(*) N (N row) (N s)",
        "N turns, N call, prompt N tokens (N known), answer N tokens, N s: model N %, tools N %",
        "",
    ]
    assert result.err.split("\n")[2].startswith("2 turns, 1 call, prompt 30 tokens (8 known), answer 10 tokens, ")
    names = [tool["function"]["name"] for tool in sent(far, 0)["tools"]]
    assert names == ["list_files", "read_file", "search_files", "query_table", "query_json"]
    assert sent(far, 1)["messages"][-1]["content"] == "count(*)\n2\n(1 row)"


def test_quiet_prints_the_answer_alone_and_verbose_everything(far: LocalServer, folder: Path) -> None:
    long = "x" * 3000
    (folder / "long.txt").write_text(long)
    far.routes[CHAT] = in_turn(calls("read_file", path="long.txt"), says("Done."))
    assert agent(far, folder, TASK, *QUIET_TOOLS, "-q") == Result(0, "Done.\n", "")
    far.routes[CHAT] = in_turn(calls("read_file", path="long.txt"), says("Done."))
    assert long in agent(far, folder, TASK, *QUIET_TOOLS, "-v").err


def test_json_is_one_object(far: LocalServer, folder: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"rows": {"type": "integer"}}, "required": ["rows"]}')
    far.routes[CHAT] = in_turn(calls("query_table", **COUNT), calls("final_answer", rows=2))
    trace = tmp_path / "trace.jsonl"
    options = ("--json", "--answer-schema", schema, "--trace", trace, "-q", *QUIET_TOOLS)
    result = agent(far, folder, TASK, *options)
    facts = json.loads(result.out)
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    assert (facts["data"], facts["end"], facts["error"], facts["turns"], facts["calls"]) == (
        {"rows": 2},
        "answered",
        None,
        2,
        1,
    )
    assert facts["model"].startswith("big at ")
    assert facts["tools"]["query_table"]["calls"] == 1
    seconds = facts["seconds"]
    assert seconds["wall"] == pytest.approx(sum(value for name, value in seconds.items() if name != "wall"))
    assert [span.name for span in Trace.read(trace).spans if span.kind == "tool"] == ["query_table"]


def test_an_early_end_is_told_with_exit_code_3(far: LocalServer, folder: Path) -> None:
    far.routes[CHAT] = in_turn(calls("list_files"), calls("read_file", path="sales.csv"), says("I do not know."))
    result = agent(far, folder, TASK, *QUIET_TOOLS, "--max-turns", "3")
    assert (result.code, result.out) == (3, "I do not know.\n")
    assert "the agent was stopped before it was done: --max-turns was reached" in result.err


def test_the_workspace_is_changed_with_write_only(far: LocalServer, folder: Path) -> None:
    far.routes[CHAT] = in_turn(calls("write_file", path="a/new.txt", content="hi"), says("Done."))
    assert agent(far, folder, TASK, *QUIET_TOOLS).code == 0
    assert "there is no tool" in sent(far, 1)["messages"][-1]["content"]
    assert not (folder / "a").exists()
    far.routes[CHAT] = in_turn(calls("write_file", path="a/new.txt", content="hi"), says("Done."))
    assert agent(far, folder, TASK, *QUIET_TOOLS, "--write").code == 0
    assert (folder / "a" / "new.txt").read_text() == "hi"


def test_a_transcript_is_gone_on_with(far: LocalServer, folder: Path, tmp_path: Path) -> None:
    transcript = tmp_path / "run.jsonl"
    far.routes[CHAT] = in_turn(calls("query_table", **COUNT), says("Two."), says("Twenty."))
    assert agent(far, folder, TASK, *QUIET_TOOLS, "--transcript", transcript).out == "Two.\n"
    result = agent(far, folder, "And the largest amount?", *QUIET_TOOLS, "--resume", transcript)
    assert (result.code, result.out) == (0, "Twenty.\n")
    roles = [message["role"] for message in sent(far, 2)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    refused = agent(far, folder, TASK, "--resume", transcript, "--transcript", tmp_path / "x", *QUIET_TOOLS)
    assert (refused.code, refused.err.split("\n")[0]) == (
        1,
        "error: --resume writes to the transcript it reads, and keeps its system message",
    )


def test_ctrl_c_ends_the_run_with_130_and_keeps_the_transcript(far: LocalServer, folder: Path, tmp_path: Path) -> None:
    transcript = tmp_path / "run.jsonl"
    stuck = Events([delta(content="I"), delta(content="never")], gate=threading.Event(), gated=1)
    far.routes[CHAT] = in_turn(calls("query_table", **COUNT), stuck)
    command = [sys.executable, "-m", "treadle", "agent", TASK, "-m", f"{far.url}/v1#big", "--workspace", str(folder)]
    process = subprocess.Popen(
        [*command, *QUIET_TOOLS, "--transcript", str(transcript)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        while not stuck.started.wait(0.05):
            assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
        assert stuck.gate is not None
        stuck.gate.set()
    assert (process.returncode, out) == (130, b"")
    assert f"stopped; `treadle agent --resume {transcript}` with the same options goes on" in err.decode()
    assert b"Traceback" not in err
    far.routes[CHAT] = says("Two.")
    assert agent(far, folder, *QUIET_TOOLS, "--resume", transcript).out == "Two.\n"
    assert sent(far, -1)["messages"][-1]["content"] == "count(*)\n2\n(1 row)"


def test_the_task_comes_from_stdin_too(far: LocalServer, folder: Path) -> None:
    far.routes[CHAT] = says("Yes.")
    assert agent(far, folder, "-", "--tools", "none", text="Is it?\n").out == "Yes.\n"
    assert sent(far, 0)["messages"][-1]["content"] == "Is it?\n"
    assert "tools" not in sent(far, 0)
    assert agent(far, folder, "Summarise:", "--tools", "none", text="a b c").code == 0
    assert sent(far, 1)["messages"][-1]["content"] == "Summarise:\n\na b c"


def test_pages_are_fetched_from_allowed_hosts_only(far: LocalServer, folder: Path) -> None:
    far.routes["/page"] = text_answer("found", "text/plain")
    host = far.url.removeprefix("http://")
    far.routes[CHAT] = in_turn(
        calls("fetch", url=f"{far.url}/page"), calls("fetch", url="http://127.0.0.1:1/"), says("Done.")
    )
    assert agent(far, folder, TASK, "--tools", "fetch", "--allow-host", host).code == 0
    assert sent(far, 1)["messages"][-1]["content"].endswith("found")
    assert "is not allowed" in sent(far, 2)["messages"][-1]["content"]


def test_code_is_refused_before_the_model_is_asked_where_there_is_no_sandbox(
    far: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(**_: object) -> None:
        raise SandboxUnavailableError("code cannot be isolated: there is nothing", hint="install it")

    monkeypatch.setattr(Sandbox, "open", refuse)
    result = agent(far, folder, TASK, "--tools", "python")
    assert result == Result(1, "", "error: code cannot be isolated: there is nothing\nhint: install it\n")
    assert far.requests == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("--tools", "fils"),
            "there are no tools 'fils'; there are files, query, python, shell, fetch\nhint: did you mean files?",
        ),
        (("--tools", "fetch"), "fetch: there is no host that it may ask\nhint: allow one with --allow-host"),
        (("--allow-host", "example.com"), "hosts are allowed, but there is no tool to ask them"),
        (("--tools", "fetch", "--allow-host", "a b"), "'a b' is nothing that can be allowed"),
        (("--policy", "wild"), "--policy wild: expected adaptive or fixed"),
        (("--max-turns", "0"), "budget: max_turns: expected a number above 0"),
        (("--answer-schema", "/none"), "--answer-schema /none: "),
        (("--workspace", "/none"), "the workspace /none is no folder to work in"),
        (("--resume", "/none"), "/none"),
    ],
)
def test_what_cannot_be_is_refused(far: LocalServer, folder: Path, arguments: tuple[str, ...], problem: str) -> None:
    tools = () if "--tools" in arguments else QUIET_TOOLS
    result = agent(far, folder, TASK, *tools, *arguments)
    assert problem in result.err
    assert (result.code, result.out) == (1, "")
    assert not far.bodies


def test_there_must_be_a_task(far: LocalServer, folder: Path) -> None:
    result = agent(far, folder, *QUIET_TOOLS)
    assert (result.code, result.err.split("\n")[0]) == (1, "error: there is no task")


def test_a_home_is_no_workspace_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path.cwd()
    monkeypatch.setenv("HOME", str(here))
    result = command(TASK, "--tools", "files")
    assert result.err.split("\n")[0] == f"error: the current folder is {here}, all of which a model would see"
    assert (result.code, result.out) == (1, "")


def test_an_engine_that_fails_ends_the_run_with_its_error(far: LocalServer, folder: Path) -> None:
    far.routes[CHAT] = Events([b'data: {"error": {"message": "out of order"}}\n\n'])
    result = agent(far, folder, TASK, *QUIET_TOOLS)
    assert result.code == 1
    assert "out of order" in result.err


def test_tools_of_an_mcp_server_are_called(far: LocalServer, folder: Path) -> None:
    script = Path(__file__).parent.parent / "agents" / "mcp_small_server.py"
    server = ("--mcp", f"s={sys.executable} {script}", "--mcp-allow", "add", "--tools", "none")
    far.routes[CHAT] = in_turn(calls("s_add", a=2, b=3), says("Five."))
    assert agent(far, folder, TASK, *server).out == "Five.\n"
    assert [tool["function"]["name"] for tool in sent(far, 0)["tools"]] == ["s_add"]
    assert sent(far, 1)["messages"][-1]["content"] == "5"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--mcp-allow", "add"), "--mcp-allow: there is no server to have tools of"),
        (("--mcp", "/nothing/here"), "the MCP server here cannot be used"),
    ],
)
def test_servers_that_cannot_be_had_are_refused(
    far: LocalServer, folder: Path, arguments: tuple[str, ...], problem: str
) -> None:
    result = agent(far, folder, TASK, *QUIET_TOOLS, *arguments)
    assert (result.code, result.out) == (1, "")
    assert problem in result.err
    assert not far.bodies
