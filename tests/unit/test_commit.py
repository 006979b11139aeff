"""Roots of tensors against their definition in docs/formats.md section 1, with and without the compiled hashes."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch

from vgame.commit import sha_kernel, words
from vgame.commit.merkle import Kind, Tree
from vgame.commit.tensor import tensor_root, to_words
from vgame.commit.words import LEAF_BYTES, leaf_count, leaf_hashes, words_root

KIND = bytes([Kind.TENSOR])
MANY = 8  # so few that small tensors go through the compiled hashes
SIZES = [0, 1, 127, 128, 129, 1023, 1024, 1025, 128 * 9, 128 * 9 + 5, 128 * 33, 128 * 40 + 1, 128 * 64, 128 * 77 + 127]


def root_by_definition(data: bytes) -> bytes:
    leaves = [data[i : i + LEAF_BYTES].ljust(LEAF_BYTES, b"\0") for i in range(0, len(data), LEAF_BYTES)]
    level = [hashlib.sha256(b"\0" + KIND + leaf).digest() for leaf in leaves]
    empty = hashlib.sha256(b"\2" + KIND).digest()
    while len(level) > 1:
        level += [empty] * (len(level) % 2)
        level = [hashlib.sha256(b"\1" + KIND + level[i] + level[i + 1]).digest() for i in range(0, len(level), 2)]
        empty = hashlib.sha256(b"\1" + KIND + empty + empty).digest()
    return level[0] if level else empty


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_root_is_the_definition(size, compiled, monkeypatch):
    monkeypatch.setattr(words, "MANY", MANY if compiled else 1 << 60)
    data = random.Random(size).randbytes(4 * size)
    assert words_root(data) == words_root(memoryview(data)) == root_by_definition(data)
    tree = words.words_tree(data)
    assert tree.root == root_by_definition(data) and tree.levels == Tree(Kind.TENSOR, leaf_hashes(data)).levels
    if size:
        damaged = bytearray(data)
        damaged[random.Random(size).randrange(4 * size)] ^= 1 << size % 8
        assert words_root(bytes(damaged)) != root_by_definition(data)


@pytest.mark.skipif(
    not sha_kernel.available(), reason="this processor has no SHA instructions: hashlib hashes everything"
)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_compiled_hashes_are_those_of_hashlib(threads, monkeypatch, threads_come_back):
    monkeypatch.setattr(sha_kernel, "WORTH", 1 << 60 if threads == 1 else 7)
    torch.set_num_threads(threads)
    data = sha_kernel.np.frombuffer(random.Random(1).randbytes(LEAF_BYTES * 101), "u1")
    leaves = sha_kernel.leaf_hashes(data, Kind.TENSOR)
    nodes = sha_kernel.node_hashes(leaves[:100], Kind.STATE)
    assert [x.tobytes() for x in leaves] == leaf_hashes(data.tobytes())
    pairs = [leaves[i : i + 2].tobytes() for i in range(0, 100, 2)]
    assert [x.tobytes() for x in nodes] == [hashlib.sha256(bytes([1, Kind.STATE]) + p).digest() for p in pairs]


def test_a_changed_tensor_is_hashed_again():
    x = torch.zeros(300)
    first = tensor_root(x)
    assert tensor_root(x) == first
    x[7] = 1.0
    assert tensor_root(x) == root_by_definition(to_words(x).tobytes()) != first
    x.view(10, 30)[0, 7] = 0.0  # through a view
    assert tensor_root(x) == first


def test_one_nan_and_infinities_keep_their_words():
    x = torch.tensor([1.0, float("inf"), -float("inf"), 3e38, 3e38]).repeat(100)
    assert (to_words(x).view("i4") == x.view(torch.int32).numpy()).all()
    x[3::7] = torch.tensor(0x7FA00001, dtype=torch.int32).view(torch.float32)
    found = to_words(x)
    assert (
        set(found[3::7].tolist()) == {0x7FC00000}
        and (found[1::7].view("i4") == x.view(torch.int32)[1::7].numpy()).all()
    )


@pytest.mark.parametrize("elements", [1, 128, 129, 1000, 128 * 37 + 5])
def test_a_range_is_proved_without_the_tree(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MANY", MANY)
    data = memoryview(np.random.default_rng(elements).bytes(4 * elements))
    tree, leaves = words.words_tree(data), leaf_count(elements)
    for first in range(leaves):
        for last in range(first, leaves):
            assert words.words_range_proof(data, first, last) == tree.range_proof(first, last)
