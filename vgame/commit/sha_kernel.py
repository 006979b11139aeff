"""SHA-256 of many short messages at once, with the processor's SHA instructions. Twin: hashlib, used on all other
processors.

In: the bytes of a tensor. Out: the hashes of its leaves, the levels above them. A call of hashlib costs as much as the
hashing of 512 bytes and holds the interpreter's lock; here two messages share the pipeline, and threads share the rest.
Source: FIPS 180-4; Intel SHA extensions (sha256rnds2, sha256msg1, sha256msg2).
"""

from __future__ import annotations

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from vgame.system.jit import compiled_loop
from vgame.system.threads import share

LEAF = 512  # bytes of a leaf
DIGEST = 32
#: Minimum number of hashes for a thread.
WORTH = 1 << 10

# The constants of FIPS 180-4, section 4.2.2 and 5.3.3: fractions of the roots of the first primes.
_PRIMES = [p for p in range(2, 312) if all(p % q for q in range(2, p))]


def _fraction_bits(root: int, p: int) -> int:
    """The first 32 bits of the fraction of the square (2) or cube (3) root of p, by integer bisection."""
    low, high = 0, p << 32
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**root <= p << 32 * root else (low, middle)
    return low & 0xFFFFFFFF


ROUNDS = [_fraction_bits(3, p) for p in _PRIMES]
START = [_fraction_bits(2, p) for p in _PRIMES[:8]]
#: Positions of the words a..h in the order that the instructions need: F E B A, H G D C.
PLACES = (5, 4, 1, 0, 7, 6, 3, 2)
_START = np.array([START[place] for place in PLACES], np.uint32)
_PLACES = np.array(PLACES)


def available() -> bool:
    """Whether this processor has the instructions."""
    features = binding.get_host_cpu_features()
    return all(features.get(name) for name in ("sha", "avx", "sse4.1"))


class _Stream:
    """One message's registers during a block; every method emits instructions."""

    def __init__(self, builder: ir.IRBuilder, state: ir.Value, block: ir.Value) -> None:
        self.builder, self.vector = builder, ir.VectorType(ir.IntType(32), 4)
        self.state = [self._pointer(state, 16 * i) for i in range(2)]
        self.sides = [builder.load(p, align=4) for p in self.state]
        self.before = list(self.sides)
        self.block, self.words = block, []

    def _pointer(self, address: ir.Value, offset: int) -> ir.Value:
        place = self.builder.add(address, ir.Constant(address.type, offset))
        return self.builder.inttoptr(place, self.vector.as_pointer())

    def _call(self, name: str, *operands: ir.Value) -> ir.Value:
        kind = ir.FunctionType(self.vector, [self.vector] * len(operands))
        function = self.builder.module.globals.get(name) or ir.Function(self.builder.module, kind, name)
        return self.builder.call(function, operands)

    def _shuffle(self, x: ir.Value, y: ir.Value, places: list[int]) -> ir.Value:
        return self.builder.shuffle_vector(x, y, ir.Constant(self.vector, places))

    def _next_words(self, group: int) -> ir.Value:
        """Words 4 * group .. 4 * group + 3 of the message schedule."""
        w = self.words
        if group < 4:
            return self._call("llvm.bswap.v4i32", self.builder.load(self._pointer(self.block, 16 * group), align=1))
        sums = self._call("llvm.x86.sha256msg1", w[group - 4], w[group - 3])
        sums = self.builder.add(sums, self._shuffle(w[group - 2], w[group - 1], [1, 2, 3, 4]))
        return self._call("llvm.x86.sha256msg2", sums, w[group - 1])

    def four_rounds(self, group: int) -> None:
        self.words.append(self._next_words(group))
        keys = ir.Constant(self.vector, ROUNDS[4 * group : 4 * group + 4])
        message = self.builder.add(self.words[group], keys)
        high, low = self.sides
        low = self._call("llvm.x86.sha256rnds2", low, high, message)
        high = self._call("llvm.x86.sha256rnds2", high, low, self._shuffle(message, message, [2, 3, 2, 3]))
        self.sides = [high, low]

    def finish(self) -> None:
        for pointer, new, old in zip(self.state, self.sides, self.before, strict=True):
            self.builder.store(self.builder.add(new, old), pointer, align=4)


