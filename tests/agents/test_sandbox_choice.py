"""Which isolation is chosen, what it leaves a program, and what is said where there is none."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from sandboxes import within

from treadle.agents.sandbox import Outcome, Sandbox, bubblewrap, choose
from treadle.agents.sandbox.bubblewrap import Bubblewrap
from treadle.agents.sandbox.unavailable import explain
from treadle.agents.sandbox.unisolated import Unisolated, landlock_walls
from treadle.errors import SandboxUnavailableError


def unavailable(**settings: object) -> SandboxUnavailableError:
    with pytest.raises(SandboxUnavailableError) as raised:
        asyncio.run(Sandbox.open(**settings))  # type: ignore[arg-type]
    return raised.value


@pytest.fixture
def _no_cache() -> None:
    bubblewrap.program.cache_clear()
    bubblewrap._options.cache_clear()


@pytest.fixture
def _no_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose.landlock, "abi", lambda: 0)


@pytest.mark.usefixtures("_no_cache", "_no_landlock")
def test_without_bubblewrap_code_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        error = unavailable()
    bubblewrap.program.cache_clear()
    assert "bubblewrap (bwrap) is not installed" in str(error)
    assert "apt install bubblewrap" in (error.hint or "")
    assert "--unsafe-no-sandbox" in (error.hint or "")


@pytest.mark.usefixtures("_no_cache", "_no_landlock")
def test_a_bubblewrap_that_may_not_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        error = unavailable(workspace=tmp_path)
    bubblewrap.program.cache_clear()
    bubblewrap._options.cache_clear()
    assert "No permissions to create new namespace" in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["bwrap"]


@pytest.mark.parametrize(
    ("setting", "value", "hint"),
    [
        ("proc/sys/user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces="),
        ("proc/sys/kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sudo apparmor_parser -r"),
        (".dockerenv", "", "--security-opt seccomp=unconfined"),
    ],
)
def test_the_reason_is_looked_for_in_the_machine_s_settings(
    setting: str, value: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / setting
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
    error = explain(SandboxUnavailableError("the sandbox did not start: bwrap: no\nsecond line"), tmp_path)
    assert "bwrap: no" in str(error)
    assert "second line" not in str(error)
    assert hint in (error.hint or "")


def test_landlock_leaves_the_workspace_and_the_system(tmp_path: Path) -> None:
    workspace, tmp = tmp_path / "workspace", tmp_path / "tmp"
    workspace.mkdir()
    tmp.mkdir()
    walls = landlock_walls(workspace, tmp, b"filter", is_writable=False, packages=[])
    assert workspace in walls.readable
    assert workspace not in walls.writable
    assert tmp in walls.writable
    assert not {Path("/"), Path("/home"), Path("/proc"), Path("/etc")} & {*walls.readable, *walls.writable}
    assert workspace in landlock_walls(workspace, tmp, b"", is_writable=True, packages=[]).writable


@pytest.mark.usefixtures("_no_cache")
def test_where_landlock_is_all_there_is_its_lack_is_found_before_a_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if choose.landlock.abi():
        pytest.skip("this kernel has Landlock")
    monkeypatch.setattr(choose.landlock, "abi", lambda: 6)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        error = unavailable(workspace=tmp_path)
    bubblewrap.program.cache_clear()
    assert "is not installed" in str(error)


@pytest.mark.usefixtures("_no_cache")
def test_landlock_stands_alone_where_the_kernel_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not choose.landlock.abi():
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "workspace").mkdir()
    (tmp_path / "secret").write_text("secret")
    code = f"open('made', 'w').write('x')\nopen({str(tmp_path / 'secret')!r})"

    async def use(sandbox: Sandbox) -> Outcome:
        assert any(layer.startswith("Landlock") for layer in sandbox.layers)
        return await sandbox.run_python(code)

    with monkeypatch.context() as patched:
        patched.setattr(bubblewrap.shutil, "which", lambda _: None)
        outcome = within(use, workspace=tmp_path / "workspace")
    bubblewrap.program.cache_clear()
    assert "PermissionError" in outcome.stderr.text
    assert (tmp_path / "workspace" / "made").exists()


def test_an_older_bubblewrap_is_asked_for_what_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bubblewrap, "program", lambda: "bwrap")
    settings = {"is_writable": True, "has_network": True, "environment": {}, "filter_program": None}
    for options, expected in ((frozenset(), False), (frozenset({"--size", "--disable-userns", "--perms"}), True)):
        monkeypatch.setattr(bubblewrap, "_options", lambda _, known=options: known)
        launch = Bubblewrap(tmp_path, **settings).prepare(3, 1 << 20)  # type: ignore[arg-type]
        for descriptor in launch.descriptors:
            os.close(descriptor)
        assert [word in launch.argv for word in ("--size", "--disable-userns", "--perms")] == [expected] * 3
        assert "--unshare-net" not in launch.argv


def test_programs_without_isolation_do_not_get_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    launch = Unisolated(tmp_path, tmp_path, environment={"COLOUR": "blue"}).prepare(3, 1)
    assert "API_KEY" not in launch.environment
    assert launch.environment["COLOUR"] == "blue"


@pytest.mark.parametrize("folder", ["/", "/home", "/home/somebody"])
def test_an_interpreter_among_a_user_s_files_is_not_shown(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bubblewrap, "program", lambda: "bwrap")
    monkeypatch.setattr(bubblewrap, "_options", lambda _: frozenset())
    monkeypatch.setattr(bubblewrap, "interpreter_folder", lambda: Path(folder))
    monkeypatch.setenv("HOME", "/home/somebody")
    with pytest.raises(SandboxUnavailableError, match="holds what programs shall not see"):
        Bubblewrap(tmp_path, is_writable=True, has_network=False, environment={}, filter_program=None)


def test_other_systems_are_told_that_they_have_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose.sys, "platform", "darwin")
    assert "this is darwin" in str(unavailable())
