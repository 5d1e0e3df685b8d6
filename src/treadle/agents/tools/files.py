"""The tools that list, read, write, edit and search the files of a workspace.

Leaves to others: reaching the files safely (``workspace``) and searching them (``search_work``).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from treadle.agents.gate import ToolGate
from treadle.agents.tool import ToolResult, ToolSpec
from treadle.agents.tools.child import ChildLimits, run_child
from treadle.agents.tools.local_tool import LocalTool, in_thread, parameters
from treadle.agents.tools.search_work import SKIPPED_FOLDERS
from treadle.agents.tools.text import MAX_RESULT_CHARS, TextForm, decode, head, size_text
from treadle.agents.tools.workspace import Entry, Workspace
from treadle.errors import ToolError

__all__ = ["file_tools"]

_MAX_READ_BYTES, _MAX_WRITE_BYTES = 16 << 20, 1 << 20
_MAX_LISTED = 200
_MAX_PATTERN_CHARS = 1000
_MAX_SHOWN_WHOLE = 1500
_PATH = {"type": "string", "description": "Path of the file, relative to the workspace."}
_FOLDER = {"type": "string", "description": "Folder relative to the workspace; by default all of it.", "default": "."}
_SEARCH_WORK = "treadle.agents.tools.search_work"


def file_tools(
    workspace: Workspace, *, is_writable: bool = True, gate: ToolGate | None = None, limits: ChildLimits | None = None
) -> list[LocalTool]:
    """Return the file tools of a workspace, which the caller closes when they are no longer used.

    Args:
        workspace: The folder.
        is_writable: Whether to have ``write_file`` and ``edit_file``, too.
        gate: What a search passes before it starts.
        limits: What a search may take.
    """
    files = _Files(workspace, gate, limits)
    reading = [LocalTool(_LIST, in_thread(files.show_folder)), LocalTool(_READ, in_thread(files.read))]
    writing = [LocalTool(_WRITE, in_thread(files.write)), LocalTool(_EDIT, in_thread(files.edit))]
    return [*reading, LocalTool(_SEARCH, files.search), *(writing if is_writable else [])]


_LIST = ToolSpec(
    "list_files",
    "List the files and folders of the workspace, or of one of its folders, with their sizes.",
    parameters({}, {"folder": _FOLDER}),
    is_read_only=True,
)
_READ = ToolSpec(
    "read_file",
    "Read a text file of the workspace. A long file is cut and says from which line to go on.",
    parameters(
        {"path": _PATH},
        {
            # No last line: small models that are offered one ask for the first line alone.
            "first_line": {"type": "integer", "minimum": 1, "default": 1, "description": "Where to go on reading."},
        },
    ),
    is_read_only=True,
)
_WRITE = ToolSpec(
    "write_file",
    "Write a whole text file of the workspace. What was in it before is replaced.",
    parameters({"path": _PATH, "content": {"type": "string", "description": "All that is to be in the file."}}),
)
_EDIT = ToolSpec(
    "edit_file",
    "Replace a piece of a text file. The old text must occur in the file exactly once, with the same spaces.",
    parameters(
        {
            "path": _PATH,
            "old_text": {"type": "string", "minLength": 1, "description": "The text to replace, as it is in the file."},
            "new_text": {"type": "string", "description": "The text to put in its place."},
        }
    ),
)
_SEARCH = ToolSpec(
    "search_files",
    "Find the lines of text files that have a text in them; upper and lower case are the same.",
    parameters(
        {"text": {"type": "string", "minLength": 1, "description": "What to find."}},
        {
            "folder": _FOLDER,
            "files": {"type": "string", "default": "*", "description": "Names of files to search, such as '*.py'."},
            "regex": {"type": "boolean", "default": False, "description": "Whether text is a regular expression."},
        },
    ),
    is_read_only=True,
)


class _Files:
    """The work of the tools."""

    def __init__(self, workspace: Workspace, gate: ToolGate | None, limits: ChildLimits | None) -> None:
        self._workspace = workspace
        self._gate = gate
        self._limits = limits

    def show_folder(self, arguments: Mapping[str, Any]) -> str:
        folder = self._workspace.names_of(arguments.get("folder", "."))
        found: list[Entry] = []
        is_cut = False
        for entry in self._workspace.walk(folder, SKIPPED_FOLDERS):
            if len(found) == _MAX_LISTED:
                is_cut = True
                break
            found.append(entry)
        lines = [_listed(entry) for entry in sorted(found, key=lambda entry: entry.names)]
        if is_cut:
            lines.append(f"[cut: the {_MAX_LISTED} nearest; list one folder to see all of it]")
        return head("\n".join(lines) or "nothing is there yet")

    def read(self, arguments: Mapping[str, Any]) -> str:
        name, text, _ = self._text(arguments["path"])
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        first = arguments.get("first_line", 1)
        if not lines:
            return f"{name} is empty"
        if first > len(lines):
            raise ToolError(f"{name} has no line {first}; its last is {len(lines)}")
        return _part(name, lines, first)

    def write(self, arguments: Mapping[str, Any]) -> str:
        names = self._workspace.names_of(arguments["path"])
        content = _fitting(self._form(names).encode(arguments["content"]))
        is_new = self._workspace.replace(names, content)
        return f"wrote {'/'.join(names)}: {size_text(len(content))}, {'a new file' if is_new else 'replaced'}"

    def edit(self, arguments: Mapping[str, Any]) -> str:
        name, text, form = self._text(arguments["path"])
        old, new = arguments["old_text"], arguments["new_text"]
        if form.has_crlf:
            old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
        num_found = text.count(old)
        if num_found == 0:
            raise ToolError(f"{name} does not have the old text in it; nothing was changed{_nearest(text, old)}")
        if num_found > 1:
            raise ToolError(
                f"{name} has the old text {num_found} times, {_line_numbers(text, old)}; nothing was changed. "
                "Give more of the lines around the one that is meant"
            )
        self._workspace.replace(self._workspace.names_of(name), _fitting(form.encode(text.replace(old, new))))
        line = text.count("\n", 0, text.index(old)) + 1
        return f"replaced the old text in {name}, line {line}"

    async def search(self, arguments: Mapping[str, Any]) -> ToolResult:
        text = arguments["text"]
        if len(text) > _MAX_PATTERN_CHARS:
            raise ToolError(f"a text to find has at most {_MAX_PATTERN_CHARS} characters, not {len(text)}")
        request = {
            "root": str(self._workspace.root),
            "fd": self._workspace.fd,
            "text": text,
            "regex": arguments.get("regex", False),
            "folder": arguments.get("folder", "."),
            "files": arguments.get("files", "*"),
        }
        fds, gate, limits = [self._workspace.fd], self._gate, self._limits
        found = await run_child(_SEARCH_WORK, request, name=_SEARCH.name, fds=fds, gate=gate, limits=limits)
        return ToolResult(head(found.text))

    def _text(self, path: str) -> tuple[str, str, TextForm]:
        names = self._workspace.names_of(path)
        name = "/".join(names)
        return (name, *decode(self._workspace.read(names, _MAX_READ_BYTES), name))

    def _form(self, names: tuple[str, ...]) -> TextForm:
        """Return how a file that is to be replaced keeps its text; a new one, or no text, is plain UTF-8."""
        try:
            form = decode(self._workspace.read(names, _MAX_READ_BYTES), "")[1]
        except ToolError:
            return TextForm()
        # Latin-1 is a guess that bytes fit into; what replaces all of them may as well be UTF-8.
        return TextForm() if form.encoding == "latin-1" else form


def _listed(entry: Entry) -> str:
    if entry.is_folder:
        return f"{entry.path}/"
    return f"{entry.path}  {size_text(entry.num_bytes) if entry.is_file else 'no regular file'}"


def _part(name: str, lines: list[str], first: int) -> str:
    """Return lines below a title that says which they are; as many of them as one answer may have."""
    shown: list[str] = []
    num_chars = 0
    for line in lines[first - 1 :]:
        num_chars += len(line) + 1
        if num_chars > MAX_RESULT_CHARS:
            break
        shown.append(line)
    if not shown:
        line = lines[first - 1]
        shown = [f"{line[:MAX_RESULT_CHARS]}\n[cut: line {first} has {len(line):,} characters]"]
    end = first + len(shown) - 1
    num_left = len(lines) - end
    rest = f"\n[cut: {num_left} more lines; read on with first_line {end + 1}]" if num_left else ""
    part = "" if first == 1 and end == len(lines) else f", lines {first} to {end} of {len(lines)}"
    return f"{name}{part}:\n" + "\n".join(shown) + rest


def _fitting(content: bytes) -> bytes:
    if len(content) > _MAX_WRITE_BYTES:
        raise ToolError(f"a file may get at most {size_text(_MAX_WRITE_BYTES)}, not {size_text(len(content))}")
    return content


def _line_numbers(text: str, old: str) -> str:
    starts: list[str] = []
    at = text.find(old)
    while at >= 0 and len(starts) < 5:
        starts.append(str(text.count("\n", 0, at) + 1))
        at = text.find(old, at + len(old))
    return f"first in lines {', '.join(starts)}"


def _nearest(text: str, old: str) -> str:
    """Show what a file has instead of a text: all of a short one, else the line that is most like the first one."""
    if len(text) <= _MAX_SHOWN_WHOLE:
        return f". What it has is:\n{text}" if text else "; it is empty"
    wanted = next((line for line in old.split("\n") if line.strip()), "")
    lines = text.split("\n")[:2000]
    alike = difflib.get_close_matches(wanted.strip()[:200], [line.strip()[:200] for line in lines], 1, cutoff=0.6)
    if not alike:
        return ""
    found = next(line for line in lines if line.strip()[:200] == alike[0])
    return f". The nearest line that it has is:\n{found[:200]}"
