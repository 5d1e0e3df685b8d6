"""Where a process runs: which processor, under which hypervisor, in which container, on which kernel.

Leaves to others: the limits these set (``limits``, ``memory``).
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.kernel_files import read_text

__all__ = ["Processor", "find_container", "find_hypervisor", "read_kernel", "read_processor"]

# Part of a control group's path, as container engines name them.
_GROUP_NAMES = {
    "kubepods": "Kubernetes",
    "docker": "Docker",
    "libpod": "Podman",
    "containerd": "containerd",
    "lxc": "LXC",
    "machine.slice": "systemd-nspawn",
}
_MARKER_FILES = {".dockerenv": "Docker", "run/.containerenv": "Podman"}
# What firmware calls itself, by hypervisor.
_FIRMWARE_NAMES = {
    "qemu": "QEMU",
    "kvm": "KVM",
    "amazon ec2": "Amazon EC2",
    "google": "Google Compute Engine",
    "microsoft corporation": "Hyper-V",
    "vmware": "VMware",
    "virtualbox": "VirtualBox",
    "innotek": "VirtualBox",
    "xen": "Xen",
    "openstack": "OpenStack",
    "digitalocean": "DigitalOcean",
    "hetzner": "Hetzner",
    "apple virtualization": "Apple",
}


@dataclass(frozen=True)
class Processor:
    """What the processor is and can do; ``features`` are the kernel's words, ``governor`` None where there is none."""

    name: str
    architecture: str  # x86_64, aarch64, ...
    features: frozenset[str]
    governor: str | None  # of the usable CPUs; several are joined with commas


def read_processor(root: Path, cpus: Collection[int]) -> Processor:
    """Describe the processor; ``cpus`` are those whose governor counts."""
    fields = _cpuinfo(root)
    words = fields.get("flags") or fields.get("Features") or ""
    folders = (root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq" for cpu in sorted(cpus))
    governors = {governor for folder in folders if (governor := read_text(folder / "scaling_governor"))}
    name = fields.get("model name") or fields.get("Processor") or read_text(root / "proc/device-tree/model")
    return Processor(
        (name or platform.processor() or "unknown").rstrip("\0"),
        platform.machine(),
        frozenset(words.split()),
        ",".join(sorted(governors)) or None,
    )


def find_hypervisor(root: Path) -> str | None:
    """Return what the machine runs on if it is a virtual one, ``unknown`` if only that is known."""
    kind = read_text(root / "sys/hypervisor/type")
    if kind is not None:
        return kind
    names = (
        read_text(root / "sys/class/dmi/id" / name) or "" for name in ("sys_vendor", "product_name", "bios_vendor")
    )
    firmware = " ".join(names).lower()
    known = next((name for words, name in _FIRMWARE_NAMES.items() if words in firmware), None)
    is_virtual = "hypervisor" in _cpuinfo(root).get("flags", "").split()
    # Big clouds and Microsoft also sell machines; there the processor must say that it is a virtual one.
    if is_virtual:
        return known or "unknown"
    return known if known in ("QEMU", "KVM", "Xen", "VirtualBox", "VMware", "Apple") else None


def find_container(root: Path) -> str | None:
    """Return the kind of container this process runs in, None outside of any."""
    for name, kind in _MARKER_FILES.items():
        if (root / name).exists():
            return kind
    environment = (read_text(root / "proc/1/environ") or "").split("\0")
    given = next((word.partition("=")[2] for word in environment if word.startswith("container=")), None)
    given = given or read_text(root / "run/systemd/container")
    if given:
        return {"lxc": "LXC", "docker": "Docker", "podman": "Podman", "oci": "OCI"}.get(given, given)
    groups = read_text(root / "proc/1/cgroup") or ""
    return next((kind for name, kind in _GROUP_NAMES.items() if f"/{name}" in groups), None)


def read_kernel(root: Path) -> str:
    """Return the release of the kernel."""
    return read_text(root / "proc/sys/kernel/osrelease") or platform.release()


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the fields of the first CPU."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields
