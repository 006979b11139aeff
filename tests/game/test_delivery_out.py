"""The file that `vgame receive` writes: a path where no file can be is reported before any payment, and no failure of a
file prevents a complaint."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exchange import DELIVERY
from scene import Scene
from test_delivery_agents import SIZES, SPEC, Sides

from vgame.agents import delivery
from vgame.chain.records import Phase
from vgame.delivery import received
from vgame.delivery.sealed import Piece
from vgame.errors import DeliveryError, VgameError
from vgame.job.weights import read_weights
from vgame.program.program import TensorLabel
from vgame.system.files import half_file
from vgame.system.progress import Reporter


def toy_bundle() -> Any:
    """The parts of a bundle of the toy machine's job that a file of its state needs."""
    labels = [TensorLabel(f"t{t}", (n,), True) for t, n in enumerate(SIZES)]
    sources = [SimpleNamespace(elements=n, integer=True) for n in SIZES]
    program = SimpleNamespace(sources=sources, labels=SimpleNamespace(state=labels))
    return SimpleNamespace(program=program, keys={}, steps=DELIVERY.steps, identity=bytes(32), order=asdict(SPEC))


def last_leaf_wrong(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    if piece.tensor == len(SIZES) - 1:
        cipher[-1, 0] ^= 1


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


Break = Callable[[Path, pytest.MonkeyPatch], None]
BREAKS: dict[str, Break] = {
    "it is a folder now": lambda out, _: out.mkdir(),
    "its folder is gone": lambda out, _: out.parent.rename(out.parent.with_name("gone")),
    "its header is not made": lambda _, patch: patch.setattr(received, "pack_header", full),
    "a type that is unknown": lambda _, patch: patch.setattr(received, "TYPES", {}),
    "no room for its size": lambda _, patch: patch.setattr(received, "half_file", narrow),
    "no room for a tensor": lambda _, patch: patch.setattr(received.StateFile, "write", full),
    "no room at its end": lambda _, patch: patch.setattr(os, "fsync", full),
}


@contextmanager
def narrow(*args: Any) -> Iterator[tuple[Any, Path]]:
    """A file on a full disk."""
    with half_file(*args) as (_, half):
        yield SimpleNamespace(truncate=full, write=full), half


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models" / "m.safetensors"


def revealed(scene: Scene, folder: Path, change: Any = None) -> Sides:
    sides = Sides(scene, folder)
    sides.claim(change)
    assert sides.receive() is None
    sides.until(Phase.REVEALED)
    assert sides.buyer.ready()
    return sides


@pytest.mark.parametrize("how", BREAKS)
def test_every_leaf_is_verified_even_if_the_file_fails(
    scene: Scene, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    sides = revealed(scene, tmp_path, last_leaf_wrong)
    BREAKS[how](out, monkeypatch)
    with pytest.raises(DeliveryError, match="the complaint has been sent"):
        delivery.write_state(toy_bundle(), sides.buyer, out)
    assert sides.play.phase is Phase.UNDELIVERED
    assert not out.is_file() and not list(sides.buyer.folder.glob(".state.*"))


@pytest.mark.parametrize("how", BREAKS)
def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(
    scene: Scene, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    sides = revealed(scene, tmp_path)
    BREAKS[how](out, monkeypatch)
    with pytest.raises(VgameError, match=r"m\.safetensors cannot be written: .*; every leaf is verified"):
        delivery.write_state(toy_bundle(), sides.buyer, out)
    assert not out.is_file() and not list(sides.buyer.folder.glob(".state.*"))


def test_a_file_that_can_be_written(scene: Scene, tmp_path: Path, out: Path) -> None:
    sides = revealed(scene, tmp_path)
    delivery.write_state(toy_bundle(), sides.buyer, out)
    for t, words in enumerate(sides.machine.state_words(DELIVERY.steps)):
        assert np.array_equal(read_weights(out)[0][f"t{t}"].numpy().view("<u4"), words)


@pytest.mark.parametrize("place", ["models", "file/m.safetensors", "x" * 300])
def test_an_impossible_path_is_reported_before_any_request(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("")

    def nothing(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(delivery, "find_order", nothing)
    with pytest.raises(VgameError, match=r"is a folder|cannot be written") as found:
        delivery.receive(None, toy_bundle(), bytes(32), "http://localhost:1", tmp_path / place, Reporter())
    assert found.value.exit_code == 1 and "\n" not in str(found.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "models"]


def whole(sides: Sides, out: Path) -> bool:
    """Whether a file holds the state."""
    return all(
        np.array_equal(read_weights(out)[0][f"t{t}"].numpy().view("<u4"), words)
        for t, words in enumerate(sides.machine.state_words(DELIVERY.steps))
    )


def test_two_processes_write_one_file_without_disturbing_each_other(scene: Scene, tmp_path: Path, out: Path) -> None:
    """The second one begins, writes and ends while the first one writes."""
    sides = revealed(scene, tmp_path)
    receive, began = sides.buyer.receive, list[int]()

    def interrupted(write: Any) -> None:
        def first(piece: Piece, leaves: np.ndarray) -> None:
            if not began:
                began.append(1)
                received.refuse_place(out)
                delivery.write_state(toy_bundle(), sides.buyer, out)
                assert whole(sides, out)
            write(piece, leaves)

        receive(first)

    sides.buyer.receive = interrupted
    delivery.write_state(toy_bundle(), sides.buyer, out)
    assert whole(sides, out) and not list(sides.buyer.folder.glob(".state.*"))


def test_a_file_that_another_account_keeps_from_its_path_is_not_lost(
    scene: Scene, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder like /tmp: the file stays beside the ciphertext, and the message names it."""
    sides, usual = revealed(scene, tmp_path), os.replace

    def sticky(source: Any, target: Any) -> None:
        if Path(target) == out:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        usual(source, target)

    monkeypatch.setattr(os, "replace", sticky)
    kept = sides.buyer.folder / out.name
    with pytest.raises(VgameError, match=f"Operation not permitted; the file is {kept}; every leaf is verified"):
        delivery.write_state(toy_bundle(), sides.buyer, out)
    assert whole(sides, kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_a_path_with_another_accounts_file_in_a_sticky_folder_is_refused_first() -> None:
    with TemporaryDirectory() as base:
        folder, out = Path(base), Path(base) / "m.safetensors"
        folder.chmod(0o1777)
        out.touch()
        os.chown(out, 12345, -1)
        received.refuse_place(out)  # root may replace it
        child = os.fork()
        if not child:
            try:
                os.setuid(1001)
                received.refuse_place(out)
            except VgameError as problem:
                os._exit(0 if "belongs to another account" in str(problem) else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
