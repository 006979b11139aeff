"""The harnesses of tests/contracts/, deployed once per session."""

from __future__ import annotations

import pytest
from deployed import Contract, deploy


@pytest.fixture(scope="session")
def arithmetic() -> Contract:
    """Binary32, Accumulator, Reduction and Philox."""
    return deploy("ArithmeticHarness")


@pytest.fixture(scope="session")
def elementary() -> Contract:
    """Elementary, its intervals, and a twin with margins that are too wide."""
    return deploy("ElementaryHarness")
