"""Agents play only with the code of their own version, in all its parts."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from eth.vm.forks.prague.computation import PragueComputation
from frauds import SETUP
from scene import Scene, deploy_code, embedded_chain, toy_contracts

from vgame.chain.game import Game
from vgame.chain.wallet import Wallet, deploy_game
from vgame.errors import ChainError, ContractError


def test_the_real_parts_are_recognised(scene: Scene) -> None:
    Game(scene.chain, deploy_game(scene.wallet())).check_machine()


def test_another_machine_under_the_real_game_is_refused(scene: Scene) -> None:
    with pytest.raises(ChainError, match="not the Referee"):
        Game(scene.chain, scene.address).check_machine()  # the toy machine


def settlement(wallet: Wallet, referee: str, delivery: str | None = None) -> str:
    return wallet.deploy("Settlement", referee, delivery or wallet.deploy("Delivery", referee))


def parts(scene: Scene) -> tuple[Wallet, list[str], list[str]]:
    """Two referees, with the settlement and the logged machine of each."""
    wallet = scene.wallet()
    referees = [wallet.deploy("Referee", wallet.deploy("Pointwise")) for _ in range(2)]
    good, other = ([r, settlement(wallet, r), wallet.deploy("Logged", r)] for r in referees)
    return wallet, good, other


def test_a_delivery_of_another_referee_makes_no_settlement(scene: Scene) -> None:
    wallet = scene.wallet()
    referees = [wallet.deploy("Referee", wallet.deploy("Pointwise")) for _ in range(2)]
    with pytest.raises(ChainError, match="ForeignReferee"):
        settlement(wallet, referees[0], wallet.deploy("Delivery", referees[1]))


@pytest.mark.parametrize("part", [1, 2])
def test_parts_of_another_referee_make_no_game(scene: Scene, part: int) -> None:
    """It would take jobs, or decide, by that one's word."""
    wallet, good, other = parts(scene)
    wallet.deploy("VerificationGame", *good)
    mixed = [*good[:part], other[part], *good[part + 1 :]]
    with pytest.raises(ChainError, match="ForeignReferee"):
        wallet.deploy("VerificationGame", *mixed)


@pytest.mark.parametrize(("part", "refusal"), [(1, "settles by"), (2, "in mode logged by")])
def test_a_game_whose_constructor_checked_nothing_is_refused(scene: Scene, part: int, refusal: str) -> None:
    """The same code, made by another creation code, with other addresses in it."""
    wallet, good, other = parts(scene)
    game = wallet.deploy("VerificationGame", *good)
    Game(scene.chain, game).check_machine()
    code = scene.chain.node.code(game)[2:]
    for address, words in ((other[part], refusal), (good[0], f"not the {('Settlement', 'Logged')[part - 1]}")):
        forged = code.replace(good[part][2:].lower(), address[2:].lower())
        created = deploy_code(scene.chain, f"61{len(forged) // 2:04x}80600c6000396000f3{forged}")
        with pytest.raises(ChainError, match=words):
            Game(scene.chain, created).check_machine()


def test_a_settlement_alone_takes_no_order(scene: Scene) -> None:
    """At its own address there are no disputes, so any claim would become final."""
    wallet = scene.wallet()
    referee = deploy_code(scene.chain, toy_contracts()["ToyReferee"]["bytecode"])
    alone = scene.make_game(scene.chain, settlement(wallet, referee), wallet)
    order = (astuple(SETUP.spec), 1, SETUP.program.header)
    with pytest.raises(ContractError, match="OnlyDelegated"):
        alone.send("createJob", *order, value=SETUP.spec.reward)
    scene.make_game(scene.chain, deploy_game(wallet, referee), wallet).send(
        "createJob", *order, value=SETUP.spec.reward
    )


def test_a_chain_without_sha256_gets_no_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing precompile is an account without code: a call of it succeeds and answers nothing."""
    with embedded_chain() as chain:
        wallet = Wallet(chain)
        chain.fund(wallet.address, 10**18)
        referee = deploy_code(chain, toy_contracts()["ToyReferee"]["bytecode"])
        deploy_game(wallet, referee)
        others = {a: p for a, p in PragueComputation.get_precompiles().items() if int.from_bytes(a) != 2}
        monkeypatch.setattr(PragueComputation, "_precompiles", others)
        with pytest.raises(ChainError, match="NoSha256"):
            deploy_game(wallet, referee)
