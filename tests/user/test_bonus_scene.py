"""The demonstration's scene of a bonus: both marks end as expected, and the game's money adds up afterwards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import vgame
from vgame.demo.bonuses import Bonuses
from vgame.demo.result import Result

WHO = ("client", "trainer", "auditor of the number")


def test_both_bonuses_of_the_demonstration_end_as_expected(tmp_path: Path) -> None:
    with vgame.embedded_chain() as node:
        chain = vgame.connect(node.url)
        wallets = dict(zip(WHO, (vgame.Wallet(chain, key) for key in node.keys), strict=False))
        text: list[str] = []
        stage = SimpleNamespace(
            folder=tmp_path, chain=chain, wallets=wallets, nonce=0, travel=chain.advance, result=Result(),
            game=vgame.Game.deploy(wallets["client"]), screen=SimpleNamespace(scene=text.append, say=text.append),
            page=SimpleNamespace(titles={}, programs=SimpleNamespace(add=lambda bundle: None)),
        )  # fmt: skip
        Bonuses(stage).play()
        game = stage.game
        kept = sum(game.credits(wallet.address) for wallet in wallets.values()) + game.burnt()
        assert kept == chain.balance(game.address) and game.burnt() > 0
    assert [(p.outcome, p.refused, p.right) for p in stage.result.prizes] == [
        ("paid", "", True),
        ("returned", "NotTrained", True),
    ]
    assert "a false number was convicted" in text[-1]
