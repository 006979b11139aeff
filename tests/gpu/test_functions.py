"""Elementary functions, random words and the shuffle by the Triton kernels: the words of their twins."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from certified_data import EDGES

from vgame.arithmetic import gate
from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.reference.philox import random_word, shuffle_index
from vgame.arithmetic.torch import elementary
from vgame.arithmetic.torch.philox import random_words, shuffle_indices
from vgame.commit.tensor import from_words, to_words
from vgame.execute.kernels import Correct

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SEED = 0x0123456789ABCDEF


def inputs() -> torch.Tensor:
    """Random words, numbers of moderate size, every edge, every exceptional input and its neighbours."""
    draw = np.random.default_rng(5)
    exceptions = np.array([word for pairs in EXCEPTIONS.values() for word, _ in pairs], np.uint32)
    parts = [
        draw.integers(0, 2**32, 3000, dtype=np.uint32),
        (4 * draw.normal(size=3000)).astype(np.float32).view(np.uint32),
    ]
    return from_words(
        np.concatenate([*parts, np.array(EDGES, np.uint32), exceptions, exceptions + 1, exceptions - 1]), integer=False
    )


@pytest.mark.parametrize("function", [*ELEMENTARY, Function.SQRT], ids=lambda f: f.name)
def test_functions(function: Function) -> None:
    x = inputs()
    by_kernel = Correct().map(function, x)
    with gate.kernels(False):
        twin = Correct().map(function, x)
    assert np.array_equal(to_words(by_kernel), to_words(twin))


@pytest.mark.parametrize("function", [f for f in ELEMENTARY if EXCEPTIONS[f]], ids=lambda f: f.name)
def test_exceptions_matter(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red twin: without the table every exceptional input comes out wrong."""
    from vgame.arithmetic.triton import elementary as kernels

    given, right = (
        from_words(np.array(column, np.uint32), integer=False) for column in zip(*EXCEPTIONS[function], strict=True)
    )
    assert np.array_equal(to_words(elementary.evaluate(function, given)), to_words(right))
    monkeypatch.setitem(kernels._EXCEPTIONS, function, ())
    assert not np.any(to_words(elementary.evaluate(function, given)) == to_words(right))


@pytest.mark.parametrize("step", [1, 2**32, 2**33 + 5])
def test_random_words(step: int) -> None:
    found = to_words(random_words(SEED, step, 3, 1027, torch.tensor([step])))
    assert found.tolist() == [random_word(SEED, step, 3, e) for e in range(1027)]


@pytest.mark.parametrize("population", [97, 2**31 - 1])
def test_shuffle(population: int) -> None:
    found = shuffle_indices(SEED, 7, 33, population, torch.tensor([7]))
    assert found.tolist() == [shuffle_index(SEED, 7, e, 33, population) for e in range(33)]


def test_the_step_is_that_of_the_clock_not_of_the_argument() -> None:
    """Kernels read the step on the device: a recorded step is replayed for another one."""
    assert torch.equal(random_words(SEED, 1, 3, 64, torch.tensor([9])), random_words(SEED, 9, 3, 64, torch.tensor([9])))
    assert not torch.equal(
        random_words(SEED, 9, 3, 64, torch.tensor([8])), random_words(SEED, 9, 3, 64, torch.tensor([9]))
    )
