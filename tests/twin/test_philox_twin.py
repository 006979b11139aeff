"""contracts/arithmetic/Philox.sol equals vgame/arithmetic/reference/philox.py."""

from __future__ import annotations

from random import Random

import pytest
from deployed import Contract

from vgame.arithmetic.reference.philox import philox, random_word, shuffle_index, split_key

pytestmark = pytest.mark.node
WORDS = [0, 1, 3, 4, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def join(words: tuple[int, ...]) -> int:
    return sum(word << 96 - 32 * i for i, word in enumerate(words))


def test_philox_equals_reference(arithmetic: Contract) -> None:
    random = Random(1)
    for _ in range(1_000):
        counter = tuple(random.choice((random.choice(WORDS), random.getrandbits(32))) for _ in range(4))
        seed = random.choice((0, 1, 2**32 - 1, 2**32, 2**64 - 1, random.getrandbits(64)))
        assert arithmetic.call("philox", join(counter), seed) == join(philox(counter, split_key(seed)))


def test_random_words_equal_reference(arithmetic: Contract) -> None:
    random = Random(2)
    elements = [*range(40), 2**31 - 1, 2**31 - 2, *(random.getrandbits(31) for _ in range(200))]
    for seed, step, operator in [(0, 1, 0), (2**64 - 1, 2**32 - 1, 2**24 - 1), (2**32, 2**32, 7), (5, 2**56 - 1, 1)]:
        expected = [random_word(seed, step, operator, e) for e in elements]
        assert list(arithmetic.call("randomWords", seed, step, operator, elements)) == expected


@pytest.mark.parametrize("population", [1, 2, 3, 5, 64, 97])
def test_each_epoch_is_a_permutation(arithmetic: Contract, population: int) -> None:
    """Three epochs in batches that do not divide the population, on chain and off."""
    batch = max(1, population // 3 + 1)
    steps = -(-3 * population // batch)
    indices = list(arithmetic.call("shuffle", 11, 1, steps, batch, population))
    assert indices == [shuffle_index(11, 1 + p // batch, p % batch, batch, population) for p in range(steps * batch)]
    epochs = [indices[e * population : (e + 1) * population] for e in range(3)]
    assert all(sorted(epoch) == list(range(population)) for epoch in epochs)
    if population > 60:
        assert epochs[0] != epochs[1] != epochs[2]
        assert list(arithmetic.call("shuffle", 12, 1, steps, batch, population)) != indices


def test_shuffle_at_the_edges(arithmetic: Contract) -> None:
    """Large populations, late steps (epochs of one, two and three words), seeds at the borders."""
    for seed, step, elements, population in [
        (0, 1, 4, 2**31 - 1),
        (2**64 - 1, 2**32, 4, 50_000),
        (2**32, 2**40 + 17, 3, 7),
        (1, 2**63, 2**31 - 1, 1_000_003),
        (9, 2**32 - 1, 2**31 - 1, 2),
        (5, 2**64 - 1, 2**31 - 1, 1),
    ]:
        for element in (0, 1, elements // 2, elements - 1):
            expected = shuffle_index(seed, step, element, elements, population)
            assert 0 <= expected < population
            assert arithmetic.call("shuffleIndex", seed, step, element, elements, population) == expected
