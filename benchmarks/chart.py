"""Draws a comparison as an SVG picture: one row of bars for each work, each row on its own scale."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import Any

COLOURS = ["#0b6e4f", "#8d99ae", "#c0a36e", "#b5838d", "#6d83a8"]
LABEL_WIDTH = 190
BAR_WIDTH = 460
WIDTH = LABEL_WIDTH + BAR_WIDTH + 130
BAR_HEIGHT = 14
GAP = 14
TOP = 76


def draw_chart(report: dict[str, Any]) -> str:
    names = [name for name in report["engines"] if name != "limits"]
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    y, parts = TOP, [title(report), legend(colours)]
    for cell in report["cells"]:
        measured = [name for name in names if cell["tokens_per_second"].get(name)]
        if measured:
            parts.append(draw_cell(cell, measured, colours, y))
            y += len(measured) * (BAR_HEIGHT + 2) + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    style = "text{fill:#222}.small{font-size:11px}.bold{font-weight:600}"
    body = "\n".join(parts)
    return (
        f'{head} font-family="system-ui,sans-serif" font-size="12">\n<style>{style}</style>\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, content: str, *, css: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(content)}</text>'


def title(report: dict[str, Any]) -> str:
    machine = report["machine"]
    line = f"Tokens per second, {machine['threads']} threads, {machine['cpu']}"
    return text(12, 24, machine["model"], css="bold") + text(12, 42, line, css="small")


def legend(colours: dict[str, str]) -> str:
    parts, x = [], 12.0
    for name, colour in colours.items():
        parts.append(f'<rect x="{x:.1f}" y="52" width="10" height="10" fill="{colour}"/>')
        parts.append(text(x + 14, 61, name, css="small"))
        x += 30 + 6.5 * len(name)
    return "".join(parts)


def draw_cell(cell: dict[str, Any], names: list[str], colours: dict[str, str], y: float) -> str:
    speeds = cell["tokens_per_second"]
    scale = BAR_WIDTH / max(max(speeds[name]) for name in names)
    middle = y + len(names) * (BAR_HEIGHT + 2) / 2
    parts = [text(LABEL_WIDTH - 10, middle + 4, cell["work"], anchor="end")]
    for name in names:
        values = speeds[name]
        width, low, high = (LABEL_WIDTH + value * scale for value in (median(values), min(values), max(values)))
        centre = y + BAR_HEIGHT / 2
        parts.append(
            f'<rect x="{LABEL_WIDTH}" y="{y:.1f}" width="{width - LABEL_WIDTH:.1f}" height="{BAR_HEIGHT}" '
            f'fill="{colours[name]}"/>'
            f'<path d="M{low:.1f} {centre:.1f}H{high:.1f}" stroke="#222" stroke-width="1.5"/>'
        )
        parts.append(text(high + 6, y + 11, f"{median(values):.4g}", css="small"))
        y += BAR_HEIGHT + 2
    return "\n".join(parts)
