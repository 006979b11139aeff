"""The game with the toy machine, on chains behind a socket, with real signatures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("game", "twin"))

from chains import anvil, is_installed
from frauds import SETUP
from providers import RANGE, Provider, pass_blocks
from proxy import LyingProxy, served
from scene import Scene, deployed, embedded_chain

from vgame.chain.events import Events


@pytest.fixture(
    scope="module",
    params=[pytest.param(anvil, marks=pytest.mark.node, id="anvil"), pytest.param(embedded_chain, id="embedded")],
)
def real_scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The scene on each of these chains."""
    with request.param() as chain:
        yield deployed(chain)


@pytest.fixture(scope="module")
def some_scene() -> Iterator[Scene]:
    """The scene on one chain, for tests that do not depend on the chain: the embedded one without anvil."""
    with (anvil if is_installed() or os.environ.get("CI") else embedded_chain)() as chain:
        yield deployed(chain)


@pytest.fixture(scope="module")
def node() -> Iterator[Scene]:
    """The scene on anvil."""
    with anvil() as chain:
        yield deployed(chain)


@pytest.fixture
def provider(some_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setattr(Events, "RANGE", RANGE)
    monkeypatch.setattr(Events, "MARGIN", 4)
    monkeypatch.setattr(Events, "SETTLED", 5)
    with served(LyingProxy, some_scene.chain.url) as (handler, url):
        provider = Provider(some_scene, handler, url)
        handler.lie = staticmethod(provider.answer)
        yield provider


@pytest.fixture(scope="module")
def born(some_scene: Scene) -> int:
    """The block of the game's deployment, by its definition; the chain has two jobs and many more blocks."""
    codes = (bytes(some_scene.chain.web3.eth.get_code(some_scene.address, n)) for n in range(10**6))
    block = next(n for n, code in enumerate(codes) if code)
    assert block > 2  # the parts come first
    some_scene.post(SETUP)
    pass_blocks(some_scene)
    some_scene.post(SETUP)
    return block
