"""`treadle trace`: what it prints of one task and of many, its JSON, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

import pytest

from command import Result, Terminal
from made_traces import add, agent_trace, new_trace
from treadle.cli.main import main

WATERFALL = """\
task Which region sold most?    2.00 s  ████████████████████████████████████████
  turn 1                        1.50 s  ██████████████████████████████
    model m                     0.40 s  ████████
      queue                      50 ms  █
      prefill                   0.20 s   ████
      decode                    0.15 s       ███
    parse                        10 ms          █
    dispatch                     10 ms          █
    tool run_python             1.06 s          ██████████████████████
      wait cores                0.10 s          ██
      sandbox python            0.94 s            ███████████████████
    tool fetch                  0.28 s          ░░░░░░
      network GET               0.26 s           ░░░░░
  turn 2                        0.49 s                                ██████████
    model m                     0.48 s                                ██████████
      prefill                   0.10 s                                ██
      decode                    0.38 s                                  ████████
"""


class RunTrace(Protocol):
    def __call__(self, *arguments: str | Path, columns: int = 80) -> Result: ...


@pytest.fixture
def run_trace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunTrace:
    """Runs the command in this process, with pipes."""

    def run(*arguments: str | Path, columns: int = 80) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as stop:
            main(["trace", *map(str, arguments)])
        out, err = capsys.readouterr()
        return Result(int(stop.value.code or 0), out, err)

    return run


@pytest.fixture
def one(tmp_path: Path) -> Path:
    path = tmp_path / "one.jsonl"
    agent_trace("Which region sold most?").write(path)
    return path


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many.jsonl"
    for index in range(30):
        agent_trace(f"task {index}").write(path)
    new_trace(5000, "the slow one").write(path)
    return path


def test_one_task_is_summed_up_and_drawn(one: Path, run_trace: RunTrace) -> None:
    result = run_trace(one)
    assert (result.code, result.err) == (0, "")
    parts = result.out.split("\n\n")
    assert len(parts) == 5
    assert parts[0].splitlines() == [
        "             wall  share       CPU  made of",
        "model      0.88 s   44 %            queue 50 ms, prefill 0.30 s, decode 0.53 s",
        "tools      1.01 s   50 %    0.91 s  tool 30 ms, sandbox 0.85 s, network 0.13 s",
        "waiting     50 ms    2 %            wait 50 ms",
        parts[0].splitlines()[4],
        "all        2.00 s  100 %",
    ]
    assert parts[0].splitlines()[4].startswith("own         60 ms    3 %    0.")
    assert parts[1].startswith(
        "covered  98.0 % of the time by spans\ntokens   250 in prompts, 72 % of them cached; 50 in answers\nCPU      "
    )
    assert parts[2].startswith("critical path        wall  share\nsandbox python     0.94 s   47 %\ndecode x2")
    assert parts[2].endswith("3 others            30 ms    2 %")
    assert parts[3].endswith("\nfetch           1       1    0.28 s")
    assert parts[4] == WATERFALL


def test_a_terminal_has_colours_and_its_own_width(one: Path) -> None:
    with Terminal("trace", one, TERM="xterm", COLUMNS="120") as terminal:
        shown = terminal.wait_for(r"decode +0\.38 s.*\n")
    assert "\x1b[36m█" in shown and "\x1b[33m░" in shown
    with Terminal("trace", one, TERM="xterm", NO_COLOR="1") as terminal:
        assert "\x1b" not in terminal.wait_for(r"decode +0\.38 s.*\n")


def test_short_spans_share_a_line(one: Path, run_trace: RunTrace) -> None:
    lines = run_trace(one, "--rows", "4").out.split("\n\n")[-1].splitlines()
    assert [line[:34].rstrip() for line in lines] == [
        "task Which region sold most?",
        "  turn 1",
        "    tool run_python",
        "      sandbox python",
        "      1 more: wait cores",
        "    4 more: model m, parse, disp",
        "  1 more: turn 2",
    ]
    assert "█" in lines[4]


def test_many_tasks_are_listed_the_slowest_first(many: Path, run_trace: RunTrace) -> None:
    result = run_trace(many)
    assert result.code == 0
    assert "\ntasks    31, half of them within 2.00 s\n" in result.out
    table = result.out.split("\n\n")[-1].splitlines()
    assert table[0].split() == ["task", "wall", "model", "tools", "name"]
    assert table[1].split() == ["31", "5.00", "s", "0", "%", "0", "%", "the", "slow", "one"]
    assert len(table) == 22 and table[-1].split() == ["and", "11", "quicker", "ones"]


def test_one_of_many_can_be_chosen(many: Path, one: Path, run_trace: RunTrace) -> None:
    chosen = run_trace(many, one, "--task", "32").out
    assert chosen.split("\n\n")[-1] == WATERFALL
    result = run_trace(one, "--task", "2")
    assert result.code == 1 and "--task 2: expected a number up to 1" in result.err


def test_json_has_the_documented_fields(many: Path, run_trace: RunTrace) -> None:
    facts = json.loads(run_trace(many, "--json").out)
    assert list(facts) == ["schema", "notes", "summary", "tasks"]
    assert facts["schema"] == 1 and facts["summary"]["num_tasks"] == 31
    assert facts["summary"]["groups"].keys() == {"model", "tools", "waiting", "own"}
    task = facts["tasks"][0]
    assert list(task) == ["id", "name", "began_at", "seconds", "is_complete", "attributes", "summary"]
    assert task["summary"]["coverage"] == pytest.approx(0.98)
    assert task["summary"]["tools"]["fetch"] == {
        "num_calls": 1,
        "num_errors": 1,
        "wall_seconds": 0.28,
        "cpu_seconds": None,
    }
    assert task["summary"]["critical_path"][0]["name"] == "python"


def test_what_a_killed_writer_left_is_shown_with_a_warning(one: Path, run_trace: RunTrace) -> None:
    lines = one.read_text().splitlines(keepends=True)
    one.write_text("".join(line for line in lines if '"kind": "task"' not in line)[:-140])
    result = run_trace(one)
    assert result.code == 0
    assert result.err.count("warning: ") == 2
    assert "is cut short: its writer was stopped" in result.err and "did not end" in result.err
    assert "\nCPU " not in result.out


def test_a_file_of_something_else_is_one_clear_error(tmp_path: Path, one: Path, run_trace: RunTrace) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"messages": []}\n')
    result = run_trace(one, path)
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines() == [f"error: {path}: line 1: expected a field 'type', in '{{\"messages\": []}}'"]


def test_names_cannot_steer_the_terminal(tmp_path: Path, run_trace: RunTrace) -> None:
    path = tmp_path / "hostile.jsonl"
    trace = new_trace(100, "\x1b[2J\nname")
    add(trace, "tool", 0, 100, "\x1b]0;owned\x07 表示" * 20)
    trace.write(path)
    result = run_trace(path, columns=60)
    assert result.code == 0 and "\x1b" not in result.out and "\x07" not in result.out
    assert "task \ufffd[2J\ufffdname" in result.out
