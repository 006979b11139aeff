"""Philox4x32-10 against the published known answers, and the shuffle as a family of permutations."""

from __future__ import annotations

import pytest

from vgame.arithmetic.reference.philox import philox, random_word, shuffle_index, split_key

ALL_ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the three philox4x32 10 lines of Random123's kat_vectors
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple, key: tuple, expected: tuple) -> None:
    assert philox(counter, key) == expected


def test_one_bit_changes_the_words() -> None:
    """The damaged twin: every bit of counter and key matters."""
    original = philox((0, 0, 0, 0), (0, 0))
    for bit in range(192):
        words = [(1 << bit) >> 32 * i & ALL_ONES for i in range(6)]
        assert philox(tuple(words[:4]), tuple(words[4:])) != original


def test_random_words_address_the_counter() -> None:
    """Word e mod 4 of counter (e div 4, operator, step mod 2^32, step div 2^32) under key (seed mod 2^32, seed div
    2^32)."""
    seed, step, operator = 0x0123456789ABCDEF, (5 << 32) + 6, 7
    for element in (0, 1, 2, 3, 4, 2**31 - 1):
        words = philox((element // 4, operator, 6, 5), (0x89ABCDEF, 0x01234567))
        assert random_word(seed, step, operator, element) == words[element % 4]
    assert split_key(seed) == (0x89ABCDEF, 0x01234567)


def test_known_shuffle() -> None:
    """Fixed for ever by docs/formats.md section 5."""
    assert [shuffle_index(1, 1, i, 10, 10) for i in range(10)] == [2, 1, 5, 3, 7, 4, 0, 9, 8, 6]
    assert [shuffle_index(1, 2, i, 10, 10) for i in range(10)] == [3, 5, 2, 1, 8, 4, 0, 7, 6, 9]


@pytest.mark.parametrize("population", [1, 2, 3, 7, 10, 32, 100, 257])
def test_each_epoch_is_a_permutation(population: int) -> None:
    batch = 5
    steps = -(-4 * population // batch)
    indices = [shuffle_index(3, 1 + p // batch, p % batch, batch, population) for p in range(steps * batch)]
    epochs = [indices[e * population : (e + 1) * population] for e in range(4)]
    assert all(sorted(epoch) == list(range(population)) for epoch in epochs)
    if population >= 10:
        assert len({tuple(epoch) for epoch in epochs}) == 4


def test_every_place_is_reached() -> None:
    """Over many seeds each of five samples comes first about equally often (five standard deviations)."""
    counts = [0] * 5
    for seed in range(1_000):
        counts[shuffle_index(seed, 1, 0, 1, 5)] += 1
    assert all(abs(count - 200) < 64 for count in counts)
