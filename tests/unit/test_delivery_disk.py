"""Verified data on the client's disk are used without the server, and neither requested nor written again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vgame.delivery import bulk
from vgame.delivery import fetch as fetching
from vgame.delivery.cipher import CHUNK, key_hash
from vgame.delivery.fetch import AWAY, TRIES, Get, Missing, fetch, keep_chunk
from vgame.delivery.opening import WrongNode
from vgame.delivery.sealed import CipherTree, Offer, SealedFolder, Shape, seal
from vgame.errors import DeliveryError

KEY, JOB = b"\x4b" * 32, b"\x77" * 32
SIZES = (1, 200 * 64 * 128 + 5, 700, 20 * 64 * 128)
SHAPE = Shape(SIZES)
EVERY = [(t, c) for t, count in enumerate(SHAPE.chunks) for c in range(count)]
UNITS = {"leaves": 512, "hashes": 32}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Offer]:
    folder = tmp_path_factory.mktemp("sealed")
    words = [np.random.default_rng(n).integers(0, 2**32, n, dtype=np.uint32) for n in SIZES]
    return folder, seal(words, SHAPE, KEY, JOB, folder)


def server(folder: Path, serves: Callable[[str, int, int], bool], asked: list[str] | None = None) -> Get:
    """`serves`: whether the server has this part of a file."""

    def get(name: str, first: int, size: int) -> bytes:
        if asked is not None:
            asked.append(name)
        if not serves(name, first, size):
            raise DeliveryError("away")
        return (folder / name).read_bytes()[first : first + size]

    return get


def without(*places: tuple[int, int]) -> Callable[[str, int, int], bool]:
    """A server that lacks these chunks."""
    lacking = [SHAPE.chunk(*place) for place in places]

    def serves(name: str, first: int, size: int) -> bool:
        unit = UNITS.get(name, 0)
        return not any(unit and first < (p.at + p.count) * unit and p.at * unit < first + size for p in lacking)

    return serves


def nothing(name: str, first: int, size: int) -> bytes:
    raise AssertionError(f"the server is asked for {name}")


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def kept_answer(folder: Path, tensor: int, chunk: int) -> tuple[bytes, bytes]:
    """The data of an answer that the contract publishes."""
    cipher, true, _ = SealedFolder(folder, SHAPE).answer(tensor, chunk)
    return cipher, b"".join(true)


def away(name: str, first: int, size: int) -> bytes:
    raise DeliveryError("away")


@pytest.mark.parametrize("lacking", [(1, 137), (1, 200), (3, 19), (0, 0)])
def test_pairs_and_chunks_on_the_disk_are_used_without_the_server(
    sealed, tmp_path: Path, lacking: tuple[int, int]
) -> None:
    """Also where the files end before the missing chunk does."""
    folder, offer = sealed
    for get in (server(folder, without(lacking)), away):
        with pytest.raises(Missing) as found:
            fetch(get, SHAPE, offer, tmp_path)
        assert found.value.chunks == [lacking] and found.value.all_known
    keep_chunk(SHAPE, tmp_path, *lacking, *kept_answer(folder, *lacking))
    assert fetch(nothing, SHAPE, offer, tmp_path).tree.root.plain == offer.final_state


def test_every_whole_chunk_of_truncated_files_is_used(sealed, tmp_path: Path) -> None:
    """The two files end at different places, one of them within a piece."""
    folder, offer = sealed
    for name, leaves in (("leaves", 1 + 64 * 30 + 7), ("hashes", 1 + 64 * 40)):
        (tmp_path / name).write_bytes((folder / name).read_bytes()[: leaves * UNITS[name]])
    (tmp_path / "chunks").write_bytes((folder / "chunks").read_bytes())
    with pytest.raises(Missing) as found:
        fetch(away, SHAPE, offer, tmp_path)
    assert found.value.chunks == [p for p in EVERY if p[0] > 1 or (p[0] == 1 and p[1] >= 30)] and found.value.all_known


def test_with_the_pairs_alone_every_missing_chunk_is_known(sealed, tmp_path: Path) -> None:
    folder, offer = sealed
    asked: list[str] = []
    with pytest.raises(Missing) as found:
        fetch(server(folder, lambda name, *_: name == "chunks", asked), SHAPE, offer, tmp_path)
    assert found.value.chunks == EVERY and found.value.all_known
    assert len(asked) <= 2 + 2 * TRIES + TRIES * AWAY
    for tensor, chunk in EVERY[:100]:  # answers on chain
        keep_chunk(SHAPE, tmp_path, tensor, chunk, *kept_answer(folder, tensor, chunk))
    with pytest.raises(Missing) as found:
        fetch(away, SHAPE, offer, tmp_path)
    assert found.value.chunks == EVERY[100:] and found.value.all_known


@pytest.mark.parametrize("gap", [range(3, 3 + AWAY), range(3, 90), range(100, 150), range(190, 201)])
def test_chunks_after_a_gap_are_fetched(sealed, tmp_path: Path, gap: range) -> None:
    """At least as many consecutive chunks are missing as the client takes for an unreachable server."""
    folder, offer = sealed
    missing = [(1, c) for c in gap]
    for _ in range(4):
        with pytest.raises(Missing):
            fetch(server(folder, without(*missing)), SHAPE, offer, tmp_path)
    with pytest.raises(Missing) as found:
        fetch(away, SHAPE, offer, tmp_path)
    assert found.value.chunks == missing and found.value.all_known


def test_an_unreachable_server_is_not_asked_for_every_small_tensor(sealed, tmp_path: Path) -> None:
    shape = Shape([700] * 60)
    offer = seal([np.arange(700, dtype="<u4")] * 60, shape, KEY, JOB, tmp_path / "sealed")
    asked: list[str] = []
    with pytest.raises(Missing) as found:
        fetch(server(tmp_path / "sealed", lambda name, *_: name == "chunks", asked), shape, offer, tmp_path / "own")
    assert len(found.value.chunks) == 60 and len(asked) <= 2 + TRIES * AWAY


def test_a_verified_chunk_is_not_overwritten(sealed, tmp_path: Path) -> None:
    """The server loses chunks that it has served, and serves other data."""
    folder, offer = sealed
    with pytest.raises(Missing):
        fetch(server(folder, without((1, 40))), SHAPE, offer, tmp_path)
    with pytest.raises(Missing) as found:
        fetch(lambda name, first, size: bytes(size), SHAPE, offer, tmp_path)
    assert found.value.chunks == [(1, 40)]


def test_complete_data_cause_no_requests_and_no_writes(sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a full disk does not prevent a complaint."""
    folder, offer = sealed
    fetch(server(folder, without()), SHAPE, offer, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for name in ("_write", "write_atomic"):
        monkeypatch.setattr(fetching, name, full, raising=False)
    monkeypatch.setattr(Path, "write_bytes", full)
    assert fetch(nothing, SHAPE, offer, tmp_path).tree.root.plain == offer.final_state
    keep_chunk(SHAPE, tmp_path, 1, 7, *kept_answer(folder, 1, 7))
    assert before == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


@pytest.mark.parametrize("pairs", [True, False])
def test_extra_bytes_at_the_end_of_files_are_harmless(sealed, tmp_path: Path, pairs: bool) -> None:
    folder, offer = sealed
    for name in ("chunks", *UNITS):
        (tmp_path / name).write_bytes((folder / name).read_bytes() + bytes(64))
    if not pairs:
        (tmp_path / "chunks").unlink()
    kept = fetch(nothing, SHAPE, offer, tmp_path)
    assert kept.tree.root.plain == SealedFolder(tmp_path, SHAPE).tree.root.plain == offer.final_state


def test_without_the_file_of_pairs_the_leaves_suffice(sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if there is no space to write it."""
    folder, offer = sealed
    fetch(server(folder, without()), SHAPE, offer, tmp_path)
    (tmp_path / "chunks").unlink()
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(fetching, "write_atomic", full, raising=False)
    assert fetch(nothing, SHAPE, offer, tmp_path).tree.root.plain == offer.final_state


@pytest.mark.parametrize("chunk", [0, 200])
@pytest.mark.parametrize("where", ["chunk", "root"])
def test_a_wrong_node_is_found_again_without_the_server(tmp_path: Path, chunk: int, where: str) -> None:
    """The complaint to the contract is sent later than the wrong node is found."""
    words = [np.arange(n, dtype="<u4") for n in SIZES]
    folder = tmp_path / "sealed"
    offer = seal(words, SHAPE, KEY, JOB, folder)
    if where == "root":
        offer = Offer(b"\7" * 32, offer.cipher_root, offer.key_hash)
    else:
        rows = np.fromfile(folder / "chunks", np.uint8).reshape(-1, 64)
        rows[1 + chunk, 40] ^= 1
        (folder / "chunks").write_bytes(rows.tobytes())
        root = CipherTree(SHAPE, rows).root
        offer = Offer(root.plain, root.cipher, key_hash(KEY, JOB))
    found = []
    for get in (server(folder, without()), nothing, away):
        with pytest.raises(WrongNode) as wrong:
            fetch(get, SHAPE, offer, tmp_path / "own")
        found.append((wrong.value.children, wrong.value.place))
    assert found[0] == found[1] == found[2]


def test_a_fetch_hashes_stored_data_once(sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, offer = sealed
    with pytest.raises(Missing):
        fetch(server(folder, without((1, 40))), SHAPE, offer, tmp_path)
    hashed, usual = [], bulk.cipher_leaves

    def count(leaves: np.ndarray, tensor: int, first: int) -> np.ndarray:
        hashed.append(len(leaves))
        return usual(leaves, tensor, first)

    monkeypatch.setattr(bulk, "cipher_leaves", count)
    fetch(server(folder, without()), SHAPE, offer, tmp_path)
    assert sum(hashed) == SHAPE.first_leaf[-1] + CHUNK and max(hashed) <= 128 * CHUNK
