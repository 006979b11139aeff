"""Keystream, cipher leaves and pairs: known answers, and compiled code against hashlib."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest

from vgame.commit import words
from vgame.commit.merkle import Kind
from vgame.delivery import bulk
from vgame.delivery.cipher import (
    Pair,
    cipher_leaf,
    job_key,
    key_hash,
    keystream,
    padding_pair,
    parent,
)

KEY, JOB = bytes(range(32)), b"\x77" * 32
EDGES = [(0, 0), (1, 255), (2**24 - 1, 2**24 - 130), (3, 2**40 - 200)]


def test_known_answers() -> None:
    """By the formulas of docs/delivery.md, independent of the code."""
    secret = hashlib.sha256(bytes([5]) + KEY + JOB).digest()
    assert job_key(KEY, JOB) == secret
    assert key_hash(KEY, JOB) == hashlib.sha256(bytes([6]) + KEY + JOB).digest()
    last = hashlib.sha256(bytes([7]) + secret + b"\0\0\0\x02" + b"\0\0\0\x01\x03" + b"\x0f").digest()
    assert keystream(secret, 2, 259)[-32:] == last
    content = bytes(512)
    assert cipher_leaf(content, 2, 259) == hashlib.sha256(b"\0\x0c" + content + b"\0\0\0\x02\0\0\0\x01\x03").digest()
    pad = (hashlib.sha256(b"\x02\x0c").digest(), hashlib.sha256(b"\x02\x05").digest())
    assert padding_pair(Kind.TENSOR, 0) == pad
    above = (
        hashlib.sha256(b"\x01\x0c" + b"".join(pad * 2)).digest(),
        hashlib.sha256(b"\x01\x05" + pad[1] * 2).digest(),
    )
    assert padding_pair(Kind.TENSOR, 1) == above == parent(Kind.TENSOR, Pair(*pad), Pair(*pad))


def leaves(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 512), dtype=np.uint8)


@pytest.mark.skipif(words.kernel() is None, reason="no SHA instructions: hashlib alone serves")
@pytest.mark.parametrize(("tensor", "first"), EDGES)
@pytest.mark.parametrize("count", [bulk.FEW - 1, bulk.FEW, bulk.FEW + 65])
def test_compiled_code_equals_hashlib(tensor: int, first: int, count: int) -> None:
    data = leaves(count)
    streams, hashes = bulk.keystreams(KEY, tensor, first, count), bulk.cipher_leaves(data, tensor, first)
    for i in range(count):
        assert streams[i].tobytes() == keystream(KEY, tensor, first + i)
        assert hashes[i].tobytes() == cipher_leaf(data[i].tobytes(), tensor, first + i)


@pytest.mark.parametrize("count", [1, 2, 3, 65, 130, 131])
def test_a_level_is_the_parents_of_the_pairs_below(count: int) -> None:
    pairs = leaves(count)[:, :64]
    own = bulk.from_rows(pairs)
    own += [padding_pair(Kind.STATE, 3)] * (count % 2)
    expected = [parent(Kind.STATE, own[i], own[i + 1]) for i in range(0, len(own), 2)]
    assert bulk.from_rows(bulk.next_level(Kind.STATE, pairs, 3)) == expected


@pytest.mark.skipif(words.kernel() is None, reason="no SHA instructions")
def test_the_keystream_costs_at_most_twice_the_hashing_of_the_same_leaves() -> None:
    data = leaves(1 << 15)
    bulk.keystreams(KEY, 0, 0, len(data)), bulk.true_hashes(data)  # compiled

    def once(run) -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    flat = data.reshape(-1)
    pairs = [
        (
            once(lambda: bulk.keystreams(KEY, 0, 0, len(data))),
            once(lambda: words.kernel().leaf_hashes(flat, Kind.TENSOR)),
        )
        for _ in range(9)  # in turns: a busy machine slows both
    ]
    # 1.8 by the number of compressions
    assert min(stream for stream, _ in pairs) < 2.5 * min(hashing for _, hashing in pairs)
