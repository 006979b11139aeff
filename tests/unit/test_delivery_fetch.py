"""Sealing, fetching and deciphering: over real HTTP with a bad server in between, killed in the middle, and tampered with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from vgame.delivery.fetch import TRIES, Source, fetch
from vgame.delivery.opening import BadLeaf, decipher
from vgame.delivery.sealed import CipherTree, Offer, SealedFolder, Shape, read_offer, seal
from vgame.errors import DeliveryError

KEY, JOB = b"\x4b" * 32, b"\x77" * 32
SIZES = (1, 130 * 64 * 128 + 5, 700)
WORDS = [np.random.default_rng(n).integers(0, 2**32, n, dtype=np.uint32) for n in SIZES]
SHAPE = Shape(SIZES)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Offer]:
    folder = tmp_path_factory.mktemp("sealed")
    return folder, seal(WORDS, SHAPE, KEY, JOB, folder)


class Server(BaseHTTPRequestHandler):
    """Ranges of files; `faults`: what is done to the next replies."""

    folder: Path
    faults: list[str]

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        data = (self.folder / self.path.strip("/")).read_bytes()[first : last + 1]
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "error":
            return self.send_error(503)
        if fault == "garble":
            data = bytes([data[0] ^ 1]) + data[1:]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fault == "drop" else data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(sealed: tuple[Path, Offer]) -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Server,), {"folder": sealed[0], "faults": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def source(server: ThreadingHTTPServer) -> Source:
    return Source(f"http://127.0.0.1:{server.server_port}")


def words(found: SealedFolder, key: bytes = KEY) -> list[bytes]:
    plain = [b""] * len(SIZES)
    for piece, leaves in decipher(found, key, JOB):
        plain[piece.tensor] += leaves.tobytes()
    return [data[: 4 * n] for data, n in zip(plain, SIZES, strict=True)]


def test_what_was_sealed_is_fetched_and_deciphered(sealed, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    folder, offer = sealed
    assert read_offer(folder) == (JOB, offer)
    server.RequestHandlerClass.faults[:] = ["drop", "garble", "error", "", "garble", "", "", "drop"]
    found = fetch(source(server).get, SHAPE, offer, tmp_path)
    assert words(found) == [w.tobytes() for w in WORDS]
    assert not any(
        (tmp_path / name).read_bytes() != (folder / name).read_bytes() for name in ("leaves", "hashes", "chunks")
    )


def test_a_fetch_goes_on_behind_what_is_verified(sealed, tmp_path: Path) -> None:
    folder, offer = sealed
    asked: list[int] = []

    def get(name: str, first: int, size: int) -> bytes:
        asked.append(first if name == "leaves" else 0)
        if name == "leaves" and first > 512 and len(asked) < 8:
            raise KeyboardInterrupt
        return (folder / name).read_bytes()[first : first + size]

    with pytest.raises(KeyboardInterrupt):
        fetch(get, SHAPE, offer, tmp_path)
    assert (tmp_path / "leaves").stat().st_size >= 512
    asked.clear()
    asked += [0] * 8
    fetch(get, SHAPE, offer, tmp_path)
    assert min(a for a in asked[9:] if a) > 512  # the first piece was there
    data = bytearray((tmp_path / "leaves").read_bytes())
    data[0] ^= 1
    (tmp_path / "leaves").write_bytes(data)
    assert words(fetch(get, SHAPE, offer, tmp_path)) == [w.tobytes() for w in WORDS]


@pytest.mark.parametrize("name", ["chunks", "leaves", "hashes"])
def test_what_was_not_committed_never_arrives(sealed, tmp_path: Path, name: str) -> None:
    folder, offer = sealed
    tries: list[str] = []

    def get(asked: str, first: int, size: int) -> bytes:
        data = (folder / asked).read_bytes()[first : first + size]
        if asked == name:
            tries.append(asked)
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    with pytest.raises(DeliveryError, match=r"not what was committed|do not fold"):
        fetch(get, SHAPE, offer, tmp_path)
    assert len(tries) == TRIES


def test_another_key_shows_a_bad_leaf(sealed) -> None:
    with pytest.raises(BadLeaf) as found:
        words(SealedFolder(sealed[0], SHAPE), b"\x4c" * 32)
    assert (found.value.tensor, found.value.leaf) == (0, 0)


def test_a_folder_of_another_size_is_refused(sealed, tmp_path: Path) -> None:
    for name in ("chunks", "leaves", "hashes"):
        (tmp_path / name).write_bytes((sealed[0] / name).read_bytes())
    (tmp_path / "hashes").write_bytes(b"")
    with pytest.raises(DeliveryError, match="hashes does not hold"):
        SealedFolder(tmp_path, SHAPE)
    (tmp_path / "offer.json").write_text('{"version": 2}')
    with pytest.raises(DeliveryError, match="not an offer"):
        read_offer(tmp_path)


def test_a_server_without_the_files_is_named(server: ThreadingHTTPServer) -> None:
    server.RequestHandlerClass.faults[:] = ["error"] * 9
    with pytest.raises(DeliveryError, match="answers 503"):
        source(server).get("leaves", 0, 512)


def test_the_root_is_that_of_pairs_folded_one_by_one(sealed) -> None:
    """The tree of the largest tensor has padding at every level."""
    folder, offer = sealed
    tree = CipherTree(SHAPE, np.fromfile(folder / "chunks", np.uint8).reshape(-1, 64))
    assert tree.root == (offer.cipher_root, offer.final_state)
