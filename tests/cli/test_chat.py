"""`treadle chat` on a terminal and in a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import Terminal, plain_numbers, treadle

pytestmark = pytest.mark.model

GREEDY = ("--temperature", "0")


def test_a_conversation_on_a_terminal(smollm2_path: Path) -> None:
    with Terminal("chat", "-m", smollm2_path, *GREEDY, "-n", "4000") as terminal:
        terminal.wait_for(r"/help lists the commands\.\n> ")
        terminal.send("/stats\r")
        terminal.wait_for("there is no whole answer yet\n> ")
        terminal.send("Name the capital of Japan.\r")
        terminal.wait_for(r"The capital of Japan is Tokyo\.\n> ")
        terminal.send("/stats\r")
        assert "answer N tokens at N tok/s" in plain_numbers(terminal.wait_for("MB\n> "))
        terminal.send("/nonsense\r")
        terminal.wait_for("there is no command /nonsense; /help lists them\n> ")
        terminal.send("/help\r")
        terminal.wait_for("/system TEXT (.|\n)*> ")
        terminal.send("/exit\r")
        assert terminal.wait() == 0


def test_ctrl_c_stops_the_answer_and_at_the_prompt_leaves(smollm2_path: Path) -> None:
    with Terminal("chat", "-m", smollm2_path, *GREEDY, "-n", "4000", "--verbose") as terminal:
        terminal.wait_for("> ")
        terminal.send("Write a very long story about a dragon.\r")
        terminal.wait_for("dragon(.|\n)*dragon")
        terminal.send("\x03")
        terminal.wait_for("stopped\n> ")
        terminal.send("Name the capital of Japan.\r")
        terminal.wait_for("tok/s.*\n> ")  # not the prompt alone, which line editing may show again with the question
        terminal.send("\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown


def test_ctrl_d_leaves(smollm2_path: Path) -> None:
    with Terminal("chat", "-m", smollm2_path) as terminal:
        terminal.wait_for("> ")
        terminal.send("\x04")
        assert terminal.wait() == 0


def test_in_a_pipe_each_line_is_a_message_and_history_is_kept(smollm2_path: Path) -> None:
    question = "Name the capital of Japan."
    lines = f"{question}\r\n\r\nAnd of Italy.\n/clear\n{question}"
    result = treadle("chat", "-m", smollm2_path, *GREEDY, "-n", "16", text=lines)
    alone = treadle("chat", "-m", smollm2_path, *GREEDY, "-n", "16", text="And of Italy.\n")
    assert result.code == 0
    answer = "The capital of Japan is Tokyo.\n"
    assert result.out.startswith(answer)
    assert result.out.endswith(answer)
    assert alone.out not in result.out
    assert result.err == "the conversation is forgotten\n"


def test_a_message_too_long_for_the_context_leaves_the_conversation_as_it_was(smollm2_path: Path) -> None:
    lines = f"Name the capital of Japan.\n{'word ' * 300}\n/stats\n"
    result = treadle("chat", "-m", smollm2_path, *GREEDY, "--context", "128", text=lines)
    assert result.code == 0
    assert result.out == "The capital of Japan is Tokyo.\n"
    assert "far more than 128 tokens" in result.err
    assert "answer" in result.err


def test_a_system_message_opens_the_conversation(smollm2_path: Path) -> None:
    plain = treadle("chat", "-m", smollm2_path, *GREEDY, "-n", "24", text="Hello\n")
    pirate = treadle("chat", "-m", smollm2_path, *GREEDY, "-n", "24", "-s", "You are a pirate.", text="Hello\n")
    changed = treadle("chat", "-m", smollm2_path, *GREEDY, "-n", "24", text="/system You are a pirate.\nHello\n")
    assert plain.out != pirate.out == changed.out
