"""The fast chain, rewound after every test, and its ghost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "twin"))

from bonus_stage import stage, trained  # noqa: F401
from revm_chain import RevmChain
from revm_node import RevmNode
from scene import Scene, fast_scene, watch

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
