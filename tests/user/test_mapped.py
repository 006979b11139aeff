"""Data that stay in their files: the same bits as from memory, checked by type first, hashed once, little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import vgame
from vgame.commit import mapped as commit
from vgame.commit.tensor import tensor_root
from vgame.program import indices


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def tokens(count: int = 400) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 12, count)


def job(data: torch.Tensor, steps: int = 4) -> vgame.Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 4), nn.Linear(4, 12))

    def loss(model, batch):
        return F.cross_entropy(model(batch["t"][:, :-1]).flatten(0, 1), batch["t"][:, 1:].flatten().long())

    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"t": data}, batch=4, window=9)
    return vgame.Job(task, steps=steps, interval=2, seed=1)


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16", "int32", "uint32", "int64"])
def test_a_file_and_its_numbers_give_the_same_job(kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", tokens().astype(kind))
    data = vgame.mapped(tmp_path / "t.npy")
    assert data.dtype == torch.int32 and data.tolist() == tokens().tolist()
    assert vgame.prepare(job(data)).identity == vgame.prepare(job(torch.from_numpy(tokens()))).identity


def test_a_bundle_copies_the_file_and_its_run_is_audited(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", tokens().astype("int32"))
    run = vgame.train(vgame.prepare(job(vgame.mapped(tmp_path / "t.npy"))), tmp_path / "run")
    held = run.folder / "job" / "data-0000.words"
    assert held.read_bytes() == (tmp_path / "t.npy").read_bytes() and held.stat().st_nlink == 1
    assert vgame.audit(run).match and not run.bundle.data[0].is_shared()
    plain = vgame.train(vgame.prepare(job(torch.from_numpy(tokens()))), tmp_path / "plain")
    assert plain.root == run.root
    words = held.read_bytes()
    held.write_bytes(words[:-4] + b"\1\0\0\0")
    with pytest.raises(vgame.BundleError, match="the data root of the files is"):
        vgame.audit(run)
    held.unlink()
    with pytest.raises(vgame.BundleError, match=r"data-0000.words cannot be read: No such file"):
        vgame.audit(run)


def test_a_file_that_changes_while_it_is_trained_on_ends_the_training(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", tokens().astype("int32"))
    bundle = vgame.prepare(job(vgame.mapped(tmp_path / "t.npy")))

    def change(what: str, done: int, *_: object) -> None:
        if what == "training" and done == 3:
            (tmp_path / "t.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:-4] + b"\1\0\0\0")

    with pytest.raises(vgame.DataError, match="holds other words than when it was hashed"):
        vgame.train(bundle, tmp_path / "run", progress=change)
    assert vgame.Run.open(tmp_path / "run").step == 2


@pytest.mark.parametrize("count", [1, 128, 129, 3 * 2**10, 70_000])
@pytest.mark.parametrize("kind", ["<f4", "<i4"])
def test_roots_of_pieces_are_the_tensors_root(count: int, kind: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(commit, "HEIGHT", 3)
    monkeypatch.setattr(commit, "PIECE", 128 << 3)
    numbers = np.random.default_rng(count).integers(-(2**31), 2**31, count).astype("<i4").view(kind)
    numbers.tofile(tmp_path / "n.bin")
    flat = commit.map_words(tmp_path / "n.bin", 0, count, kind == "<i4")
    assert tensor_root(flat) == tensor_root(torch.from_numpy(numbers.copy()))


def test_a_mapping_is_hashed_once_while_its_file_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, whole = [], commit._pass
    monkeypatch.setattr(commit, "_pass", lambda *a: passes.append(1) or whole(*a))
    monkeypatch.setattr(commit, "SETTLED", 0)
    np.save(tmp_path / "t.npy", tokens().astype("int32"))
    data = vgame.mapped(tmp_path / "t.npy")
    for _ in range(2):
        vgame.prepare(job(data))
    assert len(passes) == 1
    os.utime(tmp_path / "t.npy", (5, 5))
    vgame.prepare(job(data))
    assert len(passes) == 2


def test_a_file_that_was_written_just_now_is_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one tick of the file system's clock it may change again and keep all its times."""
    np.save(tmp_path / "t.npy", tokens().astype("int32"))
    data = vgame.mapped(tmp_path / "t.npy").flatten()
    flat = commit.map_words(tmp_path / "t.npy", 128, data.numel(), True)
    root, usual = tensor_root(flat), os.fstat
    stopped = usual(commit.source_of(flat).descriptor)
    monkeypatch.setattr(commit.os, "fstat", lambda descriptor: stopped)
    assert tensor_root(flat) == root
    (tmp_path / "t.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:-4] + b"\1\0\0\0")
    with pytest.raises(vgame.DataError, match="holds other words than when it was hashed"):
        tensor_root(flat)


def test_a_token_that_does_not_exist_is_found_in_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indices, "MOST_BATCHES", 3)
    wrong = tokens().astype("int32")
    wrong[217] = 12
    np.save(tmp_path / "t.npy", wrong)
    with pytest.raises(vgame.DataError, match="holds the index 12 in sample"):
        vgame.prepare(job(vgame.mapped(tmp_path / "t.npy")))


