"""Keystream and cipher hashes of many leaves, compiled: two messages share the pipeline, threads share the rest. Twin:
cipher.py.

Source: FIPS 180-4; the instructions are those of commit/sha_kernel.py.
"""

from __future__ import annotations

import numpy as np

from vgame.commit.merkle import Kind
from vgame.commit.sha_kernel import _START, WORTH, _compile, _compress, _hash_all, _store
from vgame.system.threads import share

LEAF, HASH, BLOCKS = 512, 32, 16
KEYSTREAM_BITS = 8 * 43
LEAF_BITS = 8 * 523


@_compile
def _put(message, offset, value, size):
    """A big-endian number of `size` bytes."""
    for k in range(size):
        message[offset + k] = np.uint8((value >> (8 * (size - 1 - k))) & 255)


@_compile
def _keystreams(start, leaf, out, first, last):
    """Rows 16 * i + j of out: block j of the keystream of leaf + i. `start`: the message of 64 bytes, with its key,
    tensor and length."""
    state, message = np.empty((2, 8), np.uint32), np.empty((2, 64), np.uint8)
    states, messages = np.uintp(state.ctypes.data), np.uintp(message.ctypes.data)
    for lane in range(2):
        for k in range(64):
            message[lane, k] = start[k]
    for i in range(first, last):
        for lane in range(2):
            _put(message[lane], 37, leaf + i, 5)
        for j in range(0, BLOCKS, 2):
            for lane in range(2):
                message[lane, 42] = j + lane
                for k in range(8):
                    state[lane, k] = _START[k]
            _compress(states, messages, states + np.uintp(32), messages + np.uintp(64))
            _store(state, 0, out, BLOCKS * i + j)
            _store(state, 1, out, BLOCKS * i + j + 1)


@_compile
def _cipher_leaves(data, kind, tensor, leaf, out, first, last):
    """out[i] = H(0x00 ‖ kind ‖ bytes 512 i .. 512 i + 511 of data ‖ tensor ‖ leaf + i)."""
    state, head, tail = np.empty((2, 8), np.uint32), np.empty((2, 64), np.uint8), np.zeros((2, 64), np.uint8)
    start, step = np.uintp(data.ctypes.data), np.uintp(64)
    states, heads, tails = np.uintp(state.ctypes.data), np.uintp(head.ctypes.data), np.uintp(tail.ctypes.data)
    for i in range(first, last, 2):
        for lane in range(2):
            own = min(i + lane, last - 1)
            at = own * LEAF
            head[lane, 0], head[lane, 1] = 0, kind
            for k in range(62):
                head[lane, 2 + k] = data[at + k]
            tail[lane, 0], tail[lane, 1] = data[at + LEAF - 2], data[at + LEAF - 1]
            _put(tail[lane], 2, tensor, 4)
            _put(tail[lane], 6, leaf + own, 5)
            tail[lane, 11] = 128
            _put(tail[lane], 62, LEAF_BITS, 2)
            for k in range(8):
                state[lane, k] = _START[k]
        _compress(states, heads, states + np.uintp(32), heads + step)
        here, there = start + np.uintp(i * LEAF + 62), start + np.uintp(min(i + 1, last - 1) * LEAF + 62)
        for _ in range(LEAF // 64 - 1):
            _compress(states, here, states + np.uintp(32), there)
            here += step
            there += step
        _compress(states, tails, states + np.uintp(32), tails + step)
        _store(state, 0, out, i)
        _store(state, 1, out, min(i + 1, last - 1))


def keystreams(key: bytes, tensor: int, first: int, count: int) -> np.ndarray:
    """uint8 [count, 512]."""
    start = np.zeros(64, np.uint8)
    start[:43] = np.frombuffer(b"\x07" + key + tensor.to_bytes(4) + bytes(6), np.uint8)
    start[43] = 128
    start[62:] = np.frombuffer(KEYSTREAM_BITS.to_bytes(2), np.uint8)
    out = np.empty((BLOCKS * count, HASH), np.uint8)
    share(count, 1, lambda a, b: _keystreams(start, first, out, a, b), WORTH)
    return out.reshape(count, LEAF)


def cipher_leaves(leaves: np.ndarray, tensor: int, first: int) -> np.ndarray:
    """uint8 [leaves, 32]."""
    out, flat = np.empty((len(leaves), HASH), np.uint8), np.ascontiguousarray(leaves).reshape(-1)
    share(len(out), 1, lambda a, b: _cipher_leaves(flat, int(Kind.CIPHER), tensor, first, out, a, b), WORTH)
    return out


def cipher_nodes(pairs: np.ndarray) -> np.ndarray:
    """uint8 [n / 2, 32]: H(0x01 ‖ CIPHER ‖ pair ‖ pair) of neighbours; n even."""
    out, flat = np.empty((len(pairs) // 2, HASH), np.uint8), np.ascontiguousarray(pairs).reshape(-1)
    share(len(out), 1, lambda a, b: _hash_all(flat, 4 * HASH, 1, int(Kind.CIPHER), out, a, b), WORTH)
    return out
