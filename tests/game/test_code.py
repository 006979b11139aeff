"""Agents play only with the code of their own version, in all four parts."""

from __future__ import annotations

import pytest
from scene import Scene

from vgame.errors import ChainError
from vgame.game.chain import deploy_game
from vgame.game.game import Game


def test_the_real_parts_are_recognised(scene: Scene) -> None:
    Game(scene.chain, deploy_game(scene.wallet())).check_machine()


def test_another_machine_under_the_real_game_is_refused(scene: Scene) -> None:
    with pytest.raises(ChainError, match="not the Referee"):
        Game(scene.chain, scene.address).check_machine()  # the toy machine


def test_another_settlement_is_refused(scene: Scene) -> None:
    wallet = scene.wallet()
    referee = wallet.deploy("Referee", wallet.deploy("Pointwise"))
    game = wallet.deploy("VerificationGame", referee, wallet.deploy("Pointwise"), referee)
    with pytest.raises(ChainError, match="not the Settlement"):
        Game(scene.chain, game).check_machine()


def test_an_address_without_the_game_is_refused(scene: Scene) -> None:
    with pytest.raises(ChainError, match="not the VerificationGame"):
        Game(scene.chain, "0x" + "12" * 20)


def test_a_settlement_that_asks_another_referee_is_refused(scene: Scene) -> None:
    """It would take jobs and claims "diverged" by that one's word."""
    wallet = scene.wallet()
    good, other = (wallet.deploy("Referee", wallet.deploy("Pointwise")) for _ in range(2))
    game = wallet.deploy("VerificationGame", good, wallet.deploy("Settlement", other), wallet.deploy("Logged", good))
    with pytest.raises(ChainError, match="settles by"):
        Game(scene.chain, game).check_machine()


def test_a_game_whose_logged_mode_asks_another_referee_is_refused(scene: Scene) -> None:
    wallet = scene.wallet()
    good, other = (wallet.deploy("Referee", wallet.deploy("Pointwise")) for _ in range(2))
    settlement, logged = wallet.deploy("Settlement", good), wallet.deploy("Logged", other)
    with pytest.raises(ChainError, match="in mode logged by"):
        Game(scene.chain, wallet.deploy("VerificationGame", good, settlement, logged)).check_machine()
    with pytest.raises(ChainError, match="not the Logged"):
        Game(scene.chain, wallet.deploy("VerificationGame", good, settlement, good)).check_machine()
