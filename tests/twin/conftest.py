"""The harnesses of tests/contracts/, deployed once per session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deployed import Contract, compile_ahead, deploy

HERE = Path(__file__).parent


#: By fixture.
HARNESSES = {"arithmetic": "ArithmeticHarness", "elementary": "ElementaryHarness", "logged": "LoggedHarness"}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile ahead if the tests of other folders come first."""
    needed = {name for item in session.items if item.path.parent == HERE for name in item.fixturenames}
    others = any(item.path.parent != HERE for item in session.items)
    first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if others and first and not session.config.option.collectonly:
        compile_ahead([harness for fixture, harness in HARNESSES.items() if fixture in needed])


@pytest.fixture(scope="session")
def arithmetic() -> Contract:
    """Binary32, Accumulator, Reduction and Philox."""
    return deploy(HARNESSES["arithmetic"])


@pytest.fixture(scope="session")
def elementary() -> Contract:
    """Elementary, its intervals, and a twin with margins that are too wide."""
    return deploy(HARNESSES["elementary"])


@pytest.fixture(scope="session")
def logged() -> Contract:
    """LoggedSum and Grid."""
    return deploy(HARNESSES["logged"])
