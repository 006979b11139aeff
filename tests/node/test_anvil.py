"""The same agents, unchanged, over JSON-RPC against real nodes: verdicts, errors, events and money as on the in-process
chain."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import astuple, replace

import pytest
from chains import anvil, wait_until
from frauds import SETUP, SPEC, SUM, Mistaken, place_of, state_lie, word_lie
from refusals import NO_BASIS
from scene import NAME, Scene, due
from toy import Lies

from vgame.chain import connection as chain_module
from vgame.chain import wallet as wallet_module
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.chain.wallet import Wallet, deploy_game
from vgame.errors import ChainError, ContractError


def test_a_fraud_is_decided_by_arithmetic(real_scene: Scene) -> None:
    play = real_scene.claimed(SETUP, word_lie(6, SUM, 4, 1)[0])
    auditor = play.auditor()
    assert play.run_to_end(play.trainer, auditor) is Phase.CONVICTED
    assert play.verdicts == [("Convicted", 0, "element")]
    v = play.client.verdict(play.id)
    assert (v.level, v.step, v.operator, v.index, v.part) == place_of(6, SUM, 4, 1)
    assert (play.paid(auditor), play.paid(play.trainer)) == (SPEC.auditor_bond + SPEC.trainer_bond // 2, 0)


def test_a_false_accusation_is_dismissed(real_scene: Scene) -> None:
    play = real_scene.claimed(SETUP)
    assert play.run_to_end(play.trainer, play.auditor(state_lie(6, 5, 0)[0], Mistaken)) is Phase.FINAL
    assert play.verdicts == [("Dismissed", 0, "opening")]
    assert play.paid(play.trainer) == SPEC.trainer_bond + SPEC.reward + SPEC.auditor_bond // 2


def test_a_silent_cheat_loses_by_its_clock(real_scene: Scene) -> None:
    """The chain's own clock is moved."""
    play = real_scene.claimed(SETUP, Lies(initial={(1, 0): 0}))
    play.trainer.step = lambda: False
    auditor = play.auditor()
    assert play.run_to_end(play.trainer, auditor) is Phase.CONVICTED
    assert play.verdicts == [("Convicted", 0, "timeout")]


def test_errors_come_with_their_names_and_arguments(real_scene: Scene) -> None:
    play = real_scene.claimed(SETUP)
    game = real_scene.game()
    with pytest.raises(ContractError) as caught:
        game.send("challenge", play.id, 1, 0, bytes(32), NO_BASIS, value=1)
    assert (caught.value.name, caught.value.args_) == ("WrongValue", (1, SPEC.auditor_bond))
    with pytest.raises(ContractError) as caught:
        game.turn(play.id, 3)
    assert (caught.value.name, caught.value.args_) == ("DisputeClosed", (0,))
    with pytest.raises(ChainError, match="send it some ether"):
        game.send("challenge", play.id, 1, 0, bytes(32), NO_BASIS, value=10**21)


@pytest.mark.parametrize(
    ("field", "terms"),
    [("auditorBond", {"auditor_bond": 1}), ("trainerBond", {"trainer_bond": 1, "reward": 0, "diverged_pay": 0})],
)
def test_a_bond_that_does_not_pay_for_two_disputes_at_the_base_fee(
    real_scene: Scene, field: str, terms: dict[str, int]
) -> None:
    """On the fast chain gas is free."""
    base = real_scene.chain.fees()[0]
    assert base > 0
    spec = replace(SPEC, **terms)
    game = real_scene.game()
    with pytest.raises(ContractError) as caught:
        game.send("createJob", astuple(spec), 1, NAME, SETUP.program.header, value=spec.reward)
    assert (caught.value.name, caught.value.args_) == ("BadSpec", (field,))
    enough = replace(spec, **{name: 1_200_000 * base for name in terms if name.endswith("bond")})
    game.send("createJob", astuple(enough), 1, NAME, SETUP.program.header, value=spec.reward)


