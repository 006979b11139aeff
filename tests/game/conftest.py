"""The fast chain, rewound after every test, and its ghost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "twin"))

from bonus_stage import stage, trained  # noqa: F401
from chains import quick_chain
from false_replies import own_clock
from revm_chain import RevmChain
from revm_node import RevmNode
from scene import Scene, deployed, embedded_chain, fast_scene, watch

import vgame.agents.staking as staking
from vgame.agents import retry
from vgame.chain.connection import Chain
from vgame.chain.wallet import deploy_game


@pytest.fixture(scope="session")
def deployed_scene() -> Scene:
    """One deployment for the session."""
    return fast_scene()


@pytest.fixture
def scene(deployed_scene: Scene) -> Iterator[Scene]:
    """The game on the fast chain; every transaction is checked against the ghost, afterwards the chain is as before."""
    chain, node = deployed_scene.chain, deployed_scene.chain.node
    point, send, checks = node.snapshot(), node.methods["eth_sendTransaction"], list(chain.checks)
    deployed_scene.ghost = watch(deployed_scene)
    yield deployed_scene
    del node.send
    node.methods["eth_sendTransaction"] = send
    node.revert(point)
    chain.checks[:], chain.lost = checks, False  # of contracts that are rewound too


@pytest.fixture(scope="module")
def system() -> tuple[RevmChain, str]:
    """The real contracts on the fast chain."""
    chain = RevmChain(RevmNode())
    return chain, deploy_game(chain.wallet())


@pytest.fixture
def elsewhere(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a development chain; the process has its clock."""
    monkeypatch.setattr(scene.chain, "is_development", False)
    own_clock(monkeypatch, scene.chain)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Real nodes' replies, not a development chain; the process has its clock, and clocks are long enough."""
    with quick_chain() as chain:
        yield _far(chain, monkeypatch)


@pytest.fixture
def far_embedded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The same on the embedded chain, whose newest block is final."""
    with embedded_chain() as chain:
        yield _far(chain, monkeypatch)


def _far(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(staking, "auditor_shortcomings", lambda *_: [])
    found = deployed(chain)
    monkeypatch.setattr(chain, "is_development", False)
    own_clock(monkeypatch, chain, retry)
    return found


@pytest.fixture
def room_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An auditor whose clocks suffice for one dispute and no more."""
    too_short = ["auditor_budget is 1500, 2400 is needed"]
    monkeypatch.setattr(staking, "auditor_shortcomings", lambda *g: too_short if g[-1] else [])
