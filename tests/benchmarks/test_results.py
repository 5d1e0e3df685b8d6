"""What a comparison says of its measurements: medians, paired ratios, shares of the limits, and what is missing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from chart import BAR_WIDTH, draw_chart
from results import markdown, ratio

SVG = "{http://www.w3.org/2000/svg}"


def cell(kind: str, streams: int, speeds: dict[str, list[float]], failures: dict[str, str]) -> dict[str, Any]:
    return {
        "work": f"{kind} {streams}",
        "kind": kind,
        "streams": streams,
        "context": 128,
        "tokens_per_second": speeds,
        "read_bytes_per_second": [20e9, 40e9, 20e9],
        "int8_ops_per_second": [100e9, 100e9, 200e9],
        "failures": failures,
    }


@pytest.fixture
def report() -> dict[str, Any]:
    return {
        "ours": "treadle",
        "rounds": 3,
        "rounds_wanted": 3,
        "machine": {
            "model": "a<b.gguf",
            "threads": 2,
            "cpu": "A & B",
            "system": "Linux",
            "python": "3.11",
            "model_sha256": "ab" * 32,
            "command": "python compare.py",
        },
        "engines": {
            "limits": {"version": "probe"},
            "treadle": {
                "version": "treadle 1",
                "build": "avx2",
                "decode_bytes": 100_000_000,
                "layer_weights": 100_000_000,
                "head_weights": 25_000_000,
                "peak_bytes": 2e8,
            },
            "rival": {"version": "rival 2", "build": "wheel"},
        },
        "failures": {"absent": "ModuleNotFoundError: no module"},
        "cells": [
            cell("prompt", 1, {"treadle": [400.0, 200.0, 300.0], "rival": [100.0, 50.0, 150.0]}, {}),
            cell("decode", 4, {"treadle": [400.0, 800.0, 200.0]}, {"rival": "one stream only"}),
        ],
    }


def rows(text: str) -> dict[str, list[str]]:
    lines = [[field.strip() for field in line[1:-1].split("|")] for line in text.splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in lines}


def test_the_table_has_medians_ratios_and_shares(report: dict[str, Any]) -> None:
    table = rows(markdown(report))
    assert table["tokens per second"] == ["treadle", "rival", "treadle / rival", "bandwidth", "int8 peak"]
    # Prompts: 2 * 1e8 operations per token: 80, 40, 60 GOP/s of 100, 100, 200.
    assert table["prompt of 128"] == ["300 (200-400)", "100 (50-150)", "4.00x", "", "40%"]
    # Four streams: 25 MB per token, so 10, 20, 5 GB/s of 20, 40, 20; 2 * 1.25e8 operations: 100, 200, 50 of 100, 100, 200.
    assert table["4 streams, context 128"] == ["400 (200-800)", "cannot", "", "50%", "100%"]


def test_everything_that_is_missing_is_named(report: dict[str, Any]) -> None:
    text = markdown({**report, "rounds": 1})
    assert "absent could not run: ModuleNotFoundError: no module." in text
    assert "rival cannot do 4 streams, context 128: one stream only." in text
    assert "Time was up after 1 of 3 rounds." in text


def test_a_ratio_pairs_rounds_instead_of_dividing_medians() -> None:
    drifting = cell("decode", 1, {"treadle": [10.0, 40.0, 90.0], "rival": [10.0, 20.0, 30.0]}, {})
    assert ratio(drifting, "treadle", "rival") == 2.0
    drifting["tokens_per_second"] = {"treadle": [10.0, 90.0, 40.0], "rival": [5.0, 10.0, 20.0]}
    assert ratio(drifting, "treadle", "rival") == 2.0  # 40 / 10 would say 4


def test_nothing_measured_is_a_dash(report: dict[str, Any]) -> None:
    report["cells"] = [cell("decode", 1, {}, {})]
    assert rows(markdown(report))["1 stream, context 128"] == ["-", "-", "", "", ""]


def test_the_chart_draws_a_bar_for_each_engine_that_measured(report: dict[str, Any]) -> None:
    picture = ET.fromstring(draw_chart(report))
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert "a<b.gguf" in texts
    assert {"treadle", "rival", "prompt 1", "decode 4"} <= set(texts)
    bars = [bar for bar in picture.iter(f"{SVG}rect") if bar.get("height") == "14"]
    widths = [float(bar.get("width", "0")) for bar in bars]
    # Each work has its own scale, on which its highest round fills the width.
    assert widths == pytest.approx([BAR_WIDTH * 300 / 400, BAR_WIDTH * 100 / 400, BAR_WIDTH * 400 / 800], abs=0.1)
