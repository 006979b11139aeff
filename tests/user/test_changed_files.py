"""Data files that change without a new modification time: other words are not trained on, audited, exported or
ordered."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vgame

TOKENS = np.random.default_rng(0).integers(0, 12, 400).astype("<i4")
OTHER = (TOKENS + 1) % 12
KEPT: list[np.memmap] = []


def job(data: torch.Tensor) -> vgame.Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 4), nn.Linear(4, 12))

    def loss(model, batch):
        return F.cross_entropy(model(batch["t"][:, :-1]).flatten(0, 1), batch["t"][:, 1:].flatten().long())

    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"t": data}, batch=4, window=9)
    return vgame.Job(task, steps=6, interval=2, seed=1)


# ---- how a file changes: other words, the old size and time of change ----


def in_place(path: Path, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.write(content)


def copied(path: Path, content: bytes) -> None:
    beside = path.with_name("beside")
    beside.write_bytes(content)
    times = path.stat()
    os.utime(beside, ns=(times.st_atime_ns, times.st_mtime_ns))
    subprocess.run(["cp", "--preserve=timestamps", beside, path], check=True)


def renamed(path: Path, content: bytes) -> None:
    path.with_name("beside").write_bytes(content)
    os.replace(path.with_name("beside"), path)


def rewritten(path: Path, content: bytes) -> None:
    os.truncate(path, 0)
    path.write_bytes(content)


def by_another_name(path: Path, content: bytes) -> None:
    os.link(path, path.with_name("beside"))
    in_place(path.with_name("beside"), content)
    path.with_name("beside").unlink()


def mapped_write(path: Path, content: bytes) -> None:
    """Into a page that is dirty already: no time of the file changes then."""
    held = np.memmap(path, "uint8", "r+")
    held[:] = np.frombuffer(content, "uint8")
    KEPT.append(held)


WAYS = [in_place, copied, renamed, rewritten, by_another_name, mapped_write]
Way = Callable[[Path, bytes], None]


def change(path: Path, way: Way, words: np.ndarray = OTHER) -> None:
    times, content = path.stat(), path.read_bytes()
    way(path, content[: -4 * len(words)] + words.astype("<i4").tobytes())
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == len(content)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return vgame.train(vgame.prepare(job(torch.from_numpy(TOKENS))), tmp_path_factory.mktemp("honest") / "run").root


def tokens(folder: Path, kind: str = "<i4") -> Path:
    np.save(folder / "t.npy", TOKENS.astype(kind))
    return folder / "t.npy"


# ---- training ----


@pytest.mark.parametrize("way", WAYS)
def test_a_change_between_prepare_and_train(tmp_path: Path, honest: str, way: Way) -> None:
    path = tokens(tmp_path)
    bundle = vgame.prepare(job(vgame.mapped(path)))
    change(path, way)
    if way is renamed:  # the words of the file that was mapped
        assert vgame.train(bundle, tmp_path / "run").root == honest
        assert vgame.audit(tmp_path / "run").match
        return
    with pytest.raises(vgame.DataError, match="holds other words than when it was hashed"):
        vgame.train(bundle, tmp_path / "run")
    assert not (tmp_path / "run" / "job" / "spec.json").exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_saved_order_is_the_prepared_one(tmp_path: Path, honest: str, way: Way) -> None:
    path = tokens(tmp_path)
    vgame.prepare(job(vgame.mapped(path))).save(tmp_path / "bundle")
    change(path, way)
    run = vgame.train(tmp_path / "bundle", tmp_path / "run")
    assert run.root == honest
    change(tmp_path / "bundle" / "data-0000.words", way)
    assert vgame.audit(run).match
    with pytest.raises(vgame.BundleError, match="the data root of the files is"):
        vgame.Bundle.load(tmp_path / "bundle")


@pytest.mark.parametrize("way", [w for w in WAYS if w is not renamed])
def test_a_change_during_training(tmp_path: Path, way: Way) -> None:
    path = tokens(tmp_path)
    bundle = vgame.prepare(job(vgame.mapped(path)))

    def spoil(what: str, done: int, *_: object) -> None:
        if what == "training" and done == 3:
            change(path, way)

    with pytest.raises(vgame.DataError, match="holds other words than when it was hashed"):
        vgame.train(bundle, tmp_path / "run", progress=spoil)
    assert vgame.Run.open(tmp_path / "run").step == 2


def test_a_write_into_a_dirty_page_during_training(tmp_path: Path) -> None:
    path = tokens(tmp_path)
    held = np.memmap(path, "uint8", "r+")
    held[-400:] = held[-400:].copy()
    bundle = vgame.prepare(job(vgame.mapped(path)))

    def spoil(what: str, done: int, *_: object) -> None:
        if what == "training" and done == 5:
            held[-400:] = 1

    with pytest.raises(vgame.DataError, match="holds other words than when it was hashed"):
        vgame.train(bundle, tmp_path / "run", progress=spoil)
    assert not vgame.Run.open(tmp_path / "run").done


def test_a_change_of_times_alone_changes_no_run(tmp_path: Path, honest: str) -> None:
    path = tokens(tmp_path)
    bundle = vgame.prepare(job(vgame.mapped(path)))
    run = vgame.train(bundle, tmp_path / "run", progress=lambda *_: os.utime(path, (5, 5)))
    assert run.root == honest


# ---- audits and exports ----


@pytest.fixture
def run(tmp_path: Path) -> vgame.Run:
    vgame.prepare(job(vgame.mapped(tokens(tmp_path)))).save(tmp_path / "bundle")
    return vgame.train(tmp_path / "bundle", tmp_path / "run")


@pytest.mark.parametrize("way", WAYS)
def test_a_run_over_other_words_is_not_the_order(tmp_path: Path, run: vgame.Run, way: Way) -> None:
    """A cheat's run: trained on other words in a file with the old times; the order states the roots of the true
    words."""
    words = run.folder / "job" / "data-0000.words"
    change(words, way)
    for order in (None, tmp_path / "bundle"):
        with pytest.raises(vgame.BundleError, match="the data root of the files is"):
            vgame.audit(run, order=order)


@pytest.mark.parametrize("way", [w for w in WAYS if w is not renamed])
@pytest.mark.parametrize("part", [{}, {"segments": (2, 3)}])
def test_a_change_during_an_audit(run: vgame.Run, way: Way, part: dict) -> None:
    def spoil(what: str, *_: object) -> None:
        if what == "auditing" and not changed:
            changed.append(change(run.folder / "job" / "data-0000.words", way, np.append(TOKENS[:-1], 0)))

    changed: list[None] = []
    with pytest.raises(vgame.DataError, match="holds other words than when it was hashed"):
        vgame.audit(run, progress=spoil, **part)


@pytest.mark.parametrize("way", [w for w in WAYS if w is not renamed])
def test_a_change_before_an_export_between_checkpoints(tmp_path: Path, run: vgame.Run, way: Way) -> None:
    opened = vgame.Run.open(run.folder)
    opened.export(tmp_path / "before.safetensors", 3)
    change(run.folder / "job" / "data-0000.words", way)
    with pytest.raises(vgame.VgameError):
        opened.export(tmp_path / "after.safetensors", 3)
    assert not (tmp_path / "after.safetensors").exists()


# ---- copies in the cache ----


@pytest.mark.parametrize("way", WAYS)
def test_a_cached_copy_of_widened_numbers_is_renewed(tmp_path: Path, way: Way) -> None:
    path = tokens(tmp_path, "<i8")
    assert vgame.mapped(path).tolist() == TOKENS.tolist()
    change(path, way, OTHER.astype("<i8").view("<i4"))
    assert vgame.mapped(path).tolist() == OTHER.tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_cached_copy_of_columns_is_renewed(tmp_path: Path, way: Way) -> None:
    pyarrow = pytest.importorskip("pyarrow")

    def write(path: Path, words: np.ndarray) -> bytes:
        table = pyarrow.table({"t": pyarrow.array(words)})
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)
        return path.read_bytes()

    path = tmp_path / "t.arrow"
    write(path, TOKENS)
    assert vgame.mapped(path).tolist() == TOKENS.tolist()
    other, times = write(tmp_path / "other.arrow", OTHER), path.stat()
    way(path, other)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert vgame.mapped(path).tolist() == OTHER.tolist()
