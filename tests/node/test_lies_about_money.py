"""A dishonest endpoint with false chains, fees, tips and malformed replies: nothing is signed beyond the user's
limits."""

from __future__ import annotations

import sys
from typing import Any

import forked
import pytest
from frauds import LIE, SETUP, SPEC
from lying import Truth, chain_one, table
from proxy import DeepProxy, Request, served
from scene import Play, Scene, embedded_chain

import vgame.chain.wallet as wallet_module
from vgame.chain.connection import GWEI, USUAL_TIP
from vgame.chain.records import Phase, Status
from vgame.chain.wallet import FEE_MULTIPLE, FEE_VARIABLE, Wallet
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.errors import ChainError, EndpointError, NotYet, VgameError


@pytest.fixture(scope="module")
def cheat(real_scene: Scene) -> Play:
    """A false claim; each test has an auditor of its own behind the lying endpoint."""
    return real_scene.claimed(SETUP, LIE)


def test_another_chain_after_an_outage(node: Scene) -> None:
    """After a restart the endpoint has another chain behind it, or this one with other code."""
    with table(node, LIE) as t, embedded_chain() as other:
        auditor = t.seat(Auditor)
        truth = t.proxy.target

        def away() -> None:
            t.proxy.target = "http://127.0.0.1:9"
            with pytest.raises(ChainError):
                auditor.step()

        away()
        t.proxy.target = other.url
        with pytest.raises(ChainError, match=r"is chain \d+ now: no transaction is sent|is not the VerificationGame"):
            auditor.step()
        away()
        t.proxy.target, t.proxy.lie = truth, staticmethod(chain_one)
        with pytest.raises(EndpointError, match=r"was chain \d+ and is chain 1 now: no transaction is sent"):
            auditor.step()
        away()
        t.proxy.lie = None
        t.proxy.target = truth
        assert t.play.run_to_end(t.play.trainer, auditor) is Phase.CONVICTED
        assert t.play.dispute().status is Status.WON


def fee_lie(base: int | None = None, tip: int | None = None) -> Any:
    """Another price of gas than the chain's, wei."""

    def lie(query: Request, truth: Truth) -> Request:
        reply = truth()
        if query["method"] == "eth_maxPriorityFeePerGas" and tip is not None:
            reply["result"] = hex(tip)
        if query["method"] == "eth_getBlockByNumber" and base is not None:
            reply["result"]["baseFeePerGas"] = hex(base)
        return reply

    return lie


def test_a_suggested_tip_is_paid_up_to_the_usual_one(real_scene: Scene) -> None:
    with table(real_scene, play=real_scene.post(SETUP)) as t:
        trainer = t.seat(Trainer)
        before = real_scene.chain.balance(trainer.address)
        t.proxy.lie = staticmethod(fee_lie(tip=3 * 10**14))
        trainer.accept()
        paid = before - real_scene.chain.balance(trainer.address) - SPEC.trainer_bond
        assert 0 < paid < 200_000 * 4 * GWEI


