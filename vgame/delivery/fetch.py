"""Fetch a sealed state over HTTP. The server is untrusted; data that are verified on the disk are not requested.

In: the URL of a folder (sealed.py), the offer on chain. Out: a copy of the folder, every byte verified against the
offer; or the missing chunks, or a node that proves that the trainer cheated.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import requests

from vgame.chain.http import CONNECT_TIMEOUT, REPLY_TIMEOUT, careful_session
from vgame.commit.words import LEAF_BYTES
from vgame.delivery import bulk
from vgame.delivery.cipher import CHUNK, Pair
from vgame.delivery.folder import own_folder
from vgame.delivery.opening import WrongNode, node_of_chunk, root_node
from vgame.delivery.sealed import CipherTree, Missing, Offer, Piece, SealedFolder, Shape, chunk_levels, leaf_pairs
from vgame.errors import DeliveryError, VgameError
from vgame.system.endpoints import hide_secrets, without_secrets
from vgame.system.files import no_link, open_file, write_atomic

TRIES = 5  # of one piece, in a row
AWAY = 8  # chunks in a row that fail: perhaps the server is away
MOST_READ = 2**22  # maximum bytes of one request

T = TypeVar("T")
Get = Callable[[str, int, int], bytes]
Progress = Callable[[int, int], None]


class Source:
    """A folder behind a URL, read by ranges."""

    def __init__(self, url: str) -> None:
        self.url, self.session = url.rstrip("/"), careful_session(url)

    def get(self, name: str, first: int, size: int) -> bytes:
        """`size` bytes of a file; DeliveryError if they are not received."""
        place = f"{without_secrets(self.url)}/{name}"
        try:
            with self.session.get(
                f"{self.url}/{name}",
                headers={"Range": f"bytes={first}-{first + size - 1}"},
                timeout=(CONNECT_TIMEOUT, REPLY_TIMEOUT),
                stream=True,
            ) as reply:
                if reply.status_code != 206 and not (reply.status_code == 200 and first == 0):
                    raise DeliveryError(f"{place} answers {reply.status_code} to a range; a server of ranges is needed")
                data = reply.raw.read(size)
        except DeliveryError:
            raise
        except (requests.RequestException, OSError) as error:
            raise DeliveryError(f"{place} cannot be read: {hide_secrets(str(error), self.url)}") from None
        except Exception as error:  # urllib3's errors within a body are no RequestException
            raise DeliveryError(f"{place} broke off: {hide_secrets(str(error), self.url)}") from None
        if len(data) != size:
            raise DeliveryError(f"{place} gave {len(data)} of {size} bytes")
        return data


def fetch(
    get: Get, shape: Shape, offer: Offer, folder: Path, progress: Progress = lambda done, total: None
) -> SealedFolder:
    """The whole folder, verified; otherwise Missing or WrongNode. Only data that are not verified on the disk are
    requested from the server."""
    own_folder(folder)
    chunks, lacking = _pairs(get, shape, offer, folder)
    files = _Files(shape, folder, chunks)
    if lacking is None:
        lacking = [(piece, wrong) for piece in shape.pieces() if (wrong := files.wrong(piece, *files.read(piece)))]
    if lacking:
        server, total = _Server(get, files), shape.first_leaf[-1]
        done = total - sum(_leaves(piece, wrong) for piece, wrong in lacking)
        missing = []
        for piece, wrong in lacking:
            still = server.piece(piece, wrong)
            missing += [(piece.tensor, piece.first // CHUNK + c) for c in still]
            progress(done := done + _leaves(piece, wrong) - _leaves(piece, still), total)
        if missing:
            tensor, chunk = missing[0]
            why = f"tensor {tensor}, chunk {chunk}: {server.why} ({TRIES} tries)"
            raise Missing(why, missing, all_known=True, sealed=SealedFolder(folder, shape, chunks))
    files.sync()  # also the data of a process that was killed
    return SealedFolder(folder, shape, chunks)


def _leaves(piece: Piece, chunks: Sequence[int]) -> int:
    """Number of leaves in these chunks of a piece."""
    return sum(min(CHUNK, piece.count - CHUNK * c) for c in chunks)


# ---- the pairs of the chunks ----


Lacking = list[tuple[Piece, list[int]]]  # pieces, and the indices of their missing chunks


def _pairs(get: Get, shape: Shape, offer: Offer, folder: Path) -> tuple[np.ndarray, Lacking | None]:
    """The pairs of the chunks; and the missing chunks, or None if the leaves are not checked yet. The pairs come from
    the offer, if there is only one chunk; from the disk; from the leaves, if all are here; or from the server."""
    if shape.first_chunk[-1] == 1:
        chunks = bulk.to_rows([Pair(offer.cipher_root, offer.final_state)])
        return _kept(chunks, folder), None
    own = _read(folder / "chunks", 0, shape.sizes["chunks"])
    if len(own) == shape.sizes["chunks"] and _folds(chunks := _rows(own), shape, offer):
        return chunks, None
    if (found := own_chunks(shape, folder)) is not None and _folds(found, shape, offer):
        return _kept(found, folder), []

    def served() -> np.ndarray:
        found = _rows(_in_parts(get, "chunks", shape.sizes["chunks"]))
        try:
            if not _folds(found, shape, offer):
                raise DeliveryError("they do not fold to the pair on chain")
        except WrongNode:
            _kept(found, folder)
            raise
        return _kept(found, folder)

    try:
        return _insist(served), None
    except DeliveryError as error:
        every = [(t, c) for t, count in enumerate(shape.chunks) for c in range(count)]
        raise Missing(f"the pairs of the chunks: {error} ({TRIES} tries)", every, all_known=True) from None


def _rows(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(-1, bulk.PAIR)


def _in_parts(get: Get, name: str, size: int) -> bytes:
    return b"".join(get(name, at, min(MOST_READ, size - at)) for at in range(0, size, MOST_READ))


def _folds(chunks: np.ndarray, shape: Shape, offer: Offer) -> bool:
    """Are these the committed pairs? WrongNode if their true root is not the final state."""
    tree = CipherTree(shape, chunks)
    if tree.root.cipher != offer.cipher_root:
        return False
    if tree.root.plain != offer.final_state:
        raise root_node(tree, offer.final_state)
    return True


def _kept(chunks: np.ndarray, folder: Path) -> np.ndarray:
    """Write the pairs to the disk if that is possible; they can be used without it."""
    with suppress(OSError, VgameError):
        data = chunks.tobytes()
        if _read(folder / "chunks", 0, len(data) + 1) != data:
            write_atomic(folder / "chunks", data)
    return chunks


def own_chunks(shape: Shape, folder: Path) -> np.ndarray | None:
    """The pairs of the chunks, computed from the leaves on the disk; None if the files are too short."""
    if any(_size(folder / name) < shape.sizes[name] for name in ("leaves", "hashes")):
        return None
    files = _Files(shape, folder, np.empty((0, bulk.PAIR), np.uint8))
    return np.concatenate([files.levels(piece, *files.read(piece))[-1] for piece in shape.pieces()])


# ---- leaves ----


@dataclass
class _Files:
    """Ciphertext and true hashes on the disk, which may be incomplete: parts that were never written are zeros, or are
    missing at the end."""

    shape: Shape
    folder: Path
    chunks: np.ndarray

    def read(self, piece: Piece) -> tuple[bytes, bytes]:
        return (
            _read(self.folder / "leaves", piece.at * LEAF_BYTES, piece.count * LEAF_BYTES),
            _read(self.folder / "hashes", piece.at * bulk.HASH, piece.count * bulk.HASH),
        )

    def write(self, piece: Piece, cipher: bytes, true: bytes) -> None:
        _write(self.folder / "leaves", piece.at * LEAF_BYTES, cipher)
        _write(self.folder / "hashes", piece.at * bulk.HASH, true)

    def sync(self) -> None:
        """After this call a power failure loses nothing: once the client has confirmed, the trainer need not serve the
        data any more."""
        for name in ("leaves", "hashes"):
            with open(self.folder / name, "rb") as file:
                os.fsync(file.fileno())

    def keep(self, piece: Piece, cipher: bytes, true: bytes) -> list[int]:
        """Write a new piece if at least one of its chunks is as committed; returns those that are not. A piece with a
        wrong node is written too, so that the node is found again after a restart."""
        try:
            wrong = self.wrong(piece, cipher, true)
        except WrongNode:
            with suppress(OSError):
                self.write(piece, cipher, true)
            raise
        if len(wrong) < _count(piece):
            self.write(piece, cipher, true)
        return wrong

    def levels(self, piece: Piece, cipher: bytes, true: bytes) -> list[np.ndarray]:
        leaves = np.frombuffer(cipher, np.uint8).reshape(-1, LEAF_BYTES)
        own = np.frombuffer(true, np.uint8).reshape(-1, bulk.HASH)
        return chunk_levels(self.shape, piece.tensor, leaf_pairs(piece, leaves, own))

    def wrong(self, piece: Piece, cipher: bytes, true: bytes) -> list[int]:
        """Chunks of the piece that are incomplete, or do not have the committed pair. WrongNode if a chunk has its
        committed cipher hash, but not its committed true hash."""
        every, here = _count(piece), min(len(cipher) // LEAF_BYTES, len(true) // bulk.HASH)
        whole = every if here >= piece.count else here // CHUNK
        if not whole:
            return list(range(every))
        count = min(piece.count, whole * CHUNK)
        levels = self.levels(replace(piece, count=count), cipher[: count * LEAF_BYTES], true[: count * bulk.HASH])
        first = self.shape.first_chunk[piece.tensor] + piece.first // CHUNK
        own = self.chunks[first : first + whole]
        found = np.flatnonzero((levels[-1] != own).any(axis=1))
        for c in found:
            if len(levels) > 1 and (levels[-1][c, : bulk.HASH] == own[c, : bulk.HASH]).all():
                tree = CipherTree(self.shape, self.chunks)
                raise node_of_chunk(
                    tree, piece.tensor, piece.first // CHUNK + int(c), levels[-2][2 * c : 2 * c + 2], own[c]
                )
        return [*found.tolist(), *range(whole, every)]


def _count(piece: Piece) -> int:
    """Number of chunks of a piece."""
    return -(-piece.count // CHUNK)


@dataclass
class _Server:
    """Requests missing chunks, until the server counts as away: AWAY chunks in a row have failed, then the last one of
    their piece, and then the next piece."""

    get: Get
    files: _Files
    row: int = 0  # chunks in a row that failed
    why: str = ""  # the last one failed
    away: bool = False

    def piece(self, piece: Piece, wrong: list[int]) -> list[int]:
        """Request these chunks of a piece; returns those that fail."""
        if self.away:
            return wrong
        doubt = self.row >= AWAY
        still = self._chunks(piece, wrong)
        self.away = doubt and still == wrong
        return still

    def _chunks(self, piece: Piece, wrong: list[int]) -> list[int]:
        if len(wrong) == _count(piece) > 1:
            wrong = self._ask(piece)
        left, still = deque(wrong), []
        while left:
            doubt = self.row >= AWAY
            c = left.pop() if doubt else left.popleft()
            if self._ask(self.files.shape.chunk(piece.tensor, piece.first // CHUNK + c)):
                still.append(c)
                self.row += 1
                if doubt:
                    break
        return sorted([*still, *left])

    def _ask(self, piece: Piece) -> list[int]:
        """Request a piece; returns the chunks that were not received, or not as committed. There is only one try if
        many others failed."""
        why = ""
        for _ in range(TRIES if self.row < AWAY else 1):
            try:
                cipher = self.get("leaves", piece.at * LEAF_BYTES, piece.count * LEAF_BYTES)
                true = self.get("hashes", piece.at * bulk.HASH, piece.count * bulk.HASH)
            except DeliveryError as error:
                why = str(error)
                continue
            why = "it is not what was committed"
            if len(wrong := self.files.keep(piece, cipher, true)) < _count(piece):
                self.row = 0
                return wrong
        self.why = why
        return list(range(_count(piece)))


def fits(piece: Piece, cipher: bytes, true: bytes) -> bool:
    """Whether ciphertext and true hashes have the size of a piece."""
    return (len(cipher), len(true)) == (piece.count * LEAF_BYTES, piece.count * bulk.HASH)


def keep_chunk(shape: Shape, folder: Path, tensor: int, chunk: int, cipher: bytes, true: bytes) -> None:
    """Write a chunk from another source; it is verified when the rest is fetched."""
    piece = shape.chunk(tensor, chunk)
    if not fits(piece, cipher, true):
        raise DeliveryError(f"tensor {tensor}, chunk {chunk}: what is shown has another size than this chunk")
    own_folder(folder)
    files = _Files(shape, folder, np.empty((0, bulk.PAIR), np.uint8))
    if files.read(piece) != (cipher, true):
        files.write(piece, cipher, true)
        files.sync()


def _insist(get: Callable[[], T]) -> T:
    for left in range(TRIES - 1, -1, -1):
        try:
            return get()
        except DeliveryError:
            if not left:
                raise
    raise AssertionError


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read(path: Path, at: int, size: int) -> bytes:
    """Bytes of a file, fewer at its end; none if there is no file."""
    if not path.exists():
        return b""
    with open_file(path) as file:
        file.seek(at)
        return file.read(size)


def _write(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b" if path.exists() else "w+b", opener=no_link) as file:
        file.seek(at)
        file.write(data)
