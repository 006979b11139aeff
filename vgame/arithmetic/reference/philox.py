"""Random words and the shuffle: Philox4x32-10 (Salmon et al., SC 2011) and a swap-or-not permutation.

In: seed, step, operator, element. Out: the word, or the sample index, of docs/formats.md section 5.
Pure Python, one value at a time; twin: contracts/arithmetic/Philox.sol.
"""

from __future__ import annotations

from functools import lru_cache

WORD_MASK = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL_INCREMENTS = (0x9E3779B9, 0xBB67AE85)  # 2^32 times the golden ratio - 1, and times sqrt(3) - 1
SHUFFLE_ROUNDS = 64
#: Fourth counter word of the shuffle: different from each other and from `step div 2^32` of the random words.
PIVOT_STREAM = 1 << 24
BIT_STREAM = 1 << 25

Counter = tuple[int, int, int, int]
Key = tuple[int, int]


def philox(counter: Counter, key: Key) -> Counter:
    """Philox4x32-10: four words from a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product2 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            product2 >> 32 ^ c1 ^ k0,
            product2 & WORD_MASK,
            product0 >> 32 ^ c3 ^ k1,
            product0 & WORD_MASK,
        )
        k0, k1 = k0 + WEYL_INCREMENTS[0] & WORD_MASK, k1 + WEYL_INCREMENTS[1] & WORD_MASK
    return c0, c1, c2, c3


def split_key(seed: int) -> Key:
    """(seed mod 2^32, seed div 2^32) of a seed below 2^64."""
    return seed & WORD_MASK, seed >> 32


def random_word(seed: int, step: int, operator: int, element: int) -> int:
    """Word `element` of the output of a PHILOX operator in step `step` (from 1)."""
    counter = (element // 4, operator, step & WORD_MASK, step >> 32)
    return philox(counter, split_key(seed))[element % 4]


def shuffle_index(seed: int, step: int, element: int, elements: int, population: int) -> int:
    """The sample at position `element` of a step's batch of `elements`, out of `population`."""
    epoch, x = divmod((step - 1) * elements + element, population)
    key = split_key(seed)
    for r in range(SHUFFLE_ROUNDS):
        x = _swap_or_not(x, r, epoch, key, population)
    return x


@lru_cache(SHUFFLE_ROUNDS)
def _pivots(index: int, low: int, high: int, key: Key) -> Counter:
    """The words of four rounds, the same for all samples of an epoch."""
    return philox((index, low, high, PIVOT_STREAM), key)


def _swap_or_not(x: int, r: int, epoch: int, key: Key, population: int) -> int:
    """Round r: x and its mirror image about the pivot are exchanged if the bit addressed by both is set."""
    low, high = epoch & WORD_MASK, epoch >> 32 & WORD_MASK
    word = _pivots(r // 4, low, high, key)[r % 4]
    mirror = ((word * population >> 32) - x) % population
    bit = philox((max(x, mirror), low, r, BIT_STREAM + high & WORD_MASK), key)[0] & 1
    return mirror if bit else x