def test_a_call_that_reverts_in_its_block_is_reported(real_scene: Scene) -> None:
    """Its estimate was right, but another transaction was included before it."""
    play = real_scene.claimed(SETUP, word_lie(6, 1, 7)[0])
    first, second = play.auditor(), play.auditor()
    call = due(first)
    call.send(first.game)
    reveal = play.run_until("select", play.trainer, first)
    estimated = second.game
    send = estimated.wallet.send

    def late(*args: object, **options: object) -> object:
        reveal.send(first.game)
        estimated.wallet.account = first.game.wallet.account
        estimated.wallet.address = first.game.wallet.address
        return send(*args, **options)

    estimated.wallet.address = first.game.wallet.address
    estimated.wallet.send = late
    with pytest.raises(ContractError) as caught:
        reveal.send(estimated)
    assert caught.value.name == "Elsewhere"


def test_events_and_views_agree(real_scene: Scene) -> None:
    play = real_scene.claimed(SETUP, word_lie(6, 1, 7)[0])
    auditor = play.auditor()
    play.run(play.trainer, auditor)
    selected = [a for name, a in play.events("Selected")]
    d = play.dispute()
    assert (selected[-1]["place"], selected[-1]["node"]) == (d.position, d.node)
    (challenged,) = play.events("Challenged")
    assert challenged[1]["auditor"] == auditor.address == d.auditor
    assert len(play.client.events("Revealed", play.id)) == len(play.events("Revealed"))
    stranger = "0x" + "11" * 20
    assert [e.args for e in play.client.events("Challenged", auditor=auditor.address)] == [challenged[1]]
    assert play.client.events("Challenged", auditor=stranger) == []


def test_the_whole_system_can_be_deployed(real_scene: Scene) -> None:
    """With the real referee: within the gas of one transaction each, and recognised by its code."""
    wallet = real_scene.wallet()
    address = deploy_game(wallet)
    game = Game(real_scene.chain, address, wallet)
    assert game.burnt() == 0
    with pytest.raises(ChainError, match="is not the VerificationGame"):
        Game(real_scene.chain, wallet.address, wallet)


def test_a_chain_that_is_down_is_one_clear_error(real_scene: Scene) -> None:
    with pytest.raises(ChainError, match="is the node running"):
        Chain("http://127.0.0.1:9")
    with pytest.raises(ChainError, match="chain 1 was expected"):
        Chain(real_scene.chain.url, 1)
    assert wait_until(lambda: real_scene.chain.now() > 0, 5)


@pytest.fixture
def slow_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chain]:
    """An anvil that mines only on request; waiting for a transaction ends after half a second."""
    for module in (chain_module, wallet_module):
        monkeypatch.setattr(module, "RECEIPT_TIMEOUT", 0.5)
    with anvil() as chain:
        chain.web3.provider.make_request("evm_setAutomine", [False])
        yield chain


@pytest.mark.node
def test_a_transaction_that_is_not_included_is_replaced_at_a_higher_price(slow_node: Chain) -> None:
    """O7: also one of a killed process, whose nonce is used."""
    wallet = Wallet(slow_node, "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80")
    tx = {"type": 2, "chainId": slow_node.chain_id, "to": wallet.address, "value": 1, "gas": 21_000, "nonce": 0}
    base, tip = slow_node.fees()
    raw = wallet.account.sign_transaction(tx | {"maxFeePerGas": 2 * base + tip, "maxPriorityFeePerGas": tip})
    slow_node.web3.eth.send_raw_transaction(raw.raw_transaction)  # and then the process is killed
    timer = threading.Timer(1.8, lambda: slow_node.web3.provider.make_request("evm_mine", []))
    timer.start()
    receipt = wallet.send(wallet.address, b"", value=2, gas=21_000)
    assert receipt["status"] == 1 and receipt["effectiveGasPrice"] > base + tip
    sent = slow_node.web3.eth.get_transaction(receipt["transactionHash"])
    assert (sent["nonce"], sent["value"]) == (0, 2)
    assert slow_node.web3.eth.get_transaction_count(wallet.address) == 1
