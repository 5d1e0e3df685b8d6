"""The file tools: what a model is shown, and that nothing outside of the workspace is ever reached."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tool_calls import call, refusal

from treadle.agents.tools.child import ChildLimits
from treadle.agents.tools.files import file_tools
from treadle.agents.tools.local_tool import LocalTool
from treadle.agents.tools.workspace import Workspace
from treadle.errors import UsageError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("outside")
    (root / "notes.txt").write_text("one\ntwo\nthree\n")
    return root


@pytest.fixture
def workspace(root: Path) -> Iterator[Workspace]:
    workspace = Workspace(root)
    yield workspace
    workspace.close()
    workspace.close()


@pytest.fixture
def tools(workspace: Workspace) -> list[LocalTool]:
    return file_tools(workspace)


def test_lists_the_tree_with_sizes(root: Path, tools: list[LocalTool]) -> None:
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "deep" / "a.py").write_text("x" * 12_345)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("")
    assert call(tools, "list_files").split("\n") == [
        ".git/",
        "notes.txt  14 bytes",
        "src/",
        "src/deep/",
        "src/deep/a.py  12.3 kB",
    ]
    assert call(tools, "list_files", folder="src/deep") == "src/deep/a.py  12.3 kB"
    assert call(tools, "list_files", folder=".git") == ".git/config  0 bytes"


def test_lists_the_nearest_first_when_there_is_too_much(root: Path, tools: list[LocalTool]) -> None:
    (root / "many").mkdir()
    for number in range(300):
        (root / "many" / f"{number}").touch()
    shown = call(tools, "list_files").split("\n")
    assert "notes.txt  14 bytes" in shown
    assert len(shown) == 201
    assert shown[-1].startswith("[cut: the 200 nearest")


def test_an_empty_folder_says_so(root: Path, tools: list[LocalTool]) -> None:
    (root / "empty").mkdir()
    assert call(tools, "list_files", folder="empty") == "nothing is there yet"


def test_names_that_could_forge_a_line_are_escaped(root: Path, tools: list[LocalTool]) -> None:
    (root / "a\nb\x1b[2J").touch()
    (root / os.fsdecode(b"broken\xff")).touch()
    shown = call(tools, "list_files")
    assert "a\\nb\\x1b[2J  0 bytes" in shown
    assert "broken\\udcff  0 bytes" in shown
    shown.encode("utf-8")


def test_reads_lines(tools: list[LocalTool]) -> None:
    assert call(tools, "read_file", path="notes.txt") == "notes.txt:\none\ntwo\nthree"
    assert call(tools, "read_file", path="notes.txt", first_line=3) == "notes.txt, lines 3 to 3 of 3:\nthree"
    assert "no line 4; its last is 3" in refusal(tools, "read_file", path="notes.txt", first_line=4)


def test_long_files_are_cut_at_a_line_and_say_how_to_read_on(root: Path, tools: list[LocalTool]) -> None:
    (root / "long").write_text("".join(f"line {number}\n" for number in range(1, 5001)))
    shown = call(tools, "read_file", path="long")
    assert len(shown) < 8200
    last = shown.split("\n")[-2]
    number = int(last.removeprefix("line "))
    assert shown.endswith(f"[cut: {5000 - number} more lines; read on with first_line {number + 1}]")
    assert call(tools, "read_file", path="long", first_line=number + 1).split("\n")[1] == f"line {number + 1}"


def test_a_line_that_is_too_long_is_cut(root: Path, tools: list[LocalTool]) -> None:
    (root / "line").write_text("x" * 5_000_000)
    shown = call(tools, "read_file", path="line")
    assert len(shown) < 8200
    assert "[cut: line 1 has 5,000,000 characters]" in shown


@pytest.mark.parametrize("path", ["/workspace/notes.txt", "./notes.txt", "{root}/notes.txt", ".//notes.txt"])
def test_a_path_may_name_the_workspace(root: Path, tools: list[LocalTool], path: str) -> None:
    assert "two" in call(tools, "read_file", path=path.format(root=root))


OUTSIDE = [
    "../secret.txt",
    "/etc/passwd",
    "x/../../secret.txt",
    "/workspace/../secret.txt",
    "link",
    "folder/secret.txt",
    "{root}/../secret.txt",
    "/workspaces/x",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_is_reached(root: Path, tools: list[LocalTool], path: str) -> None:
    (root / "link").symlink_to("../secret.txt")
    (root / "folder").symlink_to("..")
    path = path.format(root=root)
    for name, more in [
        ("read_file", {}),
        ("write_file", {"content": "changed"}),
        ("edit_file", {"old_text": "outside", "new_text": "changed"}),
    ]:
        text = refusal(tools, name, path=path, **more)
        assert "outside\n" not in text
    assert (root.parent / "secret.txt").read_text() == "outside"
    assert sorted(each.name for each in root.parent.iterdir()) == ["secret.txt", "work"]
    assert "secret" not in refusal(tools, "list_files", folder="folder").removeprefix("folder/secret.txt")
    assert "outside" not in call(tools, "search_files", text="side")


def test_other_things_than_files_are_refused_without_waiting(root: Path, tools: list[LocalTool]) -> None:
    os.mkfifo(root / "pipe")
    assert "no regular file" in refusal(tools, "read_file", path="pipe")
    assert "no regular file" in refusal(tools, "write_file", path="pipe", content="")
    assert "is a folder" in refusal(tools, "read_file", path=".")
    (root / "folder").mkdir()
    assert "is a folder" in refusal(tools, "write_file", path="folder", content="")
    assert "no folder" in refusal(tools, "read_file", path="notes.txt/x")
    assert "pipe  no regular file" in call(tools, "list_files")


def test_binary_is_told_apart_from_text(root: Path, tools: list[LocalTool]) -> None:
    (root / "image").write_bytes(b"\x89PNG\0\0")
    assert refusal(tools, "read_file", path="image") == "image is no text but binary, 6 bytes"
    assert "binary" in refusal(tools, "edit_file", path="image", old_text="P", new_text="J")


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "x/" * 2000, "new\nline", ""])
def test_hostile_names_are_refused(tools: list[LocalTool], path: str) -> None:
    assert len(refusal(tools, "write_file", path=path, content="")) < 300


def test_a_missing_file_is_answered_with_what_there_is(root: Path, tools: list[LocalTool]) -> None:
    (root / "src").mkdir()
    text = refusal(tools, "read_file", path="note.txt")
    assert text == "note.txt is not there; in the workspace there is notes.txt, src/"
    assert refusal(tools, "read_file", path="src/x") == "src/x is not there; src is empty"
    text = refusal(tools, "read_file", path="data/deep/notes.txt")
    assert text == "data/deep/notes.txt is not there; in the workspace there is notes.txt, src/"


def test_writes_whole_files_at_once_and_makes_folders(root: Path, tools: list[LocalTool]) -> None:
    assert call(tools, "write_file", path="a/b/c.txt", content="hé\n") == "wrote a/b/c.txt: 4 bytes, a new file"
    assert (root / "a" / "b" / "c.txt").read_text() == "hé\n"
    (root / "notes.txt").chmod(0o640)
    assert call(tools, "write_file", path="notes.txt", content="") == "wrote notes.txt: 0 bytes, replaced"
    assert stat.S_IMODE((root / "notes.txt").stat().st_mode) == 0o640
    assert sorted(each.name for each in root.iterdir()) == ["a", "notes.txt"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    root: Path, tools: list[LocalTool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refusal(tools, "write_file", path="notes.txt", content="new")
    assert [each.name for each in root.iterdir()] == ["notes.txt"]
    assert (root / "notes.txt").read_text() == "one\ntwo\nthree\n"


def test_a_link_put_in_the_place_of_a_file_meanwhile_is_replaced_and_not_followed(
    root: Path, tools: list[LocalTool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap(fd: int) -> None:
        (root / "notes.txt").unlink()
        (root / "notes.txt").symlink_to("../secret.txt")

    monkeypatch.setattr(os, "fsync", swap)
    call(tools, "write_file", path="notes.txt", content="new")
    assert not (root / "notes.txt").is_symlink()
    assert (root.parent / "secret.txt").read_text() == "outside"


def test_too_much_is_not_written(root: Path, tools: list[LocalTool]) -> None:
    assert "at most 1.0 MB" in refusal(tools, "write_file", path="big", content="x" * (2 << 20))
    assert not (root / "big").exists()


def test_too_long_a_file_is_not_read(root: Path, tools: list[LocalTool]) -> None:
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert "too long" in refusal(tools, "read_file", path="huge")


def test_edits_what_is_there_once(root: Path, tools: list[LocalTool]) -> None:
    assert (
        call(tools, "edit_file", path="notes.txt", old_text="two\n", new_text="2\n")
        == "replaced the old text in notes.txt, line 2"
    )
    assert (root / "notes.txt").read_text() == "one\n2\nthree\n"
    text = refusal(tools, "edit_file", path="notes.txt", old_text="  three ", new_text="")
    assert text.endswith("nothing was changed. What it has is:\none\n2\nthree\n")
    (root / "long.py").write_text("x = 1\n" * 400 + "    three = 3\n")
    text = refusal(tools, "edit_file", path="long.py", old_text="three  = 3\n", new_text="")
    assert text.endswith("nothing was changed. The nearest line that it has is:\n    three = 3")


def test_an_edit_that_fits_several_places_changes_nothing(root: Path, tools: list[LocalTool]) -> None:
    (root / "twice").write_text("a\nb\na\n")
    assert "2 times, first in lines 1, 3; nothing was changed" in refusal(
        tools, "edit_file", path="twice", old_text="a\n", new_text="c\n"
    )
    assert (root / "twice").read_text() == "a\nb\na\n"


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffé = 1\r\nx\r\n".encode(),
        "é = 1\nx".encode("latin-1"),
        "\ufeffé = 1\n".encode("utf-16-le"),
        "é = 1\r\nmixed\n".encode(),
    ],
    ids=["utf-8 with mark and CR LF", "latin-1", "utf-16", "mixed line ends"],
)
def test_an_edit_keeps_all_other_bytes(root: Path, tools: list[LocalTool], content: bytes) -> None:
    (root / "file").write_bytes(content)
    call(tools, "edit_file", path="file", old_text="é = 1", new_text="ü = 2")
    encoding = "utf-16-le" if content.startswith(b"\xff\xfe") else "latin-1" if b"\xc3" not in content else "utf-8"
    assert (root / "file").read_bytes() == content.decode(encoding).replace("é = 1", "ü = 2").encode(encoding)


def test_lines_of_a_dos_file_are_matched_and_written_as_such(root: Path, tools: list[LocalTool]) -> None:
    (root / "dos.txt").write_bytes(b"a\r\nb\r\nc\r\n")
    call(tools, "edit_file", path="dos.txt", old_text="a\nb", new_text="x\ny\nz")
    assert (root / "dos.txt").read_bytes() == b"x\r\ny\r\nz\r\nc\r\n"
    call(tools, "write_file", path="dos.txt", content="1\n2\n")
    assert (root / "dos.txt").read_bytes() == b"1\r\n2\r\n"


def test_a_character_that_the_encoding_lacks_is_refused(root: Path, tools: list[LocalTool]) -> None:
    (root / "old.txt").write_bytes("é".encode("latin-1"))
    assert "latin-1, which has no '€'" in refusal(tools, "edit_file", path="old.txt", old_text="é", new_text="€")


def test_reading_alone_offers_no_writing(workspace: Workspace) -> None:
    tools = file_tools(workspace, is_writable=False)
    assert [tool.spec.name for tool in tools] == ["list_files", "read_file", "search_files"]
    assert all(tool.spec.is_read_only for tool in tools)


def test_searches_text_and_patterns(root: Path, tools: list[LocalTool]) -> None:
    (root / "src").mkdir()
    (root / "src" / "a.py").write_text("import os\n# TWO (2)\n")
    (root / "blob").write_bytes(b"two\0")
    assert call(tools, "search_files", text="two").split("\n") == [
        "notes.txt:2: two",
        "src/a.py:2: # TWO (2)",
        "[not searched, as binary or too long: blob]",
    ]
    assert call(tools, "search_files", text="(2)", folder="src") == "src/a.py:2: # TWO (2)"
    assert (
        call(tools, "search_files", text="^t\\w+$", regex=True, files="*.txt") == "notes.txt:2: two\nnotes.txt:3: three"
    )
    assert call(tools, "search_files", text="one", folder="notes.txt") == "notes.txt:1: one"
    assert call(tools, "search_files", text="nowhere", files="*.py") == "no line matches in 1 text file"
    assert "is not there" in refusal(tools, "search_files", text="x", folder="none")
    assert "no regular expression" in refusal(tools, "search_files", text="(", regex=True)


def test_long_lines_and_many_matches_are_cut(root: Path, tools: list[LocalTool]) -> None:
    (root / "wide").write_text("-" * 10_000 + "needle" + "-" * 10_000 + "\n")
    shown = call(tools, "search_files", text="needle")
    assert "needle" in shown
    assert len(shown) < 300
    (root / "many").write_text("needle\n" * 1000)
    shown = call(tools, "search_files", text="needle")
    assert shown.count("needle") == 60
    assert "[cut: there is more" in shown


def test_a_pattern_that_never_ends_is_stopped(root: Path, workspace: Workspace) -> None:
    (root / "bait").write_text("a" * 64 + "!")
    tools = file_tools(workspace, limits=ChildLimits(cpu_seconds=1))
    assert "search_files took more than 1 s of CPU time" in refusal(tools, "search_files", text="(a+)+$", regex=True)


def test_the_workspace_must_be_a_folder(root: Path) -> None:
    with pytest.raises(UsageError, match="no folder to work in"):
        Workspace(root / "notes.txt")
