"""Sealing, fetching and deciphering: over real HTTP with a bad server in between, killed in the middle, and tampered
with."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import requests

from vgame.chain.http import careful_session, replies_until
from vgame.commit.merkle import Kind
from vgame.delivery.cipher import CHUNK, Pair, key_hash, parent
from vgame.delivery.fetch import AWAY, TRIES, Missing, Source, fetch, keep_chunk
from vgame.delivery.opening import BadLeaf, WrongNode, decipher
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
    """Ranges of files; `faults`: the faults of the next replies."""

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
        if fault == "drip":
            for byte in data:
                self.wfile.write(bytes([byte]))
                time.sleep(0.1)
        self.wfile.write(data[: len(data) // 2] if fault == "drop" else data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(sealed: tuple[Path, Offer]) -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Server,), {"folder": sealed[0], "faults": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
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


def test_sealed_data_are_fetched_and_deciphered(sealed, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    folder, offer = sealed
    assert read_offer(folder) == (JOB, offer)
    server.RequestHandlerClass.faults[:] = ["drop", "garble", "error", "", "garble", "", "", "drop"]
    found = fetch(source(server).get, SHAPE, offer, tmp_path)
    assert words(found) == [w.tobytes() for w in WORDS]
    assert not any(
        (tmp_path / name).read_bytes() != (folder / name).read_bytes() for name in ("leaves", "hashes", "chunks")
    )


def test_a_fetch_resumes_after_the_verified_part(sealed, tmp_path: Path) -> None:
    folder, offer = sealed
    requested: list[int] = []

    def get(name: str, first: int, size: int) -> bytes:
        requested.append(first if name == "leaves" else 0)
        if name == "leaves" and first > 512 and len(requested) < 8:
            raise KeyboardInterrupt
        return (folder / name).read_bytes()[first : first + size]

    with pytest.raises(KeyboardInterrupt):
        fetch(get, SHAPE, offer, tmp_path)
    assert (tmp_path / "leaves").stat().st_size >= 512
    requested.clear()
    requested += [0] * 8
    fetch(get, SHAPE, offer, tmp_path)
    assert min(a for a in requested[9:] if a) > 512  # the first piece was there
    data = bytearray((tmp_path / "leaves").read_bytes())
    data[0] ^= 1
    (tmp_path / "leaves").write_bytes(data)
    assert words(fetch(get, SHAPE, offer, tmp_path)) == [w.tobytes() for w in WORDS]


@pytest.mark.parametrize("name", ["chunks", "leaves", "hashes"])
def test_uncommitted_data_are_never_accepted(sealed, tmp_path: Path, name: str) -> None:
    folder, offer = sealed
    tries: list[str] = []

    def get(requested: str, first: int, size: int) -> bytes:
        data = (folder / requested).read_bytes()[first : first + size]
        if requested == name:
            tries.append(requested)
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    with pytest.raises(Missing, match=r"not what was committed|do not fold") as found:
        fetch(get, SHAPE, offer, tmp_path)
    last = [(0, 0), (1, 127), (1, 130), (2, 0)]  # chunk of each piece: the byte that is damaged is its last
    every = [(0, 0), *((1, c) for c in range(131)), (2, 0)]
    assert found.value.all_known and found.value.chunks == (every if name == "chunks" else last)
    assert len(tries) == (TRIES if name == "chunks" else 4 * TRIES + 2)


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


def test_one_refused_chunk_is_the_only_missing_one_and_may_come_from_another_source(sealed, tmp_path: Path) -> None:
    """Chunk 40 of tensor 1: tensor 0 has one leaf, so it begins at leaf 1 + 40 * 64."""
    folder, offer = sealed
    cipher, true, _ = SealedFolder(folder, SHAPE).answer(1, 40)

    def get(name: str, first: int, size: int) -> bytes:
        unit = {"leaves": 512, "hashes": 32}.get(name, 0)
        at = 1 + 40 * CHUNK
        if unit and first < (at + CHUNK) * unit and at * unit < first + size:
            raise DeliveryError("refused")
        return (folder / name).read_bytes()[first : first + size]

    with pytest.raises(Missing) as found:
        fetch(get, SHAPE, offer, tmp_path)
    assert found.value.chunks == [(1, 40)] and found.value.all_known
    keep_chunk(SHAPE, tmp_path, 1, 40, bytes(len(cipher)), b"".join(true))
    with pytest.raises(Missing):
        fetch(get, SHAPE, offer, tmp_path)
    keep_chunk(SHAPE, tmp_path, 1, 40, cipher, b"".join(true))
    assert words(fetch(get, SHAPE, offer, tmp_path)) == [w.tobytes() for w in WORDS]
    (tmp_path / "chunks").unlink()

    def nothing(name: str, first: int, size: int) -> bytes:
        raise DeliveryError("away")

    assert fetch(nothing, SHAPE, offer, tmp_path).tree.root.plain == offer.final_state  # all leaves are here


@pytest.mark.parametrize("place", [(3, 0), (1, 131), (-1, 0), (1, -1)])
def test_data_of_an_endpoint_are_written_only_at_their_place(tmp_path: Path, place: tuple[int, int]) -> None:
    """The endpoint fabricates an event."""
    with pytest.raises(DeliveryError, match="no chunk"):
        keep_chunk(SHAPE, tmp_path, *place, bytes(64 * 512), bytes(64 * 32))
    with pytest.raises(DeliveryError, match="another size"):
        keep_chunk(SHAPE, tmp_path, 1, 0, bytes(64 * 512 + 1), bytes(64 * 32))
    assert not list(tmp_path.iterdir())


def test_an_unreachable_server_is_not_asked_for_every_chunk(sealed, tmp_path: Path) -> None:
    folder, offer = sealed
    requested: list[str] = []

    def get(name: str, first: int, size: int) -> bytes:
        requested.append(name)
        if name != "chunks":
            raise DeliveryError("away")
        return (folder / name).read_bytes()[first : first + size]

    with pytest.raises(Missing) as found:
        fetch(get, SHAPE, offer, tmp_path)
    assert found.value.all_known and len(requested) <= 2 + 2 * TRIES + TRIES * AWAY


@pytest.mark.parametrize("sizes", [(300,), (65 * 128,), (1, 130 * 64 * 128 + 5, 700)])
@pytest.mark.parametrize("where", ["leaf", "root"])
def test_a_wrong_parent_of_two_hashes_is_shown(tmp_path: Path, sizes: tuple[int, ...], where: str) -> None:
    """In the smallest trees both places are the same node."""
    shape = Shape(sizes)
    own = [np.arange(n, dtype="<u4") for n in sizes]
    if where == "root":
        offer = replace(seal(own, shape, KEY, JOB, tmp_path / "sealed"), final_state=b"\7" * 32)
    else:
        offer = seal(own, shape, KEY, JOB, tmp_path / "sealed")
        rows = np.fromfile(tmp_path / "sealed" / "chunks", np.uint8).reshape(-1, 64)
        rows[-1, 40] ^= 1
        (tmp_path / "sealed" / "chunks").write_bytes(rows.tobytes())
        root = CipherTree(shape, rows).root
        offer = Offer(root.plain, root.cipher, key_hash(KEY, JOB))

    def get(name: str, first: int, size: int) -> bytes:
        return (tmp_path / "sealed" / name).read_bytes()[first : first + size]

    with pytest.raises(WrongNode) as found:
        fetch(get, shape, offer, tmp_path / "bought")
    a, b, c, d = found.value.children
    true, index, path = found.value.place
    kind = Kind.STATE if where == "root" and len(sizes) > 1 else Kind.TENSOR
    pair = parent(kind, Pair(a, b), Pair(c, d))
    assert pair.plain != true
    pair = Pair(pair.cipher, true)
    for level in range(len(path) // 2):
        beside = Pair(*path[2 * level : 2 * level + 2])
        above = Kind.STATE if len(path) // 2 - 1 - level < shape.height else Kind.TENSOR
        pair = parent(above, beside, pair) if index >> level & 1 else parent(above, pair, beside)
    assert pair == (offer.cipher_root, offer.final_state)


def test_a_server_that_redirects_or_is_too_slow_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer's server must not redirect the client to hosts of its own network, nor delay it for ever by single
    bytes."""
    from vgame.chain import http

    class Bad(BaseHTTPRequestHandler):
        requested: list[str] = []  # noqa: RUF012

        def do_GET(self) -> None:
            self.requested.append(self.path)
            if self.path == "/away/leaves":
                self.send_response(302)
                self.send_header("Location", "/inside")
                return self.end_headers()
            self.send_response(206)
            self.end_headers()
            for _ in range(100):
                time.sleep(0.1)
                self.wfile.write(b"x")
                self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(http, "REPLY_TIMEOUT", 0.6)
    with ThreadingHTTPServer(("127.0.0.1", 0), Bad) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(DeliveryError, match="redirects"):
            Source(f"{url}/away").get("leaves", 0, 512)
        begin = time.monotonic()
        with pytest.raises(DeliveryError, match="leaves"):
            Source(url).get("leaves", 0, 512)
        assert time.monotonic() - begin < 3 and "/inside" not in Bad.requested
        server.shutdown()


