"""A deployment beside nodes that lag or undo blocks, failing creations and little money; and its registry file."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scene import Scene
from test_deployed_again import OTHER, asks_too_little_gas, count, endpoints, run

import vgame
from vgame.chain import agreed, deployment, registry
from vgame.chain.connection import Chain
from vgame.chain.deployment import ORDER, deploy, most_gas
from vgame.chain.registry import read, record
from vgame.chain.wallet import Wallet
from vgame.errors import ChainError, NotYet, VgameError

Truth = Callable[[], dict[str, Any]]


def shows_code_late(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
    """A balancer: code is read at a node that is behind, other state at one that is not."""
    newest = query["method"] == "eth_getCode" and query["params"][1] == "latest"
    return {"result": "0x"} if newest else truth()


def test_a_balancer_has_no_part_paid_twice(some_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    funded = some_scene.wallet()
    game = deploy(funded)
    with endpoints(some_scene.chain.url, shows_code_late) as urls:
        assert deploy(Wallet(Chain(urls), funded.key)) == game and count(funded) == 6


def test_a_creation_that_fails_is_paid_once(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where creations cost more than the EVM's rules say, and an endpoint estimates too little."""
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    monkeypatch.setattr(deployment, "most_gas", lambda name: int(most_gas(name) * 0.8))
    funded = real_scene.wallet()
    failed = pytest.raises(ChainError, match=r"the transaction that creates Pointwise failed with \d+ gas")
    with endpoints(real_scene.chain.url, asks_too_little_gas) as urls, failed:
        deploy(Wallet(Chain(urls), funded.key))
    assert count(funded) == 1


def test_an_honest_estimate_above_the_bound_counts(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "most_gas", lambda name: int(most_gas(name) * 0.8))
    wallet = real_scene.wallet()
    assert vgame.Game.deploy(wallet).check_parts() and count(wallet) == 6


def test_a_part_that_was_undone_is_not_used(real_scene: Scene) -> None:
    """A replaced block takes the transaction of the first part away: the second may not have its number."""
    wallet = real_scene.wallet()
    parts = deployment._Parts(wallet, ORDER)
    parts.first = 2  # two parts were created
    with pytest.raises(NotYet, match=r"shows 0 transactions of .*, where 2 have created parts: a block was replaced"):
        parts.deploy("Logged", OTHER)
    assert count(wallet) == 0


def test_a_false_count_is_not_searched(real_scene: Scene) -> None:
    wallet = real_scene.wallet()
    parts = deployment._Parts(wallet, ORDER)
    parts._next = lambda: 10**12  # type: ignore[method-assign]
    with pytest.raises(ChainError, match=r"shows 1000000000000 transactions"):
        parts.deploy("Pointwise")


def test_money_is_checked_for_all_that_the_wallet_asks(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each creation the wallet asks for its gas limit at twice the base fee; those before it are paid then."""
    wallet, base, tip = real_scene.wallet(), 10**10, 10**9
    asked: list[int] = []
    monkeypatch.setattr(Wallet, "_check_owned", lambda self, needed: asked.append(needed))
    monkeypatch.setattr(Chain, "fees", lambda self, of_all=False: (base, tip))
    for name in ORDER:
        creation = deployment._Creation(wallet, -1, most_gas(name))
        with pytest.raises(NotYet, match="is next, not -1"):  # it is not sent
            creation.send(None, b"")
    spent = [sum(most_gas(name) for name in ORDER[:n]) * (base + tip) for n in range(len(ORDER))]
    needed = max(before + most for before, most in zip(spent, asked, strict=True))
    parts = deployment._Parts(wallet, ORDER)
    monkeypatch.setattr(Chain, "balance", lambda self, address: needed - 1)
    with pytest.raises(ChainError, match=f"{needed} are needed"):
        parts._check_funds(ORDER[0])
    monkeypatch.setattr(Chain, "balance", lambda self, address: needed)
    parts._check_funds(ORDER[0])


def test_a_registry_of_a_complete_game_is_written_to_a_new_folder(real_scene: Scene, tmp_path: Path) -> None:
    wallet = real_scene.wallet()
    assert run(wallet).exit_code == 0
    done = run(wallet, "--registry", tmp_path / "new" / "games.json")
    assert done.exit_code == 0 and len(read(tmp_path / "new" / "games.json")) == 1 and count(wallet) == 6


@pytest.fixture
def game(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> vgame.Game:
    monkeypatch.setattr(registry, "LONGEST", 0.5)
    return vgame.Game.deploy(real_scene.wallet())


def test_a_lock_that_is_never_released_is_named(game: vgame.Game, tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(VgameError, match="another process has held the lock"):
        record(tmp_path / "games.json", game)
    os.close(held)
    record(tmp_path / "games.json", game)


def test_a_registry_that_would_be_too_large_is_not_written(game: vgame.Game, tmp_path: Path) -> None:
    """Its own indentation makes a compact file longer."""
    games = tmp_path / "games.json"
    games.write_text(json.dumps({str(n): {"game": OTHER} for n in range(1, 17_000)}, separators=(",", ":")))
    before = games.read_bytes()
    assert len(before) < registry.MOST
    with pytest.raises(VgameError, match="has no room"):
        record(games, game)
    assert games.read_bytes() == before


def test_a_linked_registry_stays_a_link(game: vgame.Game, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    link, target = tmp_path / "games.json", tmp_path / "shared" / "games.json"
    link.symlink_to(target)
    with pytest.raises(VgameError, match="a link to a file that is not there"):
        record(link, game)
    target.write_text('{"5": {"game": "' + OTHER + '"}}')
    record(link, game)
    assert link.is_symlink() and set(read(target)) == {"5", str(game.chain.chain_id)}


def test_one_game_has_one_address_in_any_letters(game: vgame.Game, tmp_path: Path) -> None:
    games = tmp_path / "games.json"
    games.write_text(json.dumps({str(game.chain.chain_id): {"game": game.address.lower()}}))
    record(games, game)
    assert read(games)[str(game.chain.chain_id)]["game"] == game.address
