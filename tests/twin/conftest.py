"""The harnesses of tests/contracts/, deployed once per session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deployed import Contract, compile_ahead, deploy

HERE = Path(__file__).parent


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests of other folders come first."""
    mine = {item.path.parent == HERE for item in session.items}
    first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if mine == {True, False} and first and not session.config.option.collectonly:
        compile_ahead(("ArithmeticHarness", "ElementaryHarness", "LoggedHarness"))


@pytest.fixture(scope="session")
def arithmetic() -> Contract:
    """Binary32, Accumulator, Reduction and Philox."""
    return deploy("ArithmeticHarness")


@pytest.fixture(scope="session")
def elementary() -> Contract:
    """Elementary, its intervals, and a twin with margins that are too wide."""
    return deploy("ElementaryHarness")
