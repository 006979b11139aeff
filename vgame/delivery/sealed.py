"""The sealed state: ciphertext, true hashes and the tree over both, as files that any HTTP server can serve
(docs/delivery.md section 3).

    FOLDER/offer.json   the job, final state, cipher root, hash of the key; a hint: only the offer on chain counts
    FOLDER/chunks       64 bytes per chunk of 64 leaves: its pair
    FOLDER/hashes       32 bytes per leaf: its true hash
    FOLDER/leaves       512 bytes per leaf: its ciphertext

Tensors follow each other in the order of the state, each in whole leaves. The key is in none of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np

from vgame.commit.merkle import Kind, tree_height
from vgame.commit.words import LEAF_BYTES, leaf_count
from vgame.delivery import bulk
from vgame.delivery.cipher import CHUNK, CHUNK_HEIGHT, Pair, job_key, key_hash, padding_pair
from vgame.errors import DeliveryError
from vgame.system.files import no_link, parse_json, read_file, write_atomic

#: Chunks that are enciphered, fetched or deciphered at a time: 4 MiB.
PIECE = 128
MOST_OFFER = 2**16
ANSWER_GAS, BYTE_GAS = 21_000, 40  # Delivery.ANSWER_GAS, BYTE_GAS


@dataclass(frozen=True, slots=True)
class Offer:
    """IDelivery.Offer."""

    final_state: bytes
    cipher_root: bytes
    key_hash: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Leaves first..first + count - 1 of a tensor: whole chunks, except at its end; `at`: the index of the first one
    among all leaves."""

    tensor: int
    first: int
    count: int
    at: int


