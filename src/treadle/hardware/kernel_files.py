"""Reads the small text files of procfs, sysfs and cgroupfs; what they mean is for the modules that ask.

A file that is missing, unreadable or garbled reads as None: such a file never stops the program, it only leaves a
question open, and the asking module says in its reason what it did not know.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "parse_cpu_list",
    "parse_integer",
    "read_chosen",
    "read_cpu_list",
    "read_fields",
    "read_integer",
    "read_size",
    "read_text",
]

MAX_CPUS = 1 << 16  # far above any kernel's limit; a garbled range must not fill the memory


def read_text(path: Path) -> str | None:
    """The stripped text of a file, None when it cannot be read or is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except (OSError, ValueError):
        return None


def read_integer(path: Path) -> int | None:
    """The number a file consists of."""
    return parse_integer(read_text(path) or "")


def read_cpu_list(path: Path) -> frozenset[int] | None:
    """The CPU numbers of a file in the kernel's list format, such as ``0-3,8``."""
    text = read_text(path)
    return None if text is None else parse_cpu_list(text)


def read_size(path: Path) -> int | None:
    """The bytes of a file such as ``32K``."""
    text = read_text(path) or ""
    number = parse_integer(text.rstrip("KMG"))
    unit = text[-1:]
    return None if number is None or number < 0 else number * 1024 ** " KMG".index(unit if unit in "KMG" else " ")


def read_chosen(path: Path) -> str | None:
    """The word in brackets of a file such as ``always [madvise] never``."""
    words = (read_text(path) or "").split()
    return next((word[1:-1] for word in words if word.startswith("[") and word.endswith("]")), None)


def read_fields(path: Path) -> dict[str, str]:
    """The lines of a file such as meminfo or memory.stat, as first word (without a colon) to the rest."""
    lines = (line.split(maxsplit=1) for line in (read_text(path) or "").splitlines())
    return {words[0].rstrip(":"): words[1].strip() for words in lines if len(words) == 2}


def parse_integer(text: str) -> int | None:
    """A decimal number with an optional sign; None for anything else."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None


def parse_cpu_list(text: str) -> frozenset[int] | None:
    """CPU numbers from the kernel's list format; None when the text is not one."""
    cpus: set[int] = set()
    for part in text.split(","):
        first_text, _, last_text = part.strip().partition("-")
        first = parse_integer(first_text)
        last = parse_integer(last_text) if last_text else first
        if first is None or last is None or not 0 <= first <= last < MAX_CPUS:
            return None
        cpus.update(range(first, last + 1))
    return frozenset(cpus)