def test_a_base_fee_above_the_users_limit(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with table(real_scene, play=real_scene.post(SETUP)) as t:
        trainer = t.seat(Trainer)
        t.proxy.lie = staticmethod(fee_lie(base=300 * GWEI, tip=10**20))
        wallet, offers = trainer.game.wallet, []
        sign = wallet.account.sign_transaction
        monkeypatch.setattr(wallet.account, "sign_transaction", lambda tx: offers.append(tx) or sign(tx))
        monkeypatch.setenv(FEE_VARIABLE, "299")
        with pytest.raises(
            EndpointError, match="base fee is 300 gwei per gas, above the maximum of 299: no transaction is sent"
        ):
            trainer.accept()
        assert not offers
        monkeypatch.setenv(FEE_VARIABLE, "0.5")
        with pytest.raises(ChainError, match="a whole number of gwei"):
            trainer.accept()
        monkeypatch.delenv(FEE_VARIABLE)
        trainer.accept()
        assert [(tx["maxPriorityFeePerGas"], tx["maxFeePerGas"]) for tx in offers] == [(300 * GWEI, 500 * GWEI)]


def test_a_withheld_receipt_raises_the_offer_at_most_to_the_multiple(
    node: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that collects signed transactions has at most one with the largest offer at the end."""
    with table(node) as t:
        monkeypatch.setattr(wallet_module, "RECEIPT_TIMEOUT", 0)
        wallet, offers = t.seat(Trainer).game.wallet, []
        sign = wallet.account.sign_transaction
        monkeypatch.setattr(
            wallet.account, "sign_transaction", lambda tx: offers.append(tx["maxFeePerGas"]) or sign(tx)
        )

        def swallow(query: Request, truth: Truth) -> Request:
            return {"result": "0x" + "11" * 32} if query["method"] == "eth_sendRawTransaction" else truth()

        t.proxy.lie = staticmethod(swallow)
        with pytest.raises(ChainError, match="the maximum is 32 times the base fee"):
            wallet.send(wallet.address, b"", value=1, gas=21_000)
        assert len(offers) > 5 and offers == sorted(set(offers)) and offers[-1] == FEE_MULTIPLE * USUAL_TIP


def test_a_transaction_with_an_unreachable_nonce_is_not_waited_for(
    node: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment, an endpoint counts too many transactions, and it keeps the transaction with that nonce."""
    with table(node) as t:
        monkeypatch.setattr(wallet_module, "RECEIPT_TIMEOUT", 0)
        wallet, sent = t.seat(Trainer).game.wallet, list[str]()

        def keep(query: Request, truth: Truth) -> Request:
            if query["method"] == "eth_sendRawTransaction":
                sent.append(query["params"][0])
                return {"result": "0x" + "11" * 32}
            if query["method"] == "eth_getTransactionCount" and not sent:
                return {"result": hex(int(truth()["result"], 16) + 2)}
            return truth()

        t.proxy.lie = staticmethod(keep)
        with pytest.raises(NotYet, match="cannot be included before transaction 0"):
            wallet.send(wallet.address, b"", value=1, gas=21_000)
        assert len(sent) == 1


def test_a_transaction_whose_number_is_used_is_not_waited_for(node: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes have one key. The node of one is behind: it takes a transaction with a number that is used."""
    with table(node) as t:
        monkeypatch.setattr(wallet_module, "RECEIPT_TIMEOUT", 1)
        slow, sent = t.seat(Trainer).game.wallet, list[str]()
        other = Wallet(node.chain, slow.key)

        def behind(query: Request, truth: Truth) -> Request:
            if query["method"] == "eth_sendRawTransaction":
                sent.append(query["params"][0])
                return {"result": "0x" + "11" * 32}
            if query["method"] == "eth_getTransactionCount" and not sent:
                return {"result": hex(int(truth()["result"], 16) - 1)}
            return truth()

        other.send(other.address, b"", value=1, gas=21_000)
        t.proxy.lie = staticmethod(behind)
        with pytest.raises(NotYet, match=r"another transaction 0 of .*: this one cannot be included"):
            slow.send(slow.address, b"", value=1, gas=21_000)
        assert len(sent) == 1


@pytest.mark.parametrize(
    ("method", "nonsense"),
    [
        ("eth_call", {}),
        ("eth_call", "0x"),
        ("eth_getBlockByNumber", ""),
        ("eth_getBlockByNumber", []),
        ("eth_getBlockByNumber", {}),
        ("eth_getBlockByNumber", {"logsBloom": {}}),
        ("eth_getBlockByNumber", {"number": -1, "hash": "0x", "timestamp": 0}),
        ("eth_getLogs", [{}]),
        ("eth_getLogs", 7),
        ("eth_getTransactionCount", []),
        ("eth_maxPriorityFeePerGas", []),
        ("eth_getBalance", "zz"),
        ("eth_estimateGas", {}),
        ("eth_getTransactionReceipt", {"transactionHash": "0x"}),
    ],
)
def test_a_malformed_answer_is_one_sentence(cheat: Play, method: str, nonsense: Any) -> None:
    """Agents wait for a VgameError to pass; any other error ends them."""
    with table(cheat.scene, play=cheat) as t:
        auditor = t.seat(Auditor)

        def lie(query: Request, truth: Truth) -> Request:
            return {"result": nonsense} if query["method"] == method else truth()

        t.proxy.lie = staticmethod(lie)
        with pytest.raises(EndpointError, match="cannot be read") as caught:
            auditor.game.events("JobCreated")
            auditor.game.chain.now()
            auditor.game.chain.balance(auditor.address)
            auditor.step()
        assert "\n" not in str(caught.value)


ASK = """
import sys
from vgame.errors import EndpointError
from vgame.chain.connection import Chain
try:
    Chain(sys.argv[1])
except EndpointError as error:
    print(error)
"""


def test_deeply_nested_lists_do_not_end_the_process() -> None:
    with served(DeepProxy, "") as (_, url):
        run = forked.run([sys.executable, "-c", ASK, url])
    assert run.returncode == 0 and "cannot be read" in run.stdout, (run.returncode, run.stdout)


@pytest.mark.parametrize("data", ["zz", {"a": 1}, 5, "0x" + "11" * 36, "0x", None, "0xdeadbeef"])
def test_a_malformed_revert(cheat: Play, data: Any) -> None:
    with table(cheat.scene, play=cheat) as t:
        game = t.seat(Auditor).game

        def lie(query: Request, truth: Truth) -> Request:
            error = {"code": 3, "message": "execution reverted", "data": data}
            return {"error": error} if query["method"] == "eth_call" else truth()

        t.proxy.lie = staticmethod(lie)
        with pytest.raises(VgameError):
            game.job(t.play.id)
        with pytest.raises(VgameError):
            game.check_parts()


def test_an_unknown_phase(cheat: Play) -> None:
    with table(cheat.scene, play=cheat) as t:
        game = t.seat(Auditor).game

        def lie(query: Request, truth: Truth) -> Request:
            reply = truth()
            if query["method"] == "eth_call":
                reply["result"] = "0x" + f"{99:064x}" + reply["result"][66:]
            return reply

        t.proxy.lie = staticmethod(lie)
        for view in (game.job, game.verdict):
            with pytest.raises(EndpointError, match="cannot be read"):
                view(t.play.id)
