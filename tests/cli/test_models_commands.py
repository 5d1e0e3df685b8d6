import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from rich.console import Console

from local_server import FileAnswer, LocalServer, in_turn, local_server, status_answer
from patience import PATIENCE_SECONDS
from treadle.cli.console import console
from treadle.cli.main import main
from treadle.cli.pull_display import pull_display
from treadle.models.download import PullEvent
from treadle.models.sources import http

CONTENT = b"GGUF" + bytes(range(256)) * 2000
MAIN = [sys.executable, "-c", "from treadle.cli.main import main; main()"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(console, "is_quiet", False)
    return tmp_path / "home"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with local_server() as server:
        server.routes["/tiny.gguf"] = FileAnswer(CONTENT)
        yield server


@pytest.fixture
def tiny_llama(tmp_path: Path) -> Path:
    """A llama of two layers, made by the gguf package."""
    path = tmp_path / "tiny-llama.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_name("Tiny \x1b[31mLlama")
    writer.add_license("mit")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"t{index}" for index in range(32)])
    shapes = {"token_embd.weight": (32, 64), "output_norm.weight": (64,)}
    for layer in range(2):
        for name, shape in {
            "attn_norm": (64,),
            "attn_q": (64, 64),
            "attn_k": (32, 64),
            "attn_v": (32, 64),
            "attn_output": (64, 64),
            "ffn_norm": (64,),
            "ffn_gate": (96, 64),
            "ffn_up": (96, 64),
            "ffn_down": (64, 96),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32 if len(shape) == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Run:
    """One run of the command line in this process: exit code and what went to the two streams."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        self.code = end.value.code or 0
        self.out, self.err = capsys.readouterr()


def test_pull_prints_the_path_and_nothing_else(
    server: LocalServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(capsys, "pull", f"{server.url}/tiny.gguf")
    assert (run.code, run.err) == (0, "")
    assert run.out == f"{home / 'models' / 'tiny' / 'tiny.gguf'}\n"
    assert Path(run.out.strip()).read_bytes() == CONTENT


def test_pull_can_answer_in_json(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(Run(capsys, "pull", f"{server.url}/tiny.gguf", "--name", "mine", "--json").out)
    assert (facts["name"], facts["bytes"], facts["linked"]) == ("mine", len(CONTENT), False)


def test_a_pull_that_fails_explains_itself_on_stderr(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(capsys, "pull", f"{server.url}/gone.gguf")
    assert (run.code, run.out) == (1, "")
    assert run.err == f"error: {server.url}/gone.gguf: the server answered 404 Not Found\nhint: check the address\n"


def test_an_unknown_name_is_answered_with_close_ones(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(capsys, "pull", "smolm2:135m")
    assert (run.code, run.out) == (1, "")
    assert "unknown model 'smolm2:135m'" in run.err and "did you mean smollm2:135m" in run.err


def test_a_bad_home_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "file"))
    run = Run(capsys, "list")
    assert run.code == 1 and "TREADLE_HOME: expected a folder, found a file" in run.err


def test_list_of_an_empty_store_points_to_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(capsys, "list")
    assert (run.code, run.out) == (0, "")
    assert "treadle list --catalog" in run.err


def test_list_shows_pulled_linked_and_damaged_models(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    pulled = Path(Run(capsys, "pull", f"{server.url}/tiny.gguf").out.strip())
    Run(capsys, "pull", str(own))
    run = Run(capsys, "list")
    assert run.out.splitlines() == [
        "NAME  SIZE      SOURCE",
        f"own   512.0 kB  link to {own}",
        f"tiny  512.0 kB  {server.url}/tiny.gguf",
    ]
    pulled.unlink()
    assert f"({pulled} is missing)" in Run(capsys, "list").out
    facts = json.loads(Run(capsys, "list", "--json").out)
    assert [(model["name"], model["linked"], bool(model["problem"])) for model in facts] == [
        ("own", True, False),
        ("tiny", False, True),
    ]


def test_list_mentions_what_is_unfinished_and_how_to_go_on(
    server: LocalServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "FIRST_DELAY_SECONDS", 0.0)
    server.routes["/tiny.gguf"] = in_turn(FileAnswer(CONTENT, cut=1000), status_answer(403))
    Run(capsys, "pull", f"{server.url}/tiny.gguf", "--name", "mine")
    run = Run(capsys, "list", "--json")
    assert json.loads(run.out) == []
    assert f"`treadle pull {server.url}/tiny.gguf --name mine` resumes, `treadle rm mine` discards" in run.err


def test_the_catalog_is_listed_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Run(capsys, "list", "--catalog").out.splitlines()
    assert re.fullmatch(r"smollm2:135m +135M +Apache-2\.0 +SmolLM2 135M Instruct", lines[1])
    [entry] = [e for e in json.loads(Run(capsys, "list", "--catalog", "--json").out) if e["name"] == "llama3.2:1b"]
    assert entry["stored"] is False and entry["architecture"] == "llama"
    assert entry["sources"] == ["hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf"]
    assert len(lines) == len(json.loads(Run(capsys, "list", "--catalog", "--json").out)) + 1


def test_show_tells_what_is_in_a_file(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(Run(capsys, "show", str(tiny_llama), "--json").out)
    matrices = 32 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
    vectors = 5 * 64
    assert facts["parameters"] == matrices + vectors
    assert facts["quantisation"] == {
        "F16": {"tensors": 15, "bytes": 2 * matrices},
        "F32": {"tensors": 5, "bytes": 4 * vectors},
    }
    # Keys and values, two layers, two heads of 16, two bytes each.
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    assert (facts["architecture"], facts["context_length"], facts["licence"]) == ("llama", 128, "mit")
    assert (facts["tokenizer"], facts["chat_template"]) == ("gpt2 (smollm)", False)
    assert facts["bytes"] == tiny_llama.stat().st_size


def test_show_prints_one_line_per_fact_and_no_escape_sequences(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(capsys, "show", str(tiny_llama))
    assert run.code == 0 and "\x1b" not in run.out
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in run.out.splitlines())
    assert rows["name"] == "Tiny \N{REPLACEMENT CHARACTER}[31mLlama"
    assert rows["shape"] == "2 layers, hidden 64, 4 heads, 2 KV heads of 16"
    assert rows["KV cache"] == "256 bytes per token"
    assert rows["chat template"] == "no"


def test_show_of_a_stored_name_adds_source_and_checksum(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run(capsys, "pull", str(tiny_llama), "--name", "mine")
    out = Run(capsys, "show", "mine").out
    assert re.search(rf"^source +{re.escape(str(tiny_llama))}$", out, re.MULTILINE)
    assert re.search(r"^SHA-256 +[0-9a-f]{64}  tiny-llama\.gguf$", out, re.MULTILINE)


def test_show_never_pulls(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(capsys, "show", "smollm2:135m")
    assert (run.code, run.out) == (1, "")
    assert "type `treadle pull smollm2:135m`" in run.err


def test_show_of_a_broken_file_is_an_error_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.gguf").write_bytes(CONTENT)
    run = Run(capsys, "show", str(tmp_path / "broken.gguf"))
    assert (run.code, run.out) == (1, "")
    assert "broken.gguf" in run.err


def test_rm_without_a_terminal_wants_yes(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    Run(capsys, "pull", f"{server.url}/tiny.gguf")
    done = subprocess.run([*MAIN, "rm", "tiny"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("there is no terminal to ask on\nhint: type `treadle rm tiny --yes`\n")
    run = Run(capsys, "rm", "tiny", "--yes")
    assert (run.code, run.out) == (0, "")
    assert re.fullmatch(r"removed tiny, 512\.\d kB set free\n", run.err)
    assert Run(capsys, "list").out == ""


def test_rm_of_nothing_is_an_error_even_with_yes(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(capsys, "rm", "nothing", "--yes")
    assert run.code == 1 and "no stored model is named 'nothing'" in run.err


def on_a_terminal(*arguments: str, typed: str = "") -> tuple[int, str]:
    """Run a command with a terminal on stdin and stderr; returns the exit code and what the terminal showed."""
    keyboard, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [*MAIN, *arguments], stdin=terminal, stdout=subprocess.DEVNULL, stderr=terminal, env=environment
    )
    os.close(terminal)
    os.write(keyboard, typed.encode())
    shown = b""
    try:
        while chunk := os.read(keyboard, 4096):
            shown += chunk
    except OSError:  # how Linux says that the other end of a terminal is closed
        pass
    os.close(keyboard)
    return process.wait(timeout=PATIENCE_SECONDS), shown.decode()


def test_rm_asks_on_a_terminal(server: LocalServer, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run(capsys, "pull", f"{server.url}/tiny.gguf")
    code, shown = on_a_terminal("rm", "tiny", typed="n\n")
    assert code == 1 and "Delete tiny (512.0 kB)?" in shown
    assert (home / "models" / "tiny").exists()
    code, shown = on_a_terminal("rm", "tiny", typed="y\n")
    assert code == 0 and "removed tiny" in shown
    assert not (home / "models" / "tiny").exists()


def test_pull_shows_a_bar_on_a_terminal(server: LocalServer) -> None:
    code, shown = on_a_terminal("pull", f"{server.url}/tiny.gguf")
    assert code == 0
    assert "fetching tiny.gguf" in shown and "tiny: 512.0 kB" in shown


def test_quiet_silences_the_terminal_too(server: LocalServer) -> None:
    assert on_a_terminal("pull", f"{server.url}/tiny.gguf", "--quiet") == (0, "")


def test_in_a_pipe_only_waits_and_changes_of_source_are_told() -> None:
    stream = io.StringIO()
    with pull_display(console=Console(file=stream)) as show:
        show(PullEvent("download", "m", "m.gguf", 1, 2))
        show(PullEvent("verify", "m", "m.gguf", 2, 2))
        assert stream.getvalue() == ""
        show(PullEvent("wait", "m"))
        show(PullEvent("fallback", "m", reason="[b]gone[/b]; next source: other"))
    assert stream.getvalue() == ("m: another process is pulling it; waiting\nm: [b]gone[/b]; next source: other\n")
