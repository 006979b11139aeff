"""The compiler's cache is optional: if it cannot be read or written, loops are compiled, without an error."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgame.system.jit import compiled_loop, sources

LOOP = """
import resource, signal, sys, tempfile

def no_folder(**_):
    raise PermissionError(13, "Permission denied")

if sys.argv[1] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
if sys.argv[1] == "none":
    tempfile.TemporaryFile = no_folder  # what numba tries a folder with

from vgame.commit.merkle import Kind
from vgame.commit.sha_kernel import leaf_hashes

import numpy as np

print(leaf_hashes(np.zeros(1024, np.uint8), Kind.TENSOR).tobytes().hex())
"""


def hashed(cache: Path, disk: str = "free") -> str:
    """Two leaves, hashed by a compiled loop in a process of its own."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-B", "-c", LOOP, disk]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A filled cache, and the loop's result."""
    cache = tmp_path_factory.mktemp("cache")
    return cache, hashed(cache)


@pytest.mark.wide
def test_on_a_full_disk_loops_are_compiled_and_not_kept(right: tuple[Path, str], tmp_path: Path) -> None:
    assert hashed(tmp_path, "full") == right[1]
    assert not list(tmp_path.rglob("*.nbc"))


def test_a_damaged_cache_is_not_read(right: tuple[Path, str]) -> None:
    cache, digests = right
    files = list(cache.rglob("*.nbc"))
    assert files
    for path in files:
        path.write_bytes(b"")
    for disk in ("full", "free"):
        assert hashed(cache, disk) == digests


def test_a_changed_bit_is_detected(right: tuple[Path, str], tmp_path: Path) -> None:
    """Also damage in the machine code, which would change words."""
    shutil.copytree(right[0], tmp_path, dirs_exist_ok=True)
    changed = {path: data.index(b"\x7fELF") + 2000 for path in tmp_path.rglob("*.nbc") if (data := path.read_bytes())}
    for path, at in changed.items():
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    before = {path: path.read_bytes()[at] for path, at in changed.items()}
    assert changed and hashed(tmp_path) == right[1]
    assert all(path.read_bytes()[at] != before[path] for path, at in changed.items()), "they were compiled again"


def let_others_write(path: Path) -> None:
    path.chmod(0o666)


def give_away(path: Path) -> None:
    os.chown(path, os.geteuid() + 1, -1)


