"""Opening beneath a folder: what leads out of it, whoever resolves the path."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.agents.tools import beneath
from treadle.agents.tools.beneath import open_beneath


@pytest.fixture(params=[True, False], ids=["openat2", "walk"])
def has_openat2(request: pytest.FixtureRequest) -> bool:
    if request.param and not beneath._has_openat2():
        pytest.skip("this kernel has no openat2")
    return bool(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "root" / "inner" / "file").write_text("inside")
    return tmp_path / "root"


@pytest.fixture
def root_fd(root: Path) -> Iterator[int]:
    fd = os.open(root, os.O_RDONLY)
    yield fd
    os.close(fd)


def read(fd: int) -> str:
    with os.fdopen(fd) as file:
        return file.read()


def test_opens_what_is_beneath(root_fd: int, has_openat2: bool) -> None:
    assert read(open_beneath(root_fd, ["inner", "file"], os.O_RDONLY, has_openat2=has_openat2)) == "inside"
    fd = open_beneath(root_fd, [], os.O_RDONLY | os.O_DIRECTORY, has_openat2=has_openat2)
    assert [each.name for each in os.scandir(fd)] == ["inner"]
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize(
    "target", ["../secret", "inner/../../secret", "{absolute}", "/proc/self/root/etc/passwd", "loop"]
)
def test_no_link_leads_out(root: Path, root_fd: int, has_openat2: bool, target: str) -> None:
    (root / "loop").symlink_to("loop")
    (root / "link").symlink_to(target.format(absolute=root.parent / "secret"))
    (root / "folder").symlink_to("..")
    for names in (["link"], ["folder", "secret"]):
        with pytest.raises(OSError):
            open_beneath(root_fd, names, os.O_RDONLY, has_openat2=has_openat2)


def test_links_that_stay_inside_are_followed_by_the_kernel_only(root: Path, root_fd: int) -> None:
    (root / "link").symlink_to("inner")
    with pytest.raises(OSError):
        open_beneath(root_fd, ["link", "file"], os.O_RDONLY, has_openat2=False)
    if beneath._has_openat2():
        assert read(open_beneath(root_fd, ["link", "file"], os.O_RDONLY)) == "inside"


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b"])
def test_refuses_what_is_no_name(root_fd: int, has_openat2: bool, name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        open_beneath(root_fd, [name], os.O_RDONLY, has_openat2=has_openat2)


def test_a_link_put_in_meanwhile_leads_nowhere(root: Path, root_fd: int, has_openat2: bool) -> None:
    """A folder turns into a link and back as fast as may be; what is read is the inside or nothing."""
    (root.parent / "file").write_text("outside")
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            (root / "inner").rename(root / "moved")
            (root / "inner").symlink_to("..")
            (root / "inner").unlink()
            (root / "moved").rename(root / "inner")

    swapper = threading.Thread(target=swap)
    swapper.start()
    found = set()
    try:
        for _ in range(1000):
            try:
                found.add(read(open_beneath(root_fd, ["inner", "file"], os.O_RDONLY, has_openat2=has_openat2)))
            except OSError:
                continue
    finally:
        is_over.set()
        swapper.join()
    assert found <= {"inside"}


def test_the_walk_leaves_no_descriptor_open(root_fd: int) -> None:
    def open_files() -> set[Path]:
        return set(Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd").iterdir())

    before = open_files()
    for names in (["inner", "file"], ["inner", "none"], ["none", "file"], []):
        try:
            os.close(open_beneath(root_fd, names, os.O_RDONLY, has_openat2=False))
        except OSError:
            continue
    assert open_files() <= before
