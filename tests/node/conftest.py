"""The game over the toy machine on chains with a socket, with real signatures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("game", "twin"))

from chains import anvil, is_installed
from scene import Scene, deployed, embedded_chain


@pytest.fixture(
    scope="module",
    params=[pytest.param(anvil, marks=pytest.mark.node, id="anvil"), pytest.param(embedded_chain, id="embedded")],
)
def real_scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """On each of them."""
    with request.param() as chain:
        yield deployed(chain)


@pytest.fixture(scope="module")
def some_scene() -> Iterator[Scene]:
    """On one of them, for what does not depend on the chain: on the embedded one where there is no anvil."""
    with (anvil if is_installed() or os.environ.get("CI") else embedded_chain)() as chain:
        yield deployed(chain)


@pytest.fixture(scope="module")
def node() -> Iterator[Scene]:
    """On anvil alone."""
    with anvil() as chain:
        yield deployed(chain)