@pytest.mark.parametrize(
    "change",
    [
        let_others_write,
        pytest.param(give_away, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")),
    ],
)
def test_files_writable_by_others_are_not_read(
    change: Callable[[Path], None], right: tuple[Path, str], tmp_path: Path
) -> None:
    shutil.copytree(right[0], tmp_path, dirs_exist_ok=True)
    held = {path: path.stat().st_ino for path in tmp_path.rglob("*.nbc")}
    assert hashed(tmp_path) == right[1] and held == {path: path.stat().st_ino for path in held}, "they are read"
    for path in held:
        change(path)
    assert hashed(tmp_path) == right[1]
    for path, before in held.items():
        assert path.stat().st_ino != before, "it was compiled again"
        assert path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o777 == 0o644


@pytest.mark.wide
def test_without_a_folder_for_the_cache_loops_are_compiled(right: tuple[Path, str], tmp_path: Path) -> None:
    assert hashed(tmp_path, "none") == right[1]


def test_a_disk_that_is_full_during_an_upgrade_leaves_no_old_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the new sources have the old ones' size and date."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path / "loops")
    source = tmp_path / "loops" / "upgraded_loop.py"
    source.parent.mkdir()

    def loop() -> Any:
        sys.modules.pop("upgraded_loop", None)
        sources.cache_clear()  # as in another process
        return importlib.import_module("upgraded_loop").f

    for factor in (10, 20):
        line = f"from vgame.system.jit import compiled_loop\nf = compiled_loop()(lambda x: {factor} * x)\n"
        source.write_text(line)
        os.utime(source, (10**9, 10**9))
        with monkeypatch.context() as disk:
            if factor == 20:
                disk.setattr(os, "replace", replace_small)
            assert loop()(3) == 3 * factor
        assert loop()(3) == 3 * factor
    assert sum((kept := loop())(3) for _ in range(2)) == 120 and sum(kept.stats.cache_hits.values()) == 1


def replace_small(source: str, target: str, replace: Callable[[str, str], None] = os.replace) -> None:
    """os.replace on a disk with space for small files only."""
    if os.path.getsize(source) > 4096:
        raise OSError(28, "No space left on device")
    replace(source, target)


@pytest.mark.parametrize("beside", ["called_loop.py", "tables/called_loop.py"])
def test_a_loop_is_recompiled_after_a_change_of_its_callee(
    beside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python's own cache compares seconds
    loops, called = tmp_path / "loops", tmp_path / beside
    for folder in (loops, called.parent):
        folder.mkdir(exist_ok=True)
        monkeypatch.syspath_prepend(folder)
    (loops / "caller_loop.py").write_text(
        "from called_loop import f\nfrom vgame.system.jit import compiled_loop\ng = compiled_loop()(lambda x: f(x))\n"
    )
    for factor in (10, 20):
        called.write_text(f"from vgame.system.jit import compiled_loop\nf = compiled_loop()(lambda x: {factor} * x)\n")
        locked = called.parent / ".#called_loop.py"
        locked.unlink(missing_ok=True)
        locked.symlink_to(f"{factor}")  # like an editor's lock of a file
        for _ in range(2):
            for name in ("caller_loop", "called_loop"):
                sys.modules.pop(name, None)
            sources.cache_clear()  # as in another process
            loop = importlib.import_module("caller_loop").g
            assert loop(3) == 3 * factor
    assert sum(loop.stats.cache_hits.values()) == 1


def test_loops_with_other_constants_are_compiled_separately() -> None:
    def times(factor: int) -> Callable[[int], int]:
        return compiled_loop()(lambda x: factor * x)

    assert [times(factor)(3) for factor in (10, 20, 10)] == [30, 60, 30]
    assert [calling(times(factor))(3) for factor in (10, 20, 10)] == [30, 60, 30]
    assert [calling(calling(times(factor)))(3) for factor in (10, 20, 10)] == [30, 60, 30]


def test_loops_with_small_differences_are_compiled_separately() -> None:
    """In a constant, in a function that has the same name, in an option."""
    constants = [compiled_loop()(lambda x: 1000 * x), compiled_loop()(lambda x: 2000 * x)]
    assert [loop(3) for loop in constants] == [3000, 6000]
    called = [compiled_loop()(lambda x: x + 1), compiled_loop()(lambda x: x + 2)]
    assert [calling(f)(3) for f in called] == [4, 5]
    sums = [compiled_loop(**options)(lambda x, y: (x + y) - y) for options in ({"fastmath": True}, {})]
    assert [loop(1.0, 1e20) for loop in sums] == [1.0, 0.0]


def calling(other: Any) -> Any:
    return compiled_loop()(lambda x: other(x))


ELEMENTARY = """
import json
import numpy as np
from vgame.arithmetic.functions import Function
from vgame.arithmetic.numba.elementary import LOOPS, evaluate

x = np.linspace(-3, 3, 64, dtype=np.float32)
words = [evaluate(f, x).view(np.uint32).tolist() for f in (Function.SIN, Function.COS)]
print(json.dumps([words, [sum(LOOPS[f].stats.cache_hits.values()) for f in (Function.SIN, Function.COS)]]))
"""


def elementary(cache: Path, before: str = "") -> subprocess.Popen:
    """Start a process that needs two loops."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-B", "-c", before + ELEMENTARY]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def outputs(*processes: subprocess.Popen) -> list[tuple[list[list[int]], list[int]]]:
    """The words computed by each process, and whether the loops were in the cache."""
    texts = [process.communicate(timeout=300)[0] for process in processes]
    assert not any(process.returncode for process in processes)
    return [json.loads(text) for text in texts]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[list[list[int]], list[int]]]]:
    """A cache filled by two simultaneous processes, and their output."""
    cache = tmp_path_factory.mktemp("together")
    return cache, outputs(elementary(cache), elementary(cache))


def test_elementary_functions_are_compiled_by_one_process_each(
    together: tuple[Path, list[tuple[list[list[int]], list[int]]]],
) -> None:
    """The loops of all functions are one function's, with another one in its closure."""
    (words, hits), (again, others) = together[1]
    assert [a + b for a, b in zip(hits, others, strict=True)] == [1, 1]
    assert words == again and words[0] != words[1]


def test_the_wait_for_a_compiling_process_is_limited(
    together: tuple[Path, list[tuple[list[list[int]], list[int]]]],
) -> None:
    """The compiling process may be stopped."""
    cache, ((words, _), _) = together
    held = [os.open(folder, os.O_RDONLY) for folder in {path.parent for path in cache.rglob("*.nbc")}]
    for path in cache.rglob("*.nbc"):
        path.unlink()
    for folder in held:
        fcntl.flock(folder, fcntl.LOCK_EX)
    (own,) = outputs(elementary(cache, "import vgame.system.jit\nvgame.system.jit._turn.MOST = 0.5\n"))
    for folder in held:
        os.close(folder)
    assert own == [words, [0, 0]] and held
