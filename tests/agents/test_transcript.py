"""Transcripts: all that happens is in the file before the run goes on, and a run that was cut off goes on from it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scripted_model import ScriptedEngine, call, calls_of, contents, text

from treadle.agents.loop import Agent
from treadle.agents.result import AgentResult
from treadle.agents.tool import ToolResult, ToolSpec
from treadle.agents.transcript import Transcript
from treadle.errors import ToolError, UsageError


class Keeper:
    """A tool that keeps what it was asked."""

    def __init__(self, name: str, *, is_read_only: bool) -> None:
        schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
        self.spec = ToolSpec(name, "", schema, is_read_only)
        self.asked: list[Any] = []

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        self.asked.append(arguments["key"])
        return ToolResult(f"{self.spec.name} {arguments['key']}")

    async def close(self) -> None:
        pass


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tools() -> tuple[Keeper, Keeper]:
    return Keeper("look", is_read_only=True), Keeper("change", is_read_only=False)


def start(path: Path, *script: Any, task: str = "Do it.", **settings: Any) -> AgentResult:
    return asyncio.run(Agent(ScriptedEngine(script), tools(), transcript=path, **settings).run(task))


def resume(
    path: Path, *script: Any, task: str | None = None, **settings: Any
) -> tuple[AgentResult, ScriptedEngine, tuple[Keeper, Keeper]]:
    engine, kept = ScriptedEngine(script), tools()
    return asyncio.run(Agent.resume(path, engine, kept, **settings).run(task)), engine, kept


TWO_CALLS = [call("look", '{"key": "a"}'), call("change", '{"key": "b"}'), text("Done.")]


def test_everything_is_on_record(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert start(path, *TWO_CALLS).end == "answered"
    lines = lines_of(path)
    assert [line["kind"] for line in lines] == [
        *("run", "message", "message"),
        *("usage", "message", "call", "result"),
        *("usage", "message", "call", "result"),
        *("usage", "message", "end"),
    ]
    assert lines[0] == {"kind": "run", "version": 1, "task": "Do it.", "model": "scripted", "tools": ["look", "change"]}
    assert lines[5] == {"kind": "call", "id": "call00001", "name": "look", "arguments": '{"key": "a"}'}
    assert (lines[6]["text"], lines[6]["is_error"]) == ("look a", False)
    assert (lines[-1]["reason"], lines[-1]["answer"], lines[-1]["usage"]["turns"]) == ("answered", "Done.", 3)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("num_lines", range(3, 13))
def test_a_run_that_was_cut_off_anywhere_ends_the_same(tmp_path: Path, num_lines: int) -> None:
    path, cut = tmp_path / "run.jsonl", tmp_path / "cut.jsonl"
    whole = start(path, *TWO_CALLS)
    kept = path.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(kept[:num_lines]) + kept[num_lines][:-1])  # and a last line without its end
    num_answers = sum(json.loads(line).get("message", {}).get("role") == "assistant" for line in kept[:num_lines])
    result, engine, (_, change) = resume(cut, *TWO_CALLS[num_answers:])
    assert (result.answer, result.end) == (whole.answer, whole.end)
    has_begun = any(
        json.loads(line)["kind"] == "call" and json.loads(line)["name"] == "change" for line in kept[:num_lines]
    )
    has_ended = any(
        json.loads(line)["kind"] == "result" and json.loads(line)["name"] == "change" for line in kept[:num_lines]
    )
    # What changes something runs again only if it certainly did not run.
    assert change.asked == ([] if has_begun else ["b"])
    if has_begun and not has_ended:
        assert "not known whether this call was carried out" in contents(engine.asked[0], "tool")[-1]
    else:
        assert result.messages == whole.messages
    assert lines_of(cut)[-1]["kind"] == "end"


def test_calls_of_one_answer_whose_results_are_there_are_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    calls = [
        {
            "id": f"call0000{index}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps({"key": key})},
        }
        for index, key in enumerate("abc", 1)
    ]
    lines: list[dict[str, Any]] = [
        {"kind": "run", "version": 1},
        {"kind": "message", "message": {"role": "user", "content": "t"}},
        {"kind": "message", "message": {"role": "assistant", "content": "", "tool_calls": calls}},
        {"kind": "call", "id": "call00001"},
        {"kind": "call", "id": "call00003"},
        {"kind": "result", "id": "call00003", "name": "look", "text": "look c"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, engine, (look, _) = resume(path, text("ok"))
    assert look.asked == ["a", "b"]
    assert contents(engine.asked[0], "tool") == ["look a", "look b", "look c"]


def test_a_killed_run(tmp_path: Path) -> None:
    """The process is killed while a tool that changes something runs; resumed, it is not run again."""
    path, marker = tmp_path / "run.jsonl", tmp_path / "began"
    program = f"""
import asyncio, sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from scripted_model import ScriptedEngine, call
from treadle.agents.function_tool import tool
from treadle.agents.loop import Agent

@tool
def change(key: str) -> str:
    Path({str(marker)!r}).write_text("x")
    time.sleep(600)
    return key

asyncio.run(Agent(ScriptedEngine([call("change", '{{"key": "b"}}')]), [change], transcript={str(path)!r}).run("Do it."))
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        while not marker.exists():
            assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    result, engine, (_, change) = resume(path, text("It may have been made."))
    assert (result.end, change.asked) == ("answered", [])
    assert calls_of(engine.asked[0].messages[2]) == [("change", '{"key": "b"}')]
    assert "not known whether" in contents(engine.asked[0], "tool")[0]


