"""`treadle run` from outside: transcripts, pipes, JSON, and every way to get it wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command import Terminal, environment, plain_numbers, treadle
from patience import PATIENCE_SECONDS

GREEDY = ("--temperature", "0")
QUESTION = "Name the capital of Japan."
ANSWER = "The capital of Japan is Tokyo.\n"
CLOSING_LINE = "prompt N tokens at N tok/s, answer N tokens at N tok/s, N GB/s, peak memory N MB\n"


@pytest.mark.model
def test_the_answer_goes_to_stdout_and_one_closing_line_to_stderr(smollm2_path: Path, tmp_path: Path) -> None:
    result = treadle("run", QUESTION, "-m", smollm2_path, *GREEDY, TREADLE_HOME=str(tmp_path))
    assert (result.code, result.out) == (0, ANSWER)
    assert plain_numbers(result.err) == CLOSING_LINE


@pytest.mark.model
def test_stdin_alone_a_dash_and_stdin_after_the_prompt(smollm2_path: Path) -> None:
    assert treadle("run", "-m", smollm2_path, *GREEDY, text=QUESTION).out == ANSWER
    assert treadle("run", "-", "-m", smollm2_path, *GREEDY, text=QUESTION).out == ANSWER
    asked = treadle("run", "Answer the question.", "-m", smollm2_path, *GREEDY, "--json", text=QUESTION)
    typed = treadle("run", f"Answer the question.\n\n{QUESTION}", "-m", smollm2_path, *GREEDY, "--json")
    assert json.loads(asked.out)["prompt_tokens"] == json.loads(typed.out)["prompt_tokens"]


@pytest.mark.model
def test_json_is_one_object_and_quiet_leaves_stderr_empty(smollm2_path: Path) -> None:
    result = treadle("run", QUESTION, "-m", smollm2_path, *GREEDY, "--json", "--quiet")
    facts = json.loads(result.out)
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    assert (facts["text"], facts["finish_reason"]) == (ANSWER.strip(), "stop")
    assert facts["prompt_tokens"] > facts["completion_tokens"] > 1
    timings = ("load_seconds", "prefill_seconds", "decode_seconds", "decode_tokens_per_second", "peak_memory_bytes")
    assert all(facts[name] > 0 for name in timings)


@pytest.mark.model
def test_verbose_says_what_was_chosen(smollm2_path: Path) -> None:
    result = treadle(
        "run", QUESTION, "-m", smollm2_path, *GREEDY, "-vt1", "--context", "512", "--memory", "600MB", TREADLE_ISA="ref"
    )
    assert result.out == ANSWER
    for line in (
        f"llama), {smollm2_path}",
        "kernels: ref",
        "as asked for",
        "context: 512 tokens (as asked)",
        "memory: 600 MB (the memory asked for)",
        "loaded in",
        "% of it outside the core; ",
    ):
        assert line in result.err
    assert "first token" in result.err


@pytest.mark.model
def test_raw_continues_the_text_and_stop_ends_it(smollm2_path: Path) -> None:
    result = treadle("run", "The capital of France is", "--raw", "-m", smollm2_path, *GREEDY, "-n", "16", "--stop", ".")
    assert result.out == " Paris\n"


@pytest.mark.model
def test_a_cut_answer_says_so(smollm2_path: Path) -> None:
    result = treadle("run", QUESTION, "-m", smollm2_path, *GREEDY, "-n", "2")
    assert result.out == "The capital\n"
    assert "the answer was cut" in result.err


@pytest.mark.model
def test_a_seed_repeats_an_answer(smollm2_path: Path) -> None:
    first, second = (
        treadle("run", "Tell me a story.", "-m", smollm2_path, "--temperature", "1.5", "--seed", "7", "-n", "24")
        for _ in range(2)
    )
    assert first.out == second.out


@pytest.mark.model
def test_a_prompt_longer_than_the_context_is_refused(smollm2_path: Path) -> None:
    result = treadle("run", "word " * 200, "-m", smollm2_path, "--context", "128")
    assert (result.code, result.out) == (1, "")
    assert "a context of 128 has room for 127" in result.err


@pytest.mark.model
def test_a_context_beyond_the_models_own_is_refused(smollm2_path: Path) -> None:
    result = treadle("run", QUESTION, "-m", smollm2_path, "--context", "100000")
    assert (result.code, result.out) == (1, "")
    assert "was trained for 8192 tokens, found 100000\nhint: ask for at most 8192\n" in result.err


@pytest.mark.model
def test_a_full_disk_is_an_error_and_a_closed_pipe_is_silent(smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "treadle", "run", QUESTION, "-m", str(smollm2_path), *GREEDY, "--quiet"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=PATIENCE_SECONDS,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == b"error: the output could not be written: No space left on device\n"
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE, env=environment(), timeout=PATIENCE_SECONDS,
        check=False,
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.model
def test_control_characters_of_an_answer_do_not_reach_a_terminal(smollm2_path: Path, tmp_path: Path) -> None:
    link = tmp_path / "evil\x1b[31m.gguf"
    link.symlink_to(smollm2_path)
    with Terminal("run", QUESTION, "-m", link, *GREEDY, "-v") as terminal:
        assert terminal.wait() == 0
        assert "Tokyo" in terminal.shown
        assert "\x1b[31m" not in terminal.shown


@pytest.mark.model
def test_ctrl_c_ends_with_130_and_no_traceback(smollm2_path: Path) -> None:
    with Terminal("run", "Write a very long story.", "-m", smollm2_path, *GREEDY, "-n", "4000") as terminal:
        terminal.wait_for("the ")
        terminal.send("\x03")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.shown


@pytest.mark.model
@pytest.mark.parametrize("command", ["run", "chat"])
def test_refuses_bytes_that_are_no_text(command: str, smollm2_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "treadle", command, "-m", str(smollm2_path)],
        input=b"caf\xe9",
        capture_output=True,
        env=environment(PYTHONUTF8="1"),
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"error: stdin is not UTF-8 text: unexpected end of data\n"


@pytest.mark.parametrize("command", ["run", "agent"])
def test_refuses_text_without_an_end(command: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"yes | {sys.executable} -m treadle {command}"],
        capture_output=True,
        env=environment(),
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stderr == b"error: stdin: expected at most 16,777,216 characters, found more\n"
    assert done.returncode == 1


def test_refuses_text_that_the_locale_does_not_know() -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = treadle("run", "-", text="é", **locale)
    assert result.err.startswith("error: stdin is not ASCII text: ")
    assert "hint: PYTHONUTF8=1 reads UTF-8" in result.err


@pytest.mark.model
@pytest.mark.parametrize(
    ("redirection", "variables", "expected"),
    [
        ("<&-", {}, (0, ANSWER, "")),
        ("</dev/null", {"PYTHONIOENCODING": "ascii"}, (0, ANSWER, "")),
        ("2>&-", {}, (0, ANSWER, "")),
        ("2>/dev/full", {}, (0, ANSWER, "")),
        (">&-", {}, (1, "", "error: the output could not be written: stdout is closed\n")),
    ],
)
def test_closed_streams_and_poor_encodings_are_no_crash(
    smollm2_path: Path, redirection: str, variables: dict[str, str], expected: tuple[int, str, str]
) -> None:
    command = f"{sys.executable} -m treadle run 'Name the capital of Japan.' -m {smollm2_path} --temperature 0 -q"
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {command} {redirection}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(**variables),
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == expected


def test_refuses_what_is_no_model(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    missing = tmp_path / "missing.gguf"
    for model, text in (
        (missing, f"error: {missing}: no such file\n"),
        (broken, f"error: {broken}: "),
        (tmp_path, f"error: {tmp_path}: expected a .gguf file, found a folder\n"),
        ("smollm2:135n", "error: unknown model 'smollm2:135n'"),
    ):
        result = treadle("run", "hi", "-m", model, TREADLE_HOME=str(tmp_path))
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith(text)
        assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "err"),
    [
        (["rnu", "hi"], "error: No such command 'rnu'. Did you mean 'run'?\nhint: `treadle --help` lists what can be typed\n"),
        (["run", "hi", "--max-token", "3"], "error: No such option: --max-token (Possible options: --max-tokens)\nhint: "),
        (["run", "hi", "-n", "0"], "error: SamplingParams: max_tokens is 0, expected a whole number, at least 1\n"),
        (["run", "hi", "--temperature", "hot"], "error: Invalid value for '--temperature': "),
        (["run", "hi", "--top-p", "0"], "error: SamplingParams: top_p is 0.0, expected above 0, at most 1\n"),
        (["run", "hi", "--seed", "-1"], "error: SamplingParams: seed is -1, expected a whole number, 0 to "),
        (["run", "hi", "--stop", ""], "error: SamplingParams: stop is [''], expected a text or up to 16 texts"),
        (["run", "hi", "-m", ""], "error: unknown model '': expected a catalog name"),
        (["run"], 'error: there is no prompt\nhint: type `treadle run "Why is the sky blue?"`'),
        (["run", "hi", "there"], "error: Got unexpected extra argument"),
    ],
)  # fmt: skip
def test_refuses_what_it_does_not_understand(arguments: list[str], err: str) -> None:
    result = treadle(*arguments)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(err)


@pytest.mark.parametrize(
    ("variables", "is_coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colour_is_for_terminals_that_want_it(variables: dict[str, str], is_coloured: bool) -> None:
    with Terminal("run", "hi", "-m", "/nowhere/x.gguf", **variables) as terminal:
        assert terminal.wait() == 1
        assert "no such file" in terminal.shown
        assert ("\x1b[" in terminal.shown) is is_coloured
    assert "\x1b[" not in treadle("run", "hi", "-m", "/nowhere/x.gguf", TERM="xterm").err
