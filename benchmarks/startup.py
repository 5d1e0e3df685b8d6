"""Times a cold process: from the start of `treadle run` to the first byte of its answer, file in the page cache."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from engines import add_common_arguments, describe_machine, write_report


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--command", default=str(Path(sys.executable).with_name("treadle")))
    return parser.parse_args()


def first_byte(arguments: argparse.Namespace) -> tuple[float, int]:
    """Seconds to the first byte of the answer, and the peak resident bytes of the whole run."""
    command = [arguments.command, "run", "Hello", "-m", str(arguments.model), "--max-tokens", "8", "--quiet"]
    command += ["--threads", str(arguments.threads), "--temperature", "0"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    byte = os.read(process.stdout.fileno(), 1)
    seconds = time.perf_counter() - start
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if not byte or process.returncode:
        sys.exit(f"{' '.join(command)} ended with status {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


def main() -> None:
    arguments = parse_arguments()
    with arguments.model.open("rb") as file:  # into the page cache
        while file.read(1 << 24):
            pass
    first_byte(arguments)  # compiles the Python files
    runs = [first_byte(arguments) for _ in range(arguments.rounds)]
    seconds = [run[0] for run in runs]
    report = {
        "machine": describe_machine(arguments),
        "seconds_to_first_byte": seconds,
        "peak_bytes": [run[1] for run in runs],
    }
    write_report(arguments, report)
    peak = max(run[1] for run in runs)
    print(f"first byte after {median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f} s, {len(runs)} runs)")
    print(f"peak resident memory {peak / 1e6:.0f} MB, {peak / Path(arguments.model).stat().st_size:.2f}x the file")


if __name__ == "__main__":
    main()