def test_nan_is_found_while_hashing(tmp_path: Path) -> None:
    x = np.zeros((8, 3), "float32")
    x[5, 1] = np.nan
    save_file({"x": torch.from_numpy(x), "y": torch.ones(8)}, tmp_path / "d.safetensors")
    model = nn.Linear(3, 1)
    data = {"x": vgame.mapped(tmp_path / "d.safetensors", "x"), "y": vgame.mapped(tmp_path / "d.safetensors", "y")}
    task = vgame.Task(model, lambda m, b: m(b["x"]).mean(), torch.optim.SGD(model.parameters(), lr=0.1), data, batch=2)
    with pytest.raises(vgame.DataError, match="the data x holds 1 NaN, the first in row 5"):
        vgame.prepare(vgame.Job(task, steps=1, interval=1, seed=1))


def test_types_and_sizes_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    def refused(sentence: str, path: str, content: object = None, **options: object) -> None:
        if isinstance(content, bytes):
            (tmp_path / path).write_bytes(content)
        elif content is not None:
            np.save(tmp_path / path, content)
        with pytest.raises(vgame.DataError, match=sentence):
            vgame.mapped(tmp_path / path, **options)

    refused("holds float64; float32 and little-endian integers", "a.npy", np.ones(3))
    refused("holds bool;", "b.npy", np.ones(3, bool))
    refused("holds >i4;", "c.npy", np.ones(3, ">i4"))
    refused("column by column", "d.npy", np.asfortranarray(np.ones((2, 3), "int32")))
    refused("holds 3000000000 at position 1", "e.npy", np.array([1, 3_000_000_000]))
    refused("holds one number", "f.npy", np.array(3))
    refused("cannot be read: the magic string is not correct", "g.npy", b"no numbers at all")
    refused("give the type of its numbers", "h.bin", b"1234")
    refused("has 2 bytes", "i.bin", b"12", dtype="int32")
    refused("cannot be read: No such file", "none.npy")
    save_file({"x": torch.ones(2), "y": torch.ones(2).half()}, tmp_path / "j.safetensors")
    refused("it holds x, y; choose one", "j.safetensors")
    refused("y holds F16", "j.safetensors", name="y")


LARGE = """
import resource, sys, torch, numpy as np, vgame
from torch import nn
path, folder, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(path, "wb") as file:
    np.lib.format.write_array_header_1_0(file, {"descr": "<i4", "fortran_order": False, "shape": (rows, 1024)})
    file.truncate(file.tell() + rows * 4096)
data = vgame.mapped(path)
model = nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(4096, 2))
def resident():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
loss = lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["x"][:, 0].long())
task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"x": data}, batch=8)
before = resident()
run = vgame.train(vgame.prepare(vgame.Job(task, steps=8, interval=4, seed=1)), folder)
assert run.step == 8
print(resident() - before)
"""


def grown(tmp_path: Path, rows: int) -> int:
    """Additional memory, in bytes, of a training on a sparse file of that many rows of 4 KiB."""
    arguments = [sys.executable, "-c", LARGE, str(tmp_path / "x.npy"), str(tmp_path / "run"), str(rows)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


@pytest.mark.wide
def test_a_large_file_is_trained_in_little_memory(tmp_path: Path) -> None:
    # the file has 512 MiB; most of the additional memory is compiled code and torch
    assert grown(tmp_path, 2**17) < 450 * 2**20


@pytest.mark.nightly
def test_the_largest_tensor_is_trained_in_little_memory(tmp_path: Path) -> None:
    assert grown(tmp_path, 2**21 - 1) < 2**30  # 8 GiB: 2^31 - 1 words are the most of one tensor
