"""Fetching a sealed state over HTTP: nothing that is served is believed, what is verified is kept, a restart goes on behind it.

In: the URL of a folder (sealed.py), the offer on chain. Out: the same folder here, every byte of it bound to the offer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import requests

from vgame.commit.words import LEAF_BYTES
from vgame.delivery import bulk
from vgame.delivery.cipher import CHUNK, Pair
from vgame.delivery.sealed import CipherTree, Offer, Piece, SealedFolder, Shape, chunk_pairs
from vgame.errors import DeliveryError

TRIES = 5  # of one piece, in a row
PATIENCE = (10, 60)  # seconds to connect, to the next byte

T = TypeVar("T")
Get = Callable[[str, int, int], bytes]


class Source:
    """A folder behind a URL, read by ranges."""

    def __init__(self, url: str) -> None:
        self.url, self.session = url.rstrip("/"), requests.Session()

    def get(self, name: str, first: int, size: int) -> bytes:
        """`size` bytes of a file; DeliveryError where they do not come."""
        place = f"{self.url}/{name}"
        try:
            with self.session.get(
                place, headers={"Range": f"bytes={first}-{first + size - 1}"}, timeout=PATIENCE, stream=True
            ) as reply:
                if reply.status_code != 206 and not (reply.status_code == 200 and first == 0):
                    raise DeliveryError(f"{place} answers {reply.status_code} to a range; a server of ranges is needed")
                data = reply.raw.read(size)
        except (requests.RequestException, OSError) as error:
            raise DeliveryError(f"{place} cannot be read: {error}") from None
        except Exception as error:  # what urllib3 raises in the middle of a body is no RequestException
            raise DeliveryError(f"{place} broke off: {error}") from None
        if len(data) != size:
            raise DeliveryError(f"{place} gave {len(data)} of {size} bytes")
        return data


def fetch(
    get: Get, shape: Shape, offer: Offer, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> SealedFolder:
    """The whole folder, verified; DeliveryError names the chunk that does not arrive as it was committed."""
    folder.mkdir(parents=True, exist_ok=True)
    chunks = _insist(lambda: _chunks(get, shape, offer), "the pairs of the chunks")
    (folder / "chunks").write_bytes(chunks.tobytes())
    start = _kept(folder, shape, chunks)
    total = shape.first_leaf[-1]
    with _at(folder / "leaves", start * LEAF_BYTES) as leaves, _at(folder / "hashes", start * bulk.HASH) as hashes:
        for piece in shape.pieces():
            if piece.at < start:
                continue
            cipher, true = _insist(lambda p=piece: _piece(get, shape, chunks, p), _name(piece))
            leaves.write(cipher)
            hashes.write(true)
            progress(piece.at + piece.count, total)
    return SealedFolder(folder, shape)


def _chunks(get: Get, shape: Shape, offer: Offer) -> np.ndarray:
    data = get("chunks", 0, shape.sizes["chunks"])
    chunks = np.frombuffer(data, np.uint8).reshape(-1, bulk.PAIR)
    if CipherTree(shape, chunks).root != Pair(offer.cipher_root, offer.final_state):
        raise DeliveryError("they do not fold to the pair on chain")
    return chunks


def _piece(get: Get, shape: Shape, chunks: np.ndarray, piece: Piece) -> tuple[bytes, bytes]:
    cipher = get("leaves", piece.at * LEAF_BYTES, piece.count * LEAF_BYTES)
    true = get("hashes", piece.at * bulk.HASH, piece.count * bulk.HASH)
    check(shape, chunks, piece, cipher, true)
    return cipher, true


def check(shape: Shape, chunks: np.ndarray, piece: Piece, cipher: bytes, true: bytes) -> None:
    """DeliveryError unless every chunk of a piece has its pair."""
    leaves = np.frombuffer(cipher, np.uint8).reshape(-1, LEAF_BYTES)
    hashes = np.frombuffer(true, np.uint8).reshape(-1, bulk.HASH)
    pairs = np.concatenate([bulk.cipher_leaves(leaves, piece.tensor, piece.first), hashes], axis=1)
    found = chunk_pairs(shape, piece.tensor, pairs)
    first = shape.first_chunk[piece.tensor] + piece.first // CHUNK
    wrong = np.flatnonzero((found != chunks[first : first + len(found)]).any(axis=1))
    if wrong.size:
        raise DeliveryError(
            f"chunk {first + int(wrong[0]) - shape.first_chunk[piece.tensor]} is not what was committed"
        )


def _insist(get: Callable[[], T], what: str) -> T:
    for left in range(TRIES - 1, -1, -1):
        try:
            return get()
        except DeliveryError as error:
            if not left:
                raise DeliveryError(f"{what}: {error} ({TRIES} tries)") from None
    raise AssertionError


def _name(piece: Piece) -> str:
    return f"tensor {piece.tensor}, leaves {piece.first} to {piece.first + piece.count - 1}"


def _kept(folder: Path, shape: Shape, chunks: np.ndarray) -> int:
    """Leaves that an earlier run fetched, verified again."""
    have = min(_size(folder / "leaves") // LEAF_BYTES, _size(folder / "hashes") // bulk.HASH)
    start = 0
    for piece in shape.pieces():
        if piece.at + piece.count > have:
            break
        cipher = np.fromfile(folder / "leaves", np.uint8, piece.count * LEAF_BYTES, offset=piece.at * LEAF_BYTES)
        true = np.fromfile(folder / "hashes", np.uint8, piece.count * bulk.HASH, offset=piece.at * bulk.HASH)
        try:
            check(shape, chunks, piece, cipher.tobytes(), true.tobytes())
        except DeliveryError:
            break
        start = piece.at + piece.count
    return start


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _at(path: Path, size: int) -> IO[bytes]:
    """A file that is written from `size` on; what was behind is cut off."""
    file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
    file.truncate(size)
    file.seek(size)
    return file
