"""Differences of real nodes: minimum tips, fee caps, the form of a revert's error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from eth_account.typed_transactions import TypedTransaction
from frauds import SETUP, SPEC
from hexbytes import HexBytes
from lying import Table, Truth, table
from proxy import Request
from scene import Scene

from vgame.chain.connection import GWEI
from vgame.chain.records import Phase
from vgame.chain.wallet import FEE_VARIABLE
from vgame.dispute.trainer import Trainer
from vgame.errors import ChainError, ContractError, VgameError

LOW = [
    "transaction underpriced: tip needed {least}, tip permitted {tip}",
    "transaction underpriced: gas tip cap {tip}, minimum needed {least}",
    "Gas price below configured minimum gas price",
    "FeeTooLow, EffectivePriorityFeePerGas too low {tip} < {least}",
    "transaction priority fee below minimum required priority fee {least}",
]


@pytest.fixture
def t(some_scene: Scene) -> Iterator[Table]:
    with table(some_scene, play=some_scene.post(SETUP)) as t:
        yield t


def offered(query: Request) -> tuple[int, int, int]:
    """Tip, most per gas, and gas of a transaction."""
    tx = TypedTransaction.from_bytes(HexBytes(query["params"][0])).as_dict()
    return tx["maxPriorityFeePerGas"], tx["maxFeePerGas"], tx["gas"]


def error(message: str, **more: Any) -> Request:
    return {"error": {"code": -32000, "message": message} | more}


def least_tip(least: int, message: str, suggested: int | None = None) -> Callable[[Request, Truth], Request]:
    """A node with a minimum tip."""

    def lie(query: Request, truth: Truth) -> Request:
        if query["method"] == "eth_maxPriorityFeePerGas":
            return {"result": hex(least if suggested is None else suggested)}
        if query["method"] == "eth_sendRawTransaction" and (tip := offered(query)[0]) < least:
            return error(message.format(least=least, tip=tip))
        return truth()

    return lie


@pytest.mark.parametrize("least", [25, 30, 100])
@pytest.mark.parametrize("message", LOW)
def test_a_node_with_a_minimum_tip_is_paid_it(t: Table, least: int, message: str) -> None:
    trainer = t.seat(Trainer)
    t.proxy.lie = staticmethod(least_tip(least * GWEI, message))
    before = t.play.scene.chain.balance(trainer.address)
    trainer.accept()
    assert t.play.job.phase is Phase.ACCEPTED
    paid = before - t.play.scene.chain.balance(trainer.address) - SPEC.trainer_bond
    assert paid < 200_000 * (least + 4) * GWEI  # not more than its minimum


@pytest.mark.parametrize("message", LOW)
def test_a_minimum_tip_that_the_node_does_not_suggest_is_found(t: Table, message: str) -> None:
    trainer = t.seat(Trainer)
    t.proxy.lie = staticmethod(least_tip(25 * GWEI, message, GWEI))
    trainer.accept()
    assert t.play.job.phase is Phase.ACCEPTED


def test_no_tip_above_the_owners_limit(t: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FEE_VARIABLE, "20")
    trainer, offers = t.seat(Trainer), []
    lie = least_tip(25 * GWEI, LOW[2])

    def noted(query: Request, truth: Truth) -> Request:
        if query["method"] == "eth_sendRawTransaction":
            offers.append(offered(query)[1])
        return lie(query, truth)

    t.proxy.lie = staticmethod(noted)
    with pytest.raises(ChainError, match="below configured minimum"):
        trainer.accept()
    assert max(offers) <= 20 * GWEI and t.play.job.phase is Phase.CREATED


@pytest.mark.parametrize(
    "message", ["insufficient funds for gas * price + value", "nonce too low", "intrinsic gas too low"]
)
def test_other_refusals_do_not_raise_the_offer(t: Table, message: str) -> None:
    trainer, offers = t.seat(Trainer), []

    def lie(query: Request, truth: Truth) -> Request:
        if query["method"] != "eth_sendRawTransaction":
            return truth()
        offers.append(offered(query))
        return error(message)

    t.proxy.lie = staticmethod(lie)
    with pytest.raises(ChainError, match=message[:12]):
        trainer.accept()
    assert len(offers) == 1


@pytest.mark.parametrize("excess", [1, 50, 99])
def test_the_offer_falls_below_the_cap_of_a_node(t: Table, excess: int) -> None:
    """The cap lies between the base fee's cost and the first offer, at `excess` hundredths of the way."""
    trainer, sent = t.seat(Trainer), []
    base, tip = t.chain.fees()

    def lie(query: Request, truth: Truth) -> Request:
        if query["method"] != "eth_sendRawTransaction":
            return truth()
        _, most, gas = offered(query)
        sent.append(most * gas)
        cap = gas * (base + (base + tip) * excess // 100)
        if most * gas > cap:
            return error(f"tx fee ({most * gas / 1e18:.2f} ether) exceeds the configured cap ({cap / 1e18:.2f} ether)")
        return truth()

    t.proxy.lie = staticmethod(lie)
    trainer.accept()
    assert t.play.job.phase is Phase.ACCEPTED and len(sent) > 1 and sent == sorted(sent, reverse=True)


def test_a_cap_below_the_base_fee_is_named(t: Table) -> None:
    def lie(query: Request, truth: Truth) -> Request:
        capped = error("tx fee (1.50 ether) exceeds the configured cap (1.00 ether)")
        return capped if query["method"] == "eth_sendRawTransaction" else truth()

    trainer = t.seat(Trainer)
    t.proxy.lie = staticmethod(lie)
    with pytest.raises(ChainError, match="exceeds the configured cap"):
        trainer.accept()


#: Forms in which nodes and the services before them give a revert's data.
FORMS: dict[str, Callable[[str], Request]] = {
    "geth": lambda d: {"code": 3, "message": "execution reverted", "data": d},
    "parity": lambda d: {"code": -32015, "message": "VM execution error.", "data": f"Reverted {d}"},
    "besu": lambda d: {"code": -32000, "message": "Execution reverted", "data": d},
    "hardhat": lambda d: {"code": -32603, "message": "Error: VM Exception", "data": {"message": "reverted", "data": d}},
    "ganache": lambda d: {
        "code": -32000,
        "message": "revert",
        "data": {"0x" + 64 * "1": {"error": "revert", "return": d}},
    },
    "wrapped": lambda d: {"code": -32603, "message": "Internal", "data": {"originalError": {"code": 3, "data": d}}},
    "listed": lambda d: {"code": -32000, "message": "call failed", "data": [{"result": d}]},
    "message": lambda d: {"code": -32000, "message": f"execution reverted: {d}"},
    "moonbeam": lambda d: {"code": -32603, "message": f"VM Exception while processing transaction: revert {d}"},
    "quoted": lambda d: {"code": -32000, "message": f'reverted, data: "{d}", no reason'},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_revert_is_recognised_in_every_form(t: Table, form: str) -> None:
    """Harmless errors are recognised, and messages show the contract's own name of the error."""
    game = t.play.scene.game()
    with pytest.raises(ContractError) as plain:
        game._call("turn", t.play.id, 9)

    def lie(query: Request, truth: Truth) -> Request:
        reply = truth()
        data = reply.get("error", {}).get("data")
        return {"error": FORMS[form](data)} if data else reply

    asking = t.seat(Trainer).game
    t.proxy.lie = staticmethod(lie)
    with pytest.raises(ContractError) as found:
        asking._call("turn", t.play.id, 9)
    assert (found.value.name, found.value.args_) == (plain.value.name, plain.value.args_)
    with pytest.raises(ContractError) as found:  # where gas is estimated too
        asking.send("withdraw", asking.wallet.address)
    assert found.value.name == "NothingToWithdraw"


@pytest.mark.parametrize("data", ["0xdeadbeef", "0x", "0x1234", {"data": 7}, [["0xdeadbeef"]]])
def test_other_errors_get_no_name_of_the_contract(t: Table, data: Any) -> None:
    asking = t.seat(Trainer).game

    def lie(query: Request, truth: Truth) -> Request:
        reply = truth()
        return {"error": {"code": -32000, "message": "no", "data": data}} if "error" in reply else reply

    t.proxy.lie = staticmethod(lie)
    with pytest.raises(VgameError) as found:
        asking._call("turn", t.play.id, 9)
    assert not isinstance(found.value, ContractError) or not found.value.name.isalpha()
