"""Prints rows as aligned columns of plain text, equal on a terminal and in a pipe.

What the rows say is left to the commands.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.cli.console import console

__all__ = ["print_rows", "printable"]


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length with two spaces between the columns; the last column is not padded."""
    if not rows:
        return
    clean = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in clean) for column in range(len(rows[0]))]
    for row in clean:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.out("  ".join(cells).rstrip())


def printable(text: str) -> str:
    """Return text without the characters that could steer a terminal."""
    # Names come out of files that anyone may have made; escape sequences in them must not reach the terminal.
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
