"""Fetching a sealed state over HTTP: nothing that is served is believed, what is verified is kept, a restart goes on
behind it.

In: the URL of a folder (sealed.py), the offer on chain. Out: the same folder here, every byte of it bound to the offer;
or what is missing, or a node that proves that the trainer cheated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import requests

from vgame.chain.http import CONNECT_TIMEOUT, REPLY_TIMEOUT, careful_session
from vgame.commit.words import LEAF_BYTES
from vgame.delivery import bulk
from vgame.delivery.cipher import CHUNK, Pair
from vgame.delivery.opening import node_of_chunk, root_node
from vgame.delivery.sealed import CipherTree, Offer, Piece, SealedFolder, Shape, chunk_levels
from vgame.errors import DeliveryError
from vgame.system.endpoints import hide_secrets, without_secrets

TRIES = 5  # of one piece, in a row
AWAY = 8  # chunks in a row that do not come: the server is away
MOST_READ = 2**22  # bytes that are asked for at once

T = TypeVar("T")
Get = Callable[[str, int, int], bytes]
Progress = Callable[[int, int], None]


class Missing(DeliveryError):
    """These chunks, (tensor, chunk), did not arrive as they were committed. `all_known`: every other one is here."""

    def __init__(self, text: str, chunks: Sequence[tuple[int, int]], all_known: bool = True) -> None:
        super().__init__(text)
        self.chunks, self.all_known = list(chunks), all_known


class Source:
    """A folder behind a URL, read by ranges."""

    def __init__(self, url: str) -> None:
        self.url, self.session = url.rstrip("/"), careful_session()

    def get(self, name: str, first: int, size: int) -> bytes:
        """`size` bytes of a file; DeliveryError where they do not come."""
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
        except Exception as error:  # what urllib3 raises in the middle of a body is no RequestException
            raise DeliveryError(f"{place} broke off: {hide_secrets(str(error), self.url)}") from None
        if len(data) != size:
            raise DeliveryError(f"{place} gave {len(data)} of {size} bytes")
        return data


def fetch(
    get: Get, shape: Shape, offer: Offer, folder: Path, progress: Progress = lambda done, total: None
) -> SealedFolder:
    """The whole folder, verified; else Missing, or WrongNode. Only what is not here is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    chunks = _chunks(get, shape, offer, folder)
    missing, done, last, away = [], 0, "", False
    with _open(folder / "leaves") as leaves, _open(folder / "hashes") as hashes:
        files = _Files(shape, chunks, leaves, hashes)
        for piece in shape.pieces():
            if away:  # what is here still counts
                wrong, why = files.wrong(piece, *files.read(piece)), last
            else:
                wrong, why, away = _complete(get, files, piece)
            missing += [(piece.tensor, piece.first // CHUNK + c) for c in wrong]
            last, done = why if wrong else last, done + piece.count
            progress(done, shape.first_leaf[-1])
    if missing:
        tensor, chunk = missing[0]
        raise Missing(f"tensor {tensor}, chunk {chunk}: {last} ({TRIES} tries)", missing)
    return SealedFolder(folder, shape)


# ---- the pairs of the chunks ----


def _chunks(get: Get, shape: Shape, offer: Offer, folder: Path) -> np.ndarray:
    """Of one chunk the offer is the pair. Verified ones stay in the folder. If they are not served, but all leaves are
    here, they follow from these."""
    path, size = folder / "chunks", shape.sizes["chunks"]
    if shape.first_chunk[-1] == 1:
        found = bulk.to_rows([Pair(offer.cipher_root, offer.final_state)])
    elif _size(path) == size and CipherTree(shape, kept := _rows(path.read_bytes())).root == _root(offer):
        return kept
    else:
        try:
            found = _insist(lambda: _checked(_in_parts(get, "chunks", size), shape, offer))
        except DeliveryError as error:
            own = own_chunks(shape, folder)
            if own is None or CipherTree(shape, own).root != _root(offer):
                every = [(t, c) for t, count in enumerate(shape.chunks) for c in range(count)]
                raise Missing(f"the pairs of the chunks: {error} ({TRIES} tries)", every) from None
            found = own
    if _size(path) != size or path.read_bytes() != found.tobytes():
        path.write_bytes(found.tobytes())
    return found


def _rows(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(-1, bulk.PAIR)


def _in_parts(get: Get, name: str, size: int) -> bytes:
    return b"".join(get(name, at, min(MOST_READ, size - at)) for at in range(0, size, MOST_READ))


def _root(offer: Offer) -> Pair:
    return Pair(offer.cipher_root, offer.final_state)


def _checked(data: bytes, shape: Shape, offer: Offer) -> np.ndarray:
    chunks = _rows(data)
    tree = CipherTree(shape, chunks)
    if tree.root == _root(offer):
        return chunks
    if tree.root.cipher == offer.cipher_root:
        raise root_node(tree, offer.final_state)
    raise DeliveryError("they do not fold to the pair on chain")


def own_chunks(shape: Shape, folder: Path) -> np.ndarray | None:
    """The pairs of the chunks from the leaves that are here; None where there are not enough of them."""
    if any(_size(folder / name) != shape.sizes[name] for name in ("leaves", "hashes")):
        return None
    with _open(folder / "leaves") as leaves, _open(folder / "hashes") as hashes:
        files = _Files(shape, np.empty((0, bulk.PAIR), np.uint8), leaves, hashes)
        return np.concatenate([files.levels(piece, *files.read(piece))[-1] for piece in shape.pieces()])


# ---- leaves ----


@dataclass
class _Files:
    """Ciphertext and true hashes as far as they are here; what was never written reads as zeros."""

    shape: Shape
    chunks: np.ndarray
    leaves: IO[bytes]
    hashes: IO[bytes]

    def read(self, piece: Piece) -> tuple[bytes, bytes]:
        leaves, hashes = piece.count * LEAF_BYTES, piece.count * bulk.HASH
        self.leaves.seek(piece.at * LEAF_BYTES)
        self.hashes.seek(piece.at * bulk.HASH)
        return self.leaves.read(leaves).ljust(leaves, b"\0"), self.hashes.read(hashes).ljust(hashes, b"\0")

    def write(self, piece: Piece, cipher: bytes, true: bytes) -> None:
        self.leaves.seek(piece.at * LEAF_BYTES)
        self.leaves.write(cipher)
        self.hashes.seek(piece.at * bulk.HASH)
        self.hashes.write(true)

    def levels(self, piece: Piece, cipher: bytes, true: bytes) -> list[np.ndarray]:
        leaves = np.frombuffer(cipher, np.uint8).reshape(-1, LEAF_BYTES)
        own = np.frombuffer(true, np.uint8).reshape(-1, bulk.HASH)
        pairs = np.concatenate([bulk.cipher_leaves(leaves, piece.tensor, piece.first), own], axis=1)
        return chunk_levels(self.shape, piece.tensor, pairs)

    def wrong(self, piece: Piece, cipher: bytes, true: bytes) -> list[int]:
        """Chunks of the piece whose pairs are others; WrongNode where the committed one does not follow from what is
        below it."""
        if len(cipher) != piece.count * LEAF_BYTES or len(true) != piece.count * bulk.HASH:
            return list(range(-(-piece.count // CHUNK)))
        levels = self.levels(piece, cipher, true)
        first = self.shape.first_chunk[piece.tensor] + piece.first // CHUNK
        own = self.chunks[first : first + len(levels[-1])]
        found = np.flatnonzero((levels[-1] != own).any(axis=1))
        for c in found:
            if len(levels) > 1 and (levels[-1][c, : bulk.HASH] == own[c, : bulk.HASH]).all():
                tree = CipherTree(self.shape, self.chunks)
                raise node_of_chunk(
                    tree, piece.tensor, piece.first // CHUNK + int(c), levels[-2][2 * c : 2 * c + 2], own[c]
                )
        return found.tolist()


def _complete(get: Get, files: _Files, piece: Piece) -> tuple[list[int], str, bool]:
    """(chunks of the piece that are not here yet, why, the server is away)."""
    wrong, why = files.wrong(piece, *files.read(piece)), ""
    if len(wrong) == -(-piece.count // CHUNK):
        for _ in range(TRIES):
            try:
                found = _get(get, piece)
            except DeliveryError as error:
                why = str(error)
                continue
            why = "it is not what was committed"
            if len(still := files.wrong(piece, *found)) < len(wrong):
                files.write(piece, *found)
                wrong = still
                break
    if piece.count <= CHUNK:
        return wrong, why, False
    missing: list[int] = []
    for at, c in enumerate(wrong):
        if len(missing) >= AWAY and missing[-AWAY:] == list(range(c - AWAY, c)):
            return missing + wrong[at:], why, True
        if why_not := _chunk(get, files, piece, c):
            why = why_not
            missing.append(c)
    return missing, why, False


def _chunk(get: Get, files: _Files, piece: Piece, c: int) -> str:
    """One chunk of a piece by itself: why it did not come, or nothing."""
    own = files.shape.chunk(piece.tensor, piece.first // CHUNK + c)
    why = ""
    for _ in range(TRIES):
        try:
            found = _get(get, own)
        except DeliveryError as error:
            why = str(error)
            continue
        if not files.wrong(own, *found):
            files.write(own, *found)
            return ""
        why = "it is not what was committed"
    return why


def _get(get: Get, piece: Piece) -> tuple[bytes, bytes]:
    cipher = get("leaves", piece.at * LEAF_BYTES, piece.count * LEAF_BYTES)
    return cipher, get("hashes", piece.at * bulk.HASH, piece.count * bulk.HASH)


def keep_chunk(shape: Shape, folder: Path, tensor: int, chunk: int, cipher: bytes, true: bytes) -> None:
    """Write a chunk that came another way; it is verified when the rest is fetched."""
    piece = shape.chunk(tensor, chunk)
    if len(cipher) != piece.count * LEAF_BYTES or len(true) != piece.count * bulk.HASH:
        raise DeliveryError(f"tensor {tensor}, chunk {chunk}: what is shown has another size than this chunk")
    folder.mkdir(parents=True, exist_ok=True)
    with _open(folder / "leaves") as leaves, _open(folder / "hashes") as hashes:
        _Files(shape, np.empty((0, bulk.PAIR), np.uint8), leaves, hashes).write(piece, cipher, true)


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


def _open(path: Path) -> IO[bytes]:
    return open(path, "r+b" if path.exists() else "w+b")