@intrinsic
def _compress(context, state_a, block_a, state_b, block_b):
    """Update two states (8 words in PLACES' order) with a block of 64 bytes each. All arguments are addresses."""

    def generate(context, builder, signature, addresses):
        # The SHA instructions stall if upper halves of vector registers are in use.
        clear = ir.FunctionType(ir.VoidType(), [])
        name = "llvm.x86.avx.vzeroupper"
        builder.call(builder.module.globals.get(name) or ir.Function(builder.module, clear, name), [])
        streams = [_Stream(builder, *addresses[:2]), _Stream(builder, *addresses[2:])]
        for group in range(16):
            for stream in streams:
                stream.four_rounds(group)
        for stream in streams:
            stream.finish()
        return context.get_dummy_value()

    return types.void(*[types.uintp] * 4), generate


_compile = compiled_loop()


@_compile
def _store(state, lane, out, i):
    """out[i] = the digest: words a..h, high bytes first."""
    for k in range(8):
        for byte in range(4):
            out[i, 4 * _PLACES[k] + byte] = np.uint8(state[lane, k] >> np.uint32(24 - 8 * byte))


@_compile
def _hash_all(data, size, mark, kind, out, first, last):
    """out[i] = SHA-256(mark ‖ kind ‖ bytes i * size .. (i + 1) * size - 1 of data); size: a multiple of 64. i in
    first..last-1."""
    state, head, tail = np.empty((2, 8), np.uint32), np.empty((2, 64), np.uint8), np.zeros((2, 64), np.uint8)
    bits = 8 * (size + 2)
    for lane in range(2):
        head[lane, 0], head[lane, 1] = mark, kind
        tail[lane, 2], tail[lane, 62], tail[lane, 63] = 128, bits >> 8, bits & 255
    start, step = np.uintp(data.ctypes.data), np.uintp(64)
    states, heads, tails = np.uintp(state.ctypes.data), np.uintp(head.ctypes.data), np.uintp(tail.ctypes.data)
    for i in range(first, last, 2):
        j = min(i + 1, last - 1)
        for lane in range(2):
            at = (j if lane else i) * size
            for k in range(62):
                head[lane, 2 + k] = data[at + k]
            tail[lane, 0], tail[lane, 1] = data[at + size - 2], data[at + size - 1]
            for k in range(8):
                state[lane, k] = _START[k]
        _compress(states, heads, states + np.uintp(32), heads + step)
        here, there = start + np.uintp(i * size + 62), start + np.uintp(j * size + 62)
        for _ in range(size // 64 - 1):
            _compress(states, here, states + np.uintp(32), there)
            here += step
            there += step
        _compress(states, tails, states + np.uintp(32), tails + step)
        _store(state, 0, out, i)
        _store(state, 1, out, j)


def leaf_hashes(data: np.ndarray, kind: int) -> np.ndarray:
    """uint8 [leaves, 32]: H(0x00 ‖ kind ‖ 512 bytes) of whole leaves; data: uint8, flat."""
    out = np.empty((data.size // LEAF, DIGEST), np.uint8)
    share(len(out), 1, lambda first, last: _hash_all(data, LEAF, 0, kind, out, first, last), WORTH)
    return out


def node_hashes(level: np.ndarray, kind: int) -> np.ndarray:
    """uint8 [n / 2, 32]: H(0x01 ‖ kind ‖ left ‖ right) of neighbours; level: uint8 [n, 32], n even."""
    out = np.empty((len(level) // 2, DIGEST), np.uint8)
    flat = level.reshape(-1)
    share(len(out), 1, lambda first, last: _hash_all(flat, 2 * DIGEST, 1, kind, out, first, last), WORTH)
    return out
