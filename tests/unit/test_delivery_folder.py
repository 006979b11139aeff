"""The folders of a delivery belong to one account and one job: another account can put neither links nor keys there,
and no other job uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vgame.agents import delivery
from vgame.delivery.fetch import fetch, keep_chunk
from vgame.delivery.sealed import Offer, Shape, seal
from vgame.delivery.seller import Seller
from vgame.errors import VgameError
from vgame.system.progress import Reporter

SHAPE, JOB = Shape([700]), b"\x77" * 32


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Path, Offer]:
    return tmp_path / "sealed", seal([np.arange(700, dtype="<u4")], SHAPE, b"k" * 32, b"j" * 32, tmp_path / "sealed")


def fetched(sealed: tuple[Path, Offer], folder: Path) -> Any:
    def get(name: str, first: int, size: int) -> bytes:
        return (sealed[0] / name).read_bytes()[first : first + size]

    return fetch(get, SHAPE, sealed[1], folder)


@pytest.mark.parametrize("mode", [None, 0o777, 0o775, 0o755])
def test_only_its_owner_writes_to_it(sealed, tmp_path: Path, mode: int | None) -> None:
    folder = tmp_path / "new" / "m.sealed"
    if mode:
        folder.mkdir(parents=True)
        folder.chmod(mode)
    fetched(sealed, folder)
    assert folder.stat().st_mode & 0o777 == (0o755 if mode else 0o700)


def other_account(place: Path) -> None:
    if os.geteuid():
        pytest.skip("only root gives a folder away")
    place.mkdir()
    os.chown(place, 12345, -1)


def link(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    place.symlink_to("elsewhere")


PREPARED = {
    "a link": link,
    "a link to nothing": lambda place: place.symlink_to("nothing"),
    "a file": lambda place: place.write_text("mine"),
    "another account's": other_account,
}


@pytest.mark.parametrize("prepared", PREPARED)
def test_a_folder_prepared_by_another_account_is_refused(sealed, tmp_path: Path, prepared: str) -> None:
    folder = tmp_path / "m.sealed"
    PREPARED[prepared](folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(VgameError, match="is no folder of this account: move it away"):
        fetched(sealed, folder)
    with pytest.raises(VgameError, match="is no folder of this account"):
        keep_chunk(SHAPE, folder, 0, 0, bytes(6 * 512), bytes(6 * 32))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["leaves", "hashes", "chunks"])
def test_nothing_is_written_through_a_link(sealed, tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "thesis.tex", tmp_path / "m.sealed"
    victim.write_bytes(b"x" * 10_000)
    folder.mkdir()
    (folder / name).symlink_to(victim)
    try:
        fetched(sealed, folder)
    except OSError as error:
        assert "it is a link" in str(error)
    assert victim.read_bytes() == b"x" * 10_000


def test_each_job_has_its_folder_and_a_wrong_one_is_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    class Stop(BaseException):
        pass

    class Stopped:
        def __init__(self, game: Any, job: bytes, elements: Any, get: Any, folder: Path, *_: Any) -> None:
            used.append(folder)
            raise Stop

    def receive(job: bytes) -> None:
        delivery.receive(None, bundle, job, "http://localhost:1", tmp_path / "m", Reporter())

    monkeypatch.setattr("vgame.delivery.buyer.Buyer", Stopped)
    monkeypatch.setattr(delivery, "JobSpec", SimpleNamespace)
    monkeypatch.setattr(delivery, "find_order", lambda *_: None)
    bundle: Any = SimpleNamespace(program=SimpleNamespace(sources=[]), order={})
    for job in (b"\1" * 32, b"\2" * 32):
        with pytest.raises(Stop):
            receive(job)
    assert [folder.name for folder in used] == ["m.0101010101010101.sealed", "m.0202020202020202.sealed"]
    (tmp_path / "m.0303030303030303.sealed").symlink_to(used[0])
    with pytest.raises(VgameError, match="is no folder of this account"):
        receive(b"\3" * 32)
    assert len(used) == 2


def own(uid: int, what: Callable[[], None]) -> str:
    """The name of the error with which `what` ends in a process of an account; "" without one."""
    read, write = os.pipe()
    if not (child := os.fork()):
        found = ""
        try:
            os.setgid(uid)
            os.setuid(uid)
            what()
        except BaseException as problem:
            found = type(problem).__name__
        os.write(write, found.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two accounts")
@pytest.mark.parametrize("prepared", ["the folder", "public"])
def test_a_trainer_takes_no_key_that_another_account_has_prepared(prepared: str) -> None:
    with TemporaryDirectory() as base:
        store = Path(base) / "store"
        Path(base).chmod(0o1777)
        folder = delivery.delivered_folder(store, JOB)

        def stranger() -> None:
            os.umask(0)
            (folder if prepared == "the folder" else folder / "public").mkdir(parents=True)
            (folder / "key").write_bytes(b"K" * 32)

        def trainer() -> None:
            Seller(folder, JOB, [700], lambda: iter([np.arange(700, dtype="<u4")])).offer()

        assert own(1002, stranger) == ""
        assert own(1001, trainer) == "VgameError"


def test_a_trainer_seals_through_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "thesis.tex"
    victim.write_bytes(b"x")
    (tmp_path / "store" / "public").mkdir(parents=True)
    (tmp_path / "store" / "public" / "leaves").symlink_to(victim)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        Seller(tmp_path / "store", JOB, [700], lambda: iter([np.arange(700, dtype="<u4")])).offer()
    assert victim.read_bytes() == b"x"


def test_data_of_a_killed_process_are_synced_before_they_are_used(
    sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(_: object) -> None:
        raise Killed

    synced, usual = list[str](), os.fsync
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("vgame.delivery.fetch._Files.sync", killed)
        fetched(sealed, tmp_path / "m.sealed")
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")) or usual(file))
    fetched(sealed, tmp_path / "m.sealed")
    assert {Path(name).name for name in synced} >= {"leaves", "hashes"}
