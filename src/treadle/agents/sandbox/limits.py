"""How much of the machine one call in a sandbox may use.

Leaves to others: who holds a call to it (``rlimits``, ``cgroups``, ``bubblewrap``, ``watch``, ``worker``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from treadle.errors import UsageError

__all__ = ["SandboxLimits"]


@dataclass(frozen=True)
class SandboxLimits:
    """What one call may use at most; every bound is on the whole tree of its processes unless it says otherwise.

    Args:
        wall_seconds: Time until the call is killed.
        cpu_seconds: CPU time of each process, and of all together where that is seen (see ``Sandbox.layers``).
        memory_bytes: Address space of each process, and memory of all together, files in ``/tmp`` included.
        num_processes: Processes and threads at a time.
        file_bytes: Size of a single file.
        tmp_bytes: Size of ``/tmp``, and of ``/dev/shm`` as well.
        num_open_files: File descriptors of each process.
        output_bytes: How much of stdout, and of stderr, is kept; what is beyond it is read, counted and dropped.
        workspace_bytes: How much the workspace may grow in one call.
        num_files: How many files a call may add to the workspace, and how many there may be in ``/tmp``.
    """

    wall_seconds: float = 30.0
    cpu_seconds: float = 20.0
    memory_bytes: int = 1 << 30
    num_processes: int = 64
    file_bytes: int = 64 << 20
    tmp_bytes: int = 64 << 20
    num_open_files: int = 256
    output_bytes: int = 32 << 10
    workspace_bytes: int = 256 << 20
    num_files: int = 20_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < 1 << 62:
                raise UsageError(f"the sandbox limit {field.name} is {value!r}, which is not above 0")