def test_what_was_used_counts_after_a_resumption(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    start(path, *TWO_CALLS)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    result, _, _ = resume(path, text("Done."))
    assert (result.usage.turns, result.usage.prompt_tokens) == (4, 40)


def test_another_task_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    start(path, *TWO_CALLS)
    result, engine, _ = resume(path, call("look", '{"key": "c"}'), text("Again."), task="And now?")
    assert result.answer == "Again."
    assert [message["role"] for message in engine.asked[0].messages][-2:] == ["assistant", "user"]
    assert engine.asked[1].messages[-1]["tool_call_id"] == "call00003"
    assert result.usage.turns == 2
    with pytest.raises(UsageError, match=r"has ended \(answered\): expected a new task"):
        resume(path, text("x"))


def test_no_new_task_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    start(path, *TWO_CALLS)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match="go on with it before"):
        resume(path, text("x"), task="And now?")


def test_notes_and_warnings_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    whole = start(path, *[call("look", '{"key": "a"}')] * 3, text("{broken"), text("Done."))
    path.write_bytes(
        b"".join(line for line in path.read_bytes().splitlines(keepends=True) if b'"end"' not in line[:20])
    )
    result, engine, _ = resume(path, text("Done again."))
    assert engine.asked[0].messages == list(whole.messages)
    assert result.end == "answered"


def test_one_file_for_one_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    start(path, text("ok"))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="there is such a file already"):
        start(path, text("ok"))
    assert path.read_bytes() == before


def test_two_cannot_write_to_one_file(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path / "run.jsonl")
    transcript.write("run", {"version": 1})
    with pytest.raises(UsageError, match="another run is writing to it"):
        Transcript.reopen(tmp_path / "run.jsonl")
    transcript.close()
    Transcript.reopen(tmp_path / "run.jsonl")[0].close()
    with pytest.raises(UsageError, match="was closed"):
        transcript.write("run", {})


@pytest.mark.parametrize(("number", "is_refused"), [(errno.ENOLCK, False), (errno.EIO, True)])
def test_only_a_file_system_without_locks_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, is_refused: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("treadle.agents.transcript.fcntl.flock", fail)
    path = tmp_path / "run.jsonl"
    if is_refused:
        with pytest.raises(UsageError, match="cannot be locked: Input/output error"):
            Transcript.create(path)
    else:
        Transcript.create(path).close()


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be made: No such file or directory"):
        start(tmp_path / "none" / "run.jsonl", text("ok"))


def test_a_disk_that_fills_ends_the_run_and_loses_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write, num_writes = Transcript.write, 0

    def fail_later(self: Transcript, kind: str, fields: Mapping[str, Any]) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes > 6:
            raise UsageError(f"transcript {self.path}: cannot be written: No space left on device")
        write(self, kind, fields)

    monkeypatch.setattr(Transcript, "write", fail_later)
    result = start(tmp_path / "run.jsonl", *TWO_CALLS)
    assert (result.end, result.answer) == ("error", "")
    assert "No space left on device" in str(result.error)
    assert [message["role"] for message in result.messages] == ["system", "user", "assistant"]
    monkeypatch.undo()
    assert resume(tmp_path / "run.jsonl", *TWO_CALLS[1:])[0].answer == "Done."


def test_dev_full_is_one_clear_error() -> None:
    with Path("/dev/full").open("wb") as file:
        transcript = Transcript(Path("/dev/full"), file.fileno())
        with pytest.raises(UsageError, match="cannot be written: No space left on device"):
            transcript.write("run", {})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not begin as"),
        (b'{"kind": "message"}\n', "does not begin as"),
        (b'{"kind": "run", "version": 2}\n', "expected version 1, found 2"),
        (b'{"kind": "run", "version": 1}\nnonsense\n{"kind": "end"}\n', "line 2 is not JSON"),
        (b'{"kind": "run", "version": 1}\n[1]\n', "line 2 is none of a transcript"),
        (b'{"kind": "run", "version": 1}\n{"kind": "message"}\n', "line 2 makes no sense: KeyError"),
        (b'{"kind": "run", "version": 1}\n{"kind": "note", "text": "x"}\n', "line 2 makes no sense: IndexError"),
        (b'{"kind": "run", "version": 1}\n{"kind": "usage", "usage": {"x": 1}}\n', "line 2 makes no sense: TypeError"),
    ],
)
def test_files_that_are_no_transcripts(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        resume(path, text("x"))
    assert path.read_bytes() == content


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        resume(tmp_path / "none.jsonl", text("x"))


@pytest.mark.parametrize("setting", ["instructions", "transcript"])
def test_what_the_transcript_says_is_not_said_again(tmp_path: Path, setting: str) -> None:
    with pytest.raises(UsageError, match="those of the transcript"):
        resume(tmp_path / "none.jsonl", text("x"), **{setting: "x"})


def test_a_run_needs_a_task() -> None:
    with pytest.raises(UsageError, match="expected a task"):
        asyncio.run(Agent(ScriptedEngine([text("x")])).run())


def test_errors_of_tools_are_on_record(tmp_path: Path) -> None:
    class Failing(Keeper):
        async def call(self, arguments: Mapping[str, Any]) -> ToolResult:  # noqa: ARG002
            raise ToolError("not today")

    path = tmp_path / "run.jsonl"
    engine = ScriptedEngine([call("look", '{"key": "a"}'), text("ok")])
    asyncio.run(Agent(engine, [Failing("look", is_read_only=True)], transcript=path).run("t"))
    (result,) = [line for line in lines_of(path) if line["kind"] == "result"]
    assert (result["text"], result["is_error"]) == ("Error: not today", True)
