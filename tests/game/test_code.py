"""Agents play only with the code of their own version, in all its parts."""

from __future__ import annotations

import re
from dataclasses import astuple
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from eth.vm.forks.prague.computation import PragueComputation
from eth_utils.abi import function_signature_to_4byte_selector
from frauds import SETUP
from scene import NAME, Scene, deploy_code, embedded_chain, toy_contracts

from vgame.chain.abi import abi_type, artifact
from vgame.chain.game import Game
from vgame.chain.wallet import Wallet, deploy_game
from vgame.errors import ChainError, ContractError


def test_the_real_parts_are_recognised(scene: Scene) -> None:
    Game(scene.chain, deploy_game(scene.wallet())).check_parts()


def test_another_machine_under_the_real_game_is_refused(scene: Scene) -> None:
    with pytest.raises(ChainError, match="not the Referee"):
        Game(scene.chain, scene.address).check_parts()  # the toy machine


ROOT = Path(__file__).resolve().parents[2]
PARTS = ("Settlement", "Delivery", "Logged")


def parts(scene: Scene) -> tuple[Wallet, list[str], list[str]]:
    """Two referees, with the parts of each."""
    wallet = scene.wallet()
    referees = [wallet.deploy("Referee", wallet.deploy("Pointwise")) for _ in range(2)]
    good, other = ([r, *(wallet.deploy(name, r) for name in PARTS)] for r in referees)
    return wallet, good, other


def test_a_game_with_swapped_parts_is_refused(scene: Scene) -> None:
    """Each part has to answer a view of its own."""
    wallet, (referee, settlement, delivery, logged), _ = parts(scene)
    for wrong in ([delivery, settlement], [settlement, settlement], [delivery, delivery], [logged, delivery]):
        with pytest.raises(ChainError, match="VerificationGame refuses"):
            wallet.deploy("VerificationGame", referee, *wrong, logged)


def test_every_call_of_the_delivery_reaches_the_delivery_contract() -> None:
    """The game's list of calls is that of the interface, and no part hides a call of another."""
    selectors = {name: {_selector(e) for e in _functions(name)} for name in ("VerificationGame", *PARTS[:2])}
    listed = set(re.findall(r"IDelivery\.(\w+)\.selector", (ROOT / "contracts/Dispatch.sol").read_text()))
    shared = {"referee", "credits", "burnt"}
    assert listed == {e["name"] for e in _functions("Delivery")} - shared
    common = {_selector(e) for e in _functions("Delivery") if e["name"] in shared}
    for one, other in combinations(selectors.values(), 2):
        assert one & other == common


def _functions(name: str) -> list[dict[str, Any]]:
    return [e for e in artifact(name)["abi"] if e["type"] == "function"]


def _selector(entry: dict[str, Any]) -> bytes:
    return function_signature_to_4byte_selector(f"{entry['name']}({','.join(abi_type(i) for i in entry['inputs'])})")


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_game_with_parts_of_another_referee_is_refused(scene: Scene, part: int) -> None:
    """Its parts would accept jobs, or decide, by another referee."""
    wallet, good, other = parts(scene)
    wallet.deploy("VerificationGame", *good)
    mixed = [*good[:part], other[part], *good[part + 1 :]]
    with pytest.raises(ChainError, match="ForeignReferee"):
        wallet.deploy("VerificationGame", *mixed)


@pytest.mark.parametrize(
    ("part", "refusal"), [(1, "its Settlement has"), (2, "its Delivery has"), (3, ", in mode logged")]
)
def test_a_game_whose_constructor_checked_nothing_is_refused(scene: Scene, part: int, refusal: str) -> None:
    """The same code, deployed by another creation code, with other addresses in it."""
    wallet, good, other = parts(scene)
    game = wallet.deploy("VerificationGame", *good)
    Game(scene.chain, game).check_parts()
    code = scene.chain.node.code(game)[2:]
    for address, words in ((other[part], refusal), (good[0], f"not the {PARTS[part - 1]}")):
        forged = code.replace(good[part][2:].lower(), address[2:].lower())
        created = deploy_code(scene.chain, f"61{len(forged) // 2:04x}80600c6000396000f3{forged}")
        with pytest.raises(ChainError, match=words):
            Game(scene.chain, created).check_parts()


def test_a_game_with_the_referee_as_machine_of_mode_logged_is_refused(scene: Scene) -> None:
    """The game would accept orders in mode `logged` that no trainer can finish."""
    wallet, (referee, settlement, delivery, _), _ = parts(scene)
    with pytest.raises(ChainError, match="VerificationGame refuses"):
        wallet.deploy("VerificationGame", referee, settlement, delivery, referee)


def test_the_settlement_contract_alone_accepts_no_order(scene: Scene) -> None:
    """At its own address there are no disputes, so any claim would become final."""
    wallet = scene.wallet()
    referee = deploy_code(scene.chain, toy_contracts()["ToyReferee"]["bytecode"])
    alone = scene.make_game(scene.chain, wallet.deploy("Settlement", referee), wallet)
    order = (astuple(SETUP.spec), 1, NAME, SETUP.program.header)
    with pytest.raises(ContractError, match="OnlyDelegated"):
        alone.send("createJob", *order, value=SETUP.spec.reward)
    scene.make_game(scene.chain, deploy_game(wallet, referee), wallet).send(
        "createJob", *order, value=SETUP.spec.reward
    )


def test_no_game_is_deployed_on_a_chain_without_sha256(monkeypatch: pytest.MonkeyPatch) -> None:
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
