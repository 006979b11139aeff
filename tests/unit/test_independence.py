"""Whole training steps under the worst library that keeps its promises: not one bit of any root changes, for any
model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from perturbed import perturbed_products
from test_jobs import SHIPPED, USER, prepared
from wide import of_many

from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle, load_bundle


@pytest.fixture(scope="module")
def bundles(jobs: Path) -> dict[str, Bundle]:
    return {name: load_bundle(prepared(name, jobs)) for name in (*SHIPPED, *USER)}


def roots(bundle: Bundle, library: AbstractContextManager, steps: int) -> list[bytes]:
    """State roots of the first steps."""
    with library:
        executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, "correct")
        state, found = executor.initial(bundle.state), []
        for step in range(1, steps + 1):
            state = executor.step(step, state).state
            found.append(tensors_root(Kind.STATE, state))
    return found


@pytest.mark.parametrize("name", of_many([*SHIPPED, *USER], "digits", *USER))
@pytest.mark.parametrize(
    "kind,steps",
    [
        ("midpoint", 1),
        pytest.param("midpoint", 5, marks=pytest.mark.nightly),
        pytest.param("random", 5, marks=pytest.mark.nightly),
    ],
)
def test_errors_within_the_bound_change_no_root(bundles: dict[str, Bundle], name: str, kind: str, steps: int) -> None:
    assert roots(bundles[name], perturbed_products(kind), steps) == roots(bundles[name], nullcontext(), steps)


def test_errors_beyond_the_bound_change_a_root(bundles: dict[str, Bundle]) -> None:
    """Red twin."""
    broken = perturbed_products("midpoint", 2.0**26)
    assert roots(bundles["digits"], broken, 1) != roots(bundles["digits"], nullcontext(), 1)
