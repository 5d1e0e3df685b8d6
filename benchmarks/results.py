"""What a comparison's JSON file says, as Markdown: `python benchmarks/results.py report.json ...`.

compare.py prints the same; the figures are medians, with the lowest and highest round beside them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

Report = dict[str, Any]
Cell = dict[str, Any]


def markdown(report: Report) -> str:
    ours = report["ours"]
    names = [name for name in report["engines"] if name != "limits"]
    rivals = [name for name in names if name != ours]
    header = ["tokens per second", *names, *(f"{ours} / {name}" for name in rivals), "bandwidth", "int8 peak"]
    rows = [header, ["---"] * len(header)]
    for cell in report["cells"]:
        row = [work_text(cell), *(speed_text(cell, name) for name in names)]
        row += [ratio_text(cell, ours, name) for name in rivals]
        row += [share_text(share) for share in shares(report, cell, ours)]
        rows.append(row)
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return "\n\n".join([heading(report), table, notes(report)])


def heading(report: Report) -> str:
    machine = report["machine"]
    return f"**{machine['model']}**, {machine['threads']} threads, {machine['cpu']}"


def work_text(cell: Cell) -> str:
    if cell["kind"] == "prompt":
        return f"prompt of {cell['context']}"
    streams = f"{cell['streams']} stream" + "s" * (cell["streams"] > 1)
    return f"{streams}, context {cell['context']}"


def speed_text(cell: Cell, name: str) -> str:
    speeds = cell["tokens_per_second"].get(name)
    if not speeds:
        return "cannot" if name in cell["failures"] else "-"
    digits = 0 if median(speeds) >= 100 else 1
    return f"{median(speeds):.{digits}f} ({min(speeds):.{digits}f}-{max(speeds):.{digits}f})"


def ratio_text(cell: Cell, ours: str, rival: str) -> str:
    value = ratio(cell, ours, rival)
    return "" if value is None else f"{value:.2f}x"


def ratio(cell: Cell, ours: str, rival: str) -> float | None:
    """Median over the rounds of ours to theirs: both were measured within the same seconds."""
    speeds = cell["tokens_per_second"]
    pairs = list(zip(speeds.get(ours, []), speeds.get(rival, []), strict=False))
    return median(mine / theirs for mine, theirs in pairs) if pairs else None


def shares(report: Report, cell: Cell, name: str) -> tuple[float | None, float | None]:
    """Parts of the read bandwidth and of the int8 peak that an engine's weights alone account for.

    Attention is not counted, nor is the cache that it reads, so long contexts show less than they use.
    """
    facts = report["engines"].get(report["ours"], {})
    speeds = cell["tokens_per_second"].get(name)
    if not speeds or "decode_bytes" not in facts:
        return None, None
    is_decode = cell["kind"] == "decode"
    weights = facts["layer_weights"] + (facts["head_weights"] if is_decode else 0)
    bytes_per_token = facts["decode_bytes"] / cell["streams"] if is_decode else 0
    return (
        share(speeds, bytes_per_token, cell["read_bytes_per_second"]),
        share(speeds, 2 * weights, cell["int8_ops_per_second"]),
    )


def share(speeds: list[float], per_token: float, limits: list[float]) -> float | None:
    pairs = [(speed * per_token, limit) for speed, limit in zip(speeds, limits, strict=False) if limit]
    return median(used / limit for used, limit in pairs) if pairs and per_token else None


def share_text(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def notes(report: Report) -> str:
    machine, lines = report["machine"], []
    reads = [value for cell in report["cells"] for value in cell["read_bytes_per_second"]]
    peaks = [value for cell in report["cells"] for value in cell["int8_ops_per_second"]]
    if reads:
        limits = f"read bandwidth {spread(reads, 1e9)} GB/s"
        if max(peaks) > 0:
            limits += f", int8 peak {spread(peaks, 1e9)} GOP/s"
        lines.append(
            f"Limits measured in the same rounds: {limits}. The last two columns are {report['ours']}'s shares."
        )
    for name, facts in report["engines"].items():
        if name != "limits":
            peak = f"; peak memory {facts['peak_bytes'] / 1e6:.0f} MB with all caches" if "peak_bytes" in facts else ""
            lines.append(f"{name}: {facts['version']} ({facts['build'].strip(' |')}){peak}.")
    lines += [f"{name} could not run: {reason}." for name, reason in report["failures"].items()]
    lines += cell_failures(report)
    if report["rounds"] < report["rounds_wanted"]:
        lines.append(f"Time was up after {report['rounds']} of {report['rounds_wanted']} rounds.")
    lines.append(
        f"{machine['system']}, Python {machine['python']}, SHA-256 of the file {machine['model_sha256'][:16]}."
    )
    lines.append(f"Command: `{machine['command']}`")
    return "\n".join(f"- {line}" for line in lines)


def cell_failures(report: Report) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in report["cells"]:
        for name, reason in cell["failures"].items():
            if name not in report["failures"]:
                reasons.setdefault((name, reason), []).append(work_text(cell))
    return [f"{name} cannot do {'; '.join(works)}: {reason}." for (name, reason), works in reasons.items()]


def spread(values: list[float], unit: float) -> str:
    return f"{median(values) / unit:.1f} ({min(values) / unit:.1f}-{max(values) / unit:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, help="JSON file that compare.py wrote with --out")
    print("\n\n".join(markdown(json.loads(path.read_text())) for path in parser.parse_args().reports))


if __name__ == "__main__":
    main()
