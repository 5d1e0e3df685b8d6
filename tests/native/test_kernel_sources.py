"""Kernel sources of an instruction set stay self-contained.

An inline function of a shared header or of the standard library is compiled once per object, and the linker keeps any one
copy: with the flags of AVX-512, say, for callers that run before any cpuid check. So these sources may include intrinsics,
the kernel contract and C headers only, and give external linkage to nothing but the entry points of their table.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "native/kernels"
ISA_FOLDERS = sorted(path for path in KERNELS.iterdir() if path.is_dir() and path.name != "ref")
ALLOWED = {"arm_neon.h", "immintrin.h", "stddef.h", "stdint.h", "string.h", "formats.h", "treadle/kernels.h"}

# What has the instructions of the first has those of the second: its headers and entry points may be used. Everything in
# those headers has internal linkage, so each object has a copy of its own.
BUILDS_ON = {"avx2_vnni": "avx2", "neon_i8mm": "neon_dotprod"}

every_folder = pytest.mark.parametrize("folder", ISA_FOLDERS, ids=lambda path: path.name)


def test_there_are_instruction_sets() -> None:
    assert {folder.name for folder in ISA_FOLDERS} >= {"avx2", "avx2_vnni", "avx512_vnni", "neon_dotprod", "neon_i8mm"}


@every_folder
def test_includes_are_self_contained(folder: Path) -> None:
    own = {path.name for path in folder.glob("*.h")}
    if base := BUILDS_ON.get(folder.name):
        own |= {f"{base}/{path.name}" for path in (KERNELS / base).glob("*.h")}
    for source in sorted(folder.iterdir()):
        included = re.findall(r'#include [<"]([^>"]+)[>"]', source.read_text())
        assert set(included) <= ALLOWED | own, f"{source.relative_to(KERNELS)} includes more than kernels may"


@every_folder
def test_only_entry_points_have_external_linkage(folder: Path) -> None:
    """Between the end of the unnamed namespace and the end of the file only entry points may be defined."""
    entries = set(re.findall(r"^void (\w+)\(", (folder / "entries.h").read_text(), re.MULTILINE))
    for source in sorted({*folder.glob("*.cpp"), *folder.glob("*.h")} - {folder / "entries.h", folder / "table.cpp"}):
        text = source.read_text()
        assert text.count("\nnamespace {\n") == text.count("\n}  // namespace\n") == 1, source.name
        outside = text[: text.index("\nnamespace {\n")] + text[text.index("\n}  // namespace\n") :]
        functions = re.findall(r"^[A-Za-z_][\w:<>*& ]* \**(\w+)\(", outside, re.MULTILINE)
        assert set(functions) <= entries, source.name