def test_the_wait_for_a_reply_is_limited(server: ThreadingHTTPServer) -> None:
    server.RequestHandlerClass.faults[:] = ["drip"]
    source, begin = Source(f"http://127.0.0.1:{server.server_port}"), time.monotonic()
    with replies_until(begin + 0.5):
        with pytest.raises(DeliveryError):
            source.get("leaves", 0, 512)
        assert 0.4 < time.monotonic() - begin < 5
        with pytest.raises(DeliveryError, match="the time for the request is over"):
            source.get("leaves", 0, 512)
    assert time.monotonic() - begin < 5 and len(source.get("leaves", 0, 512)) == 512


def test_a_name_with_many_silent_addresses_causes_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit for connecting covers all addresses together."""
    with socket.socket() as silent, ExitStack() as waiting:
        silent.bind(("", 0))
        silent.listen(0)
        port = silent.getsockname()[1]
        for _ in range(4):  # nothing more is accepted
            queued = waiting.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(("127.0.0.1", port))
        usual = socket.getaddrinfo

        def many(name: str, *args: object, **options: object) -> list[tuple]:
            if name != "many.example":
                return usual(name, *args, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", port)) for n in range(1, 40)]

        monkeypatch.setattr(socket, "getaddrinfo", many)
        begin = time.monotonic()
        with pytest.raises(requests.ConnectionError):
            careful_session("http://many.example").get(f"http://many.example:{port}/", timeout=(0.2, 1))
        assert 0.1 < time.monotonic() - begin < 2