class Shape:
    """The layout of a sealed folder, from the sizes of the state tensors alone."""

    def __init__(self, elements: Sequence[int]) -> None:
        self.elements = list(elements)
        self.leaves = [leaf_count(n) for n in elements]
        self.chunks = [-(-n // CHUNK) for n in self.leaves]
        self.first_leaf = [0, *accumulate(self.leaves)]
        self.first_chunk = [0, *accumulate(self.chunks)]
        self.height = tree_height(len(elements))

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        leaves, chunks = self.first_leaf[-1], self.first_chunk[-1]
        return {"chunks": bulk.PAIR * chunks, "hashes": bulk.HASH * leaves, "leaves": LEAF_BYTES * leaves}

    @property
    def answer_gas(self) -> int:
        """Maximum gas of the answer for the largest chunk."""
        return self._gas(min(CHUNK, max(self.leaves)), max(self.chunks))

    def gas_of(self, tensor: int, chunk: int) -> int:
        """Maximum gas of the answer for a chunk."""
        return self._gas(self.chunk(tensor, chunk).count, self.chunks[tensor])

    def _gas(self, leaves: int, chunks: int) -> int:
        """The fixed gas of an answer, and the floor price of its calldata with 2 % more."""
        above = self.height + tree_height(chunks)
        return ANSWER_GAS + (BYTE_GAS * (leaves * (LEAF_BYTES + bulk.HASH) + above * bulk.PAIR)) * 102 // 100

    def chunk_height(self, tensor: int) -> int:
        """Levels of a tensor's tree that lie inside a chunk."""
        return min(CHUNK_HEIGHT, tree_height(self.leaves[tensor]))

    def pieces(self) -> Iterator[Piece]:
        for tensor, leaves in enumerate(self.leaves):
            for first in range(0, leaves, PIECE * CHUNK):
                yield Piece(tensor, first, min(PIECE * CHUNK, leaves - first), self.first_leaf[tensor] + first)

    def chunk(self, tensor: int, chunk: int) -> Piece:
        first = chunk * CHUNK
        if not (0 <= tensor < len(self.chunks) and 0 <= chunk < self.chunks[tensor]):
            raise DeliveryError(f"the state has no chunk {chunk} of tensor {tensor}")
        return Piece(tensor, first, min(CHUNK, self.leaves[tensor] - first), self.first_leaf[tensor] + first)


def leaf_pairs(piece: Piece, cipher: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The pairs of the leaves of a piece."""
    return np.concatenate([bulk.cipher_leaves(cipher, piece.tensor, piece.first), true], axis=1)


def chunk_levels(shape: Shape, tensor: int, pairs: np.ndarray) -> list[np.ndarray]:
    """The pairs of the leaves of a piece and of all nodes above them, up to its chunks."""
    return bulk.levels(Kind.TENSOR, pairs, shape.chunk_height(tensor))


class CipherTree:
    """The tree of pairs above the chunks."""

    def __init__(self, shape: Shape, chunks: np.ndarray) -> None:
        self.shape = shape
        self.tensors = [self._levels(t, chunks) for t in range(len(shape.elements))]
        tops = np.concatenate([levels[-1] for levels in self.tensors])
        self.state = bulk.levels(Kind.STATE, tops, shape.height)

    def _levels(self, tensor: int, chunks: np.ndarray) -> list[np.ndarray]:
        own = chunks[self.shape.first_chunk[tensor] : self.shape.first_chunk[tensor + 1]]
        return bulk.levels(Kind.TENSOR, own, tree_height(len(own)), self.shape.chunk_height(tensor))

    @property
    def root(self) -> Pair:
        return bulk.from_rows(self.state[-1])[0]

    def tensor_root(self, tensor: int) -> bytes:
        """The true root of a tensor."""
        return bulk.from_rows(self.tensors[tensor][-1])[0].plain

    def path(self, tensor: int, chunk: int) -> list[bytes]:
        """The siblings on the path from a chunk to the root: cipher hash, true hash, ..."""
        below = self.shape.chunk_height(tensor)
        return [
            *_siblings(Kind.TENSOR, self.tensors[tensor], chunk, below), *_siblings(Kind.STATE, self.state, tensor, 0)
        ]  # fmt: skip

    def index(self, tensor: int, chunk: int) -> int:
        return tensor << tree_height(self.shape.chunks[tensor]) | chunk


def _siblings(kind: Kind, levels: Sequence[np.ndarray], index: int, base: int) -> Iterator[bytes]:
    for height, level in enumerate(levels[:-1]):
        other = (index >> height) ^ 1
        yield from (
            bulk.from_rows(level[other : other + 1])[0] if other < len(level) else padding_pair(kind, base + height)
        )


def leaf_path(shape: Shape, tree: CipherTree, piece: Piece, pairs: np.ndarray, leaf: int) -> tuple[int, list[bytes]]:
    """Index and path of a leaf, from the pairs of its chunk's leaves (`piece`: that chunk)."""
    chunk = leaf // CHUNK
    levels = bulk.levels(Kind.TENSOR, pairs, shape.chunk_height(piece.tensor))
    inside = _siblings(Kind.TENSOR, levels, leaf % CHUNK, 0)
    index = tree.index(piece.tensor, chunk) << shape.chunk_height(piece.tensor) | leaf % CHUNK
    return index, [*inside, *tree.path(piece.tensor, chunk)]


# ---- sealing ----

#: A cheat's change of (piece, true hashes, ciphertext), in place, before they are committed.
Change = Callable[[Piece, np.ndarray, np.ndarray], None]


def seal(
    words: Iterable[Any], shape: Shape, key: bytes, job: bytes, folder: Path, change: Change | None = None
) -> Offer:
    """Write the folder for a state (the little-endian words of each tensor); returns the offer, to which the claim
    commits."""
    offer = seal_files(words, shape, key, job, folder, change)
    write_offer(folder, job, offer)
    return offer


def seal_files(
    words: Iterable[Any], shape: Shape, key: bytes, job: bytes, folder: Path, change: Change | None = None
) -> Offer:
    """Write the folder without its offer. The same state and key give the same bytes, and an existing file is
    overwritten without being cut first, so an interruption loses no leaf."""
    folder.mkdir(parents=True, exist_ok=True)
    secret, pieces, state = job_key(key, job), shape.pieces(), iter(words)
    tensor, content = -1, memoryview(b"")
    chunks = []
    with _rewritten(folder / "leaves") as leaves, _rewritten(folder / "hashes") as hashes:
        for piece in pieces:
            if piece.tensor != tensor:
                tensor, content = piece.tensor, memoryview(next(state)).cast("B")
            plain = piece_leaves(content, piece)
            true = bulk.true_hashes(plain)
            cipher = plain ^ bulk.keystreams(secret, piece.tensor, piece.first, piece.count)
            if change:
                true = true.copy()
                change(piece, true, cipher)
            chunks.append(chunk_levels(shape, piece.tensor, leaf_pairs(piece, cipher, true))[-1])
            leaves.write(memoryview(cipher).cast("B"))
            hashes.write(true.tobytes())
        for file in (leaves, hashes):  # before the offer is written
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    rows = np.concatenate(chunks)
    write_atomic(folder / "chunks", rows.tobytes())
    root = CipherTree(shape, rows).root
    return Offer(root.plain, root.cipher, key_hash(key, job))


def _rewritten(path: Path) -> IO[bytes]:
    return open(path, "r+b" if path.exists() else "w+b", opener=no_link)


def piece_leaves(content: memoryview, piece: Piece) -> np.ndarray:
    """uint8 [count, 512]: the leaves of a piece, filled with zeros after the last word."""
    own = np.frombuffer(content, np.uint8)[piece.first * LEAF_BYTES : (piece.first + piece.count) * LEAF_BYTES]
    if own.size < piece.count * LEAF_BYTES:
        own = np.concatenate([own, np.zeros(piece.count * LEAF_BYTES - own.size, np.uint8)])
    return own.reshape(-1, LEAF_BYTES)


def write_offer(folder: Path, job: bytes, offer: Offer) -> None:
    fields = {
        "job": job,
        "final_state": offer.final_state,
        "cipher_root": offer.cipher_root,
        "key_hash": offer.key_hash,
    }
    text = json.dumps({"version": 1} | {name: value.hex() for name, value in fields.items()}, indent=1)
    write_atomic(folder / "offer.json", (text + "\n").encode())


def read_offer(folder: Path) -> tuple[bytes, Offer]:
    """The job and the offer of a folder; DeliveryError if there is none."""
    path = folder / "offer.json"
    try:
        found = parse_json(read_file(path, MOST_OFFER))
        job, *roots = (
            bytes.fromhex(found[name]) for name in ("job", "final_state", "cipher_root", "key_hash")
        )  # fmt: skip
        if found["version"] != 1 or any(len(x) != bulk.HASH for x in (job, *roots)):
            raise ValueError("another format")
    except OSError as error:
        raise DeliveryError(f"{path} cannot be read: {error.strerror}; seal the state again with its key") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DeliveryError(f"{path} is not an offer: {error}; seal the state again with its key") from None
    return job, Offer(*roots)


def check_sizes(folder: Path, shape: Shape) -> None:
    """DeliveryError if a file is missing or too short."""
    for name, size in shape.sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size < size:
            raise DeliveryError(f"{path} does not hold {size} bytes; seal or fetch the state again")


class SealedFolder:
    """A folder of `seal`, read chunk by chunk. `chunks`: the pairs of the chunks, if they are known; then files may be
    damaged or end early."""

    def __init__(self, folder: Path, shape: Shape, chunks: np.ndarray | None = None) -> None:
        self.folder, self.shape = folder, shape
        if chunks is None:
            check_sizes(folder, shape)
            chunks = self._read("chunks", bulk.PAIR, 0, shape.first_chunk[-1])
        self.tree = CipherTree(shape, chunks)

    def _read(self, name: str, size: int, first: int, count: int) -> np.ndarray:
        """Rows of a file; DeliveryError if they cannot be read."""
        path = self.folder / name
        try:
            data = np.fromfile(path, np.uint8, size * count, offset=size * first)
        except OSError as error:
            raise DeliveryError(f"{path} cannot be read: {error.strerror or error}") from None
        if len(data) != size * count:
            raise DeliveryError(f"{path} ends early; seal or fetch the state again")
        return data.reshape(count, size)

    def read(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """(ciphertext, true hashes) of a piece."""
        return (
            self._read("leaves", LEAF_BYTES, piece.at, piece.count),
            self._read("hashes", bulk.HASH, piece.at, piece.count),
        )

    def verified(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """The same, if each of its chunks matches its pair; otherwise DeliveryError."""
        cipher, true = self.read(piece)
        found = chunk_levels(self.shape, piece.tensor, leaf_pairs(piece, cipher, true))[-1]
        if not np.array_equal(found, self.tree.tensors[piece.tensor][0][piece.first // CHUNK :][: len(found)]):
            raise DeliveryError(f"{self.folder} has changed: seal or fetch the state again")
        return cipher, true

    def answer(self, tensor: int, chunk: int) -> tuple[bytes, list[bytes], list[bytes]]:
        """Leaves, true hashes and path: the arguments of `IDelivery.answer`. DeliveryError if the chunk has changed."""
        cipher, true = self.verified(self.shape.chunk(tensor, chunk))
        return cipher.tobytes(), [row.tobytes() for row in true], self.tree.path(tensor, chunk)


class Missing(DeliveryError):
    """These chunks, (tensor, chunk), are not here as they were committed. `all_known`: every other one is. `sealed`:
    the folder with the others, if the pairs are known."""

    def __init__(
        self, text: str, chunks: Sequence[tuple[int, int]], all_known: bool, sealed: SealedFolder | None = None
    ) -> None:
        super().__init__(text)
        self.chunks, self.all_known, self.sealed = list(chunks), all_known, sealed
