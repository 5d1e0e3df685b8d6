"""Files of traces: many tasks in one, writers that were killed, and files that are none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE_SECONDS
from treadle.agents.trace import Trace, read_traces, span
from treadle.errors import UsageError


def record(path: Path, name: str = "task", num_tools: int = 2) -> None:
    with Trace.open(name, path=path), span("turn", "1"):
        for index in range(num_tools):
            with span("tool", f"tool {index}"):
                pass


def test_many_tasks_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: record(path, f"task {index}", 20), range(8)))
    traces, notes = read_traces([path])
    assert notes == []
    assert sorted(trace.name for trace in traces) == [f"task {index}" for index in range(8)]
    assert all(len(trace.spans) == 22 and trace.is_complete for trace in traces)
    with pytest.raises(UsageError, match="expected the trace of one task, found 8"):
        Trace.read(path)


def test_a_killed_writer_leaves_what_had_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    program = (
        "import os, sys\n"
        "from treadle.agents.trace import Trace, span\n"
        "with Trace.open('killed', path=sys.argv[1]), span('turn', '1'):\n"
        "    with span('model', 'm'): pass\n"
        "    with span('tool', 'a'): os._exit(9)\n"
    )
    assert (
        subprocess.run([sys.executable, "-c", program, str(path)], timeout=PATIENCE_SECONDS, check=False).returncode
        == 9
    )
    [trace], notes = read_traces([path])
    assert notes == [f"{path}: the task 'killed' did not end; what it did last is missing"]
    assert not trace.is_complete
    assert [(each.kind, each.parent_id) for each in trace.spans] == [("model", 0), ("task", None)]
    assert trace.root.end_ns == trace.spans[0].end_ns


@pytest.mark.parametrize("num_bytes", [1, 20, 90])
def test_a_cut_line_is_said_and_passed_over(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "run.jsonl"
    record(path)
    whole = path.read_bytes().splitlines(keepends=True)
    # What was cut off is a span; the next writer begins a line of its own.
    path.write_bytes(b"".join(whole[:3]) + whole[3][: len(whole[3]) - num_bytes])
    is_broken = num_bytes > 1  # without its last newline, a line is still whole
    record(path, "next")
    traces, notes = read_traces([path])
    assert [trace.name for trace in traces] == ["task", "next"] and traces[1].is_complete
    assert [note for note in notes if "cut short" in note] == [
        f"{path}: line 4 is cut short: its writer was stopped"
    ] * is_broken
    assert len(traces[0].spans) == (3 if is_broken else 4)


def test_a_file_that_is_all_cut_off_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path)
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(UsageError, match="holds no trace"):
        read_traces([path])


def lines(**changes: Any) -> list[dict[str, Any]]:
    base = {"type": "span", "trace": "t", "span": 1, "parent": None, "kind": "task", "name": "n"}
    times = {"start_ns": 0, "end_ns": 5, "cpu_seconds": None, "attributes": {}}
    return [{"type": "trace", "trace": "t", "version": 1, "name": "n", "began_at_ns": 5}, {**base, **times, **changes}]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "magic"}, "expected a kind of span, found 'magic'"),
        ({"type": "spam"}, "expected trace, span or end, found 'spam'"),
        ({"trace": "u"}, "this trace has not begun"),
        ({"trace": ["t"]}, "expected trace to be of type str"),
        ({"span": "1"}, "expected span to be of type int"),
        ({"span": 2**63}, "expected span to be less than"),
        ({"parent": 1}, "expected a span of a lower number"),
        ({"parent": True, "span": 5}, "expected a span of a lower number"),
        ({"start_ns": 6}, "expected an end after the start"),
        ({"start_ns": 0.5}, "expected start_ns to be of type int"),
        ({"cpu_seconds": -1}, "expected cpu_seconds to be a number of at least 0"),
        ({"cpu_seconds": float("nan")}, "expected cpu_seconds to be a number of at least 0"),
        ({"cpu_seconds": "1"}, "expected cpu_seconds to be a number of at least 0"),
        ({"attributes": []}, "expected attributes to be of type dict"),
        ({"attributes": {"a": [1]}}, "expected attributes of text, numbers"),
        ({"attributes": {"a": None}}, "expected attributes of text, numbers"),
        ({"attributes": {"a": float("inf")}}, "expected attributes of text, numbers"),
        ({"name": None}, "expected name to be of type str"),
        ({"type": "trace"}, "expected a field 'version'"),
        ({"type": "trace", "version": 1, "began_at_ns": 0}, "this trace began already"),
        ({"type": "trace", "version": 2}, "expected version 1 of the format, found 2"),
        ({"type": "end"}, "expected a field 'num_dropped'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines(**changes)))
    with pytest.raises(UsageError) as caught:
        read_traces([path])
    message = str(caught.value)
    assert message.startswith(f"{path}: line 2: ") and says in message and "\n" not in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no trace"),
        (b"\n\n", "holds no trace"),
        (b"hello\n", "line 1: expected JSON of a trace, found 'hello'"),
        (b"\x7fELF\x00\xff\xfe", "line 1: expected JSON of a trace"),
        (b"[]\n", "line 1: expected an object"),
        (b"7\n", "line 1: expected an object"),
        (b'{"a": 1}\n', "line 1: expected a field 'type'"),
        (b"[" * 100_000, "line 1: expected JSON of a trace"),
        (b"9" * 100_000, "line 1: "),
        (b"x" * (1 << 20), "line 1: expected 1,048,576 bytes at most, found more"),
    ],
    ids=range(10),
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_traces([path])
    assert says in str(caught.value) and len(str(caught.value)) < 400


def test_two_spans_of_one_number_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines(), lines()[1]]))
    with pytest.raises(UsageError, match="two spans of one number"):
        read_traces([path])


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: the trace cannot be read: No such file"):
        read_traces([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="the trace cannot be written: Is a directory"), Trace.open("t", path=tmp_path):
        pass


def test_a_task_goes_on_without_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with Trace.open("t", path=folder / "run.jsonl") as trace, span("turn"):
        shutil.rmtree(folder)
        with span("tool", "a"), span("network"):
            pass
    assert len(trace.spans) == 4
    assert caplog.messages == [f"{folder / 'run.jsonl'}: the trace cannot be written: No such file or directory"]


_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})


@given(st.lists(st.dictionaries(st.sampled_from([*lines()[1], "version", "began_at_ns", "num_dropped"]), _VALUES)))
def test_hostile_lines_end_in_one_error_or_in_a_trace(tmp_path_factory: pytest.TempPathFactory, changes: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.jsonl"
    header = lines()[0]
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *(lines(**change)[1] for change in changes)]))
    try:
        traces, _ = read_traces([path])
    except UsageError:
        return
    assert [trace.summary().num_tasks for trace in traces] == [1]
