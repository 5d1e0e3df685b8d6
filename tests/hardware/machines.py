"""Files of imaginary machines, as the kernel words them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

FakeRoot = Callable[[Mapping[str, str]], Path]  # writes the files and returns the root that holds them

V2_MOUNT = "25 1 0:26 {group} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "3{number} 25 0:3{number} {group} /sys/fs/cgroup/{folder} rw,relatime - cgroup cgroup rw,{controllers}\n"
OTHER_MOUNT = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"


def cpus(num_cpus: int, *, threads_per_core: int = 1, split: bool = False) -> dict[str, str]:
    """sysfs for a machine; ``split`` numbers the second threads after all first ones, as most PC firmware does."""
    num_cores = num_cpus // threads_per_core
    files = {"sys/devices/system/cpu/online": f"0-{num_cpus - 1}\n"}
    for cpu in range(num_cpus):
        if split:
            siblings = [cpu % num_cores + num_cores * thread for thread in range(threads_per_core)]
        else:
            first = cpu - cpu % threads_per_core
            siblings = list(range(first, first + threads_per_core))
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{topology}/thread_siblings_list"] = ",".join(map(str, siblings)) + "\n"
    return files


def v2(path: str, *, group: str = "/") -> dict[str, str]:
    """A process in ``path`` of a version 2 hierarchy of which ``group`` is mounted."""
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": OTHER_MOUNT + V2_MOUNT.format(group=group),
    }


def v1(path: str, *, group: str = "/") -> dict[str, str]:
    """The same with version 1 controllers, and a version 2 hierarchy without any, as hybrid systems have it."""
    folders = {"cpu,cpuacct": "cpu,cpuacct", "cpuset": "cpuset", "memory": "memory", "systemd": "name=systemd"}
    mounts = [
        V1_MOUNT.format(number=number, group=group, folder=folder, controllers=controllers)
        for number, (folder, controllers) in enumerate(folders.items())
    ]
    unified = "40 25 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    return {
        "proc/self/cgroup": f"5:memory:{path}\n4:cpu,cpuacct:{path}\n3:cpuset:{path}\n1:name=systemd:{path}\n0::{path}\n",
        "proc/self/mountinfo": OTHER_MOUNT + "".join(mounts) + unified,
    }


def two_sockets(cores_per_socket: int, *, distance: int = 21) -> dict[str, str]:
    """Two sockets with hyper-threads, CPUs numbered in turn as some firmware does: even ones on node 0, odd on node 1."""
    num_cores = 2 * cores_per_socket
    files = {
        "sys/devices/system/cpu/online": f"0-{2 * num_cores - 1}\n",
        "sys/devices/system/node/online": "0-1\n",
        "proc/self/status": f"Cpus_allowed_list:\t0-{2 * num_cores - 1}\nMems_allowed_list:\t0-1\n",
    }
    for cpu in range(2 * num_cores):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{topology}/core_cpus_list"] = f"{cpu % num_cores},{cpu % num_cores + num_cores}\n"
        files[f"{topology}/physical_package_id"] = f"{cpu % 2}\n"
    for node in range(2):
        folder = f"sys/devices/system/node/node{node}"
        files[f"{folder}/cpulist"] = ",".join(str(cpu) for cpu in range(node, 2 * num_cores, 2)) + "\n"
        files[f"{folder}/distance"] = f"10 {distance}\n" if node == 0 else f"{distance} 10\n"
        files[f"{folder}/meminfo"] = (
            f"Node {node} MemTotal:  67108864 kB\nNode {node} MemFree:   {33554432 + node} kB\n"
        )
    return files


def cpuinfo(places: list[tuple[int, int]], *, siblings: int, cores: int, extra: str = "") -> dict[str, str]:
    """/proc/cpuinfo alone; ``places`` holds package and core of each CPU."""
    blocks = [
        f"processor\t: {cpu}\nmodel name\t: Imaginary 9000\nphysical id\t: {package}\nsiblings\t: {siblings}\n"
        f"core id\t\t: {core}\ncpu cores\t: {cores}\n{extra}"
        for cpu, (package, core) in enumerate(places)
    ]
    return {"proc/cpuinfo": "\n".join(blocks)}


def open_descriptors() -> set[str]:
    """The open files of this process; after something is closed there must be none that was not there before."""
    return {link.name for link in Path("/proc/self/fd").iterdir()}
