"""Says why this machine isolates nothing, and what to type so that it does.

Leaves to others: finding out that it does not (``choose``).
"""

from __future__ import annotations

from pathlib import Path

from treadle.errors import SandboxUnavailableError

__all__ = ["explain", "said_by"]

OTHER_WAY = "; or --unsafe-no-sandbox (is_unsafe=True) to run code with all rights of this user"
APPARMOR_PROFILE = "/etc/apparmor.d/bwrap"


def explain(error: SandboxUnavailableError, root: Path = Path("/")) -> SandboxUnavailableError:
    """Return the error with the reason that the machine's settings give, and the way out of it."""
    found = said_by(error)
    if error.hint is not None:
        return SandboxUnavailableError(f"code cannot be isolated: {found}", hint=error.hint + OTHER_WAY)
    for path, forbidding, reason, hint in _SETTINGS:
        if _read(root / path) == forbidding:
            return SandboxUnavailableError(f"code cannot be isolated: {reason} ({found})", hint=hint + OTHER_WAY)
    if any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        reason = "this is a container that may make no namespaces"
        hint = "start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        return SandboxUnavailableError(f"code cannot be isolated: {reason} ({found})", hint=hint + OTHER_WAY)
    return SandboxUnavailableError(f"code cannot be isolated: {found}", hint="see bwrap(1)" + OTHER_WAY)


def said_by(error: SandboxUnavailableError) -> str:
    """Return the first line of what an error says, without its hint."""
    return Exception.__str__(error).partition("\n")[0]


_SETTINGS = (
    (
        "proc/sys/user/max_user_namespaces",
        "0",
        "user namespaces are switched off",
        "sudo sysctl user.max_user_namespaces=10000",
    ),
    (
        "proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "user namespaces are for root alone",
        "sudo sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor lets only programs with a profile make user namespaces",
        f"printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile bwrap /usr/bin/bwrap flags=(unconfined) "
        f"{{ userns, }}\\n' | sudo tee {APPARMOR_PROFILE} && sudo apparmor_parser -r {APPARMOR_PROFILE}",
    ),
)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
