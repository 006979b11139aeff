"""One dishonest endpoint: what it shows is checked by its hash; its player says so, sends nothing, and wins when it is
honest again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from frauds import SETUP, SUM, Mistaken, state_lie, word_lie
from proxy import DeepProxy, LyingProxy, Request, served
from scene import Play, Scene, embedded_chain
from web3 import Web3

import vgame.chain.wallet as wallet_module
from vgame.chain.abi import full_abi
from vgame.chain.connection import FEE_VARIABLE, GWEI, USUAL_TIP, Chain
from vgame.chain.game import Game
from vgame.chain.records import Level, Phase, Status
from vgame.chain.wallet import FEE_MULTIPLE, Wallet
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.dispute.trainer import Trainer
from vgame.errors import ChainError, ContractError, EndpointError, VgameError

SPEC = SETUP.spec
LIE = word_lie(6, SUM, 4, 1)[0]
Truth = Callable[[], Request]


@dataclass
class Table:
    """A play whose players all ask one proxy."""

    play: Play
    proxy: type[LyingProxy]
    chain: Chain

    def seat(self, cls: type[Player], lies: Any = None) -> Player:
        wallet = self.play.scene.wallet()
        game = Game(self.chain, self.play.scene.address, Wallet(self.chain, wallet.key))
        player = cls(game, self.play.id, self.play.machine(lies))
        player.terms = SPEC
        return player

    def again(self, player: Player) -> Player:
        """The same after a restart: it remembers nothing."""
        fresh = type(player)(player.game, player.id, player.machine)
        fresh.terms = player.terms
        return fresh

    def sent(self, player: Player) -> int:
        return int(self.play.scene.chain.web3.eth.get_transaction_count(player.address))


@contextmanager
def table(scene: Scene, claim: Any = None) -> Iterator[Table]:
    """A claim that is posted, a proxy that is honest as yet."""
    with served(LyingProxy, scene.chain.url) as (proxy, url):
        yield Table(scene.claimed(SETUP, claim), proxy, Chain(url))


def refuses(t: Table, player: Player, lie: Any, error: type[Exception], words: str) -> None:
    """While the endpoint lies the player says so and sends nothing."""
    before = t.sent(player)
    t.proxy.lie = staticmethod(lie)
    for _ in range(2):
        with pytest.raises(error, match=words):
            player.step()
    t.proxy.lie = None
    assert t.sent(player) == before


def topic(name: str) -> str:
    entry = next(e for e in full_abi() if e["type"] == "event" and e["name"] == name)
    return Web3.to_hex(Web3.keccak(text=f"{name}({','.join(i['type'] for i in entry['inputs'])})"))


def selector(name: str, types: str) -> str:
    return Web3.to_hex(Web3.keccak(text=f"{name}({types})")[:4])


def content_of(opening: str, change: Any) -> Any:
    """The events of that name with other data."""

    def lie(asked: Request, truth: Truth) -> Request:
        told = truth()
        if asked["method"] == "eth_getLogs" and asked["params"][0]["topics"][0] == topic(opening):
            for log in told["result"]:
                log["data"] = "0x" + change(bytearray.fromhex(log["data"][2:])).hex()
        return told

    return lie


def last_bit(data: bytearray) -> bytearray:
    """In the last child of a reveal, in the last word of a leaf."""
    data[-1] ^= 1
    return data


def emptied(data: bytearray) -> bytearray:
    """A list of children, or a leaf, without anything in it."""
    length = 96 if int.from_bytes(data[64:96]) == 96 else 32
    data[length : length + 32] = bytes(32)
    return data


def no_logs(asked: Request, truth: Truth) -> Request:
    """No events at all: an endpoint that lags behind itself."""
    told = truth()
    return told | {"result": []} if asked["method"] == "eth_getLogs" else told


def instead(old: str, new: str) -> Any:
    """One string for another in every answer: a lie without contradiction."""

    def lie(asked: Request, truth: Truth) -> Request:
        told = truth()
        if asked["method"] in ("eth_call", "eth_getLogs"):
            told["result"] = replaced(told.get("result"), old, new)
        return told

    return lie


def replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [replaced(v, old, new) for v in value]
    return {k: replaced(v, old, new) for k, v in value.items()} if isinstance(value, dict) else value


def forged_receipts() -> Any:
    """Nothing is passed on, everything was included."""
    forged: dict[str, Request] = {}

    def lie(asked: Request, truth: Truth) -> Request:
        if asked["method"] == "eth_sendRawTransaction":
            digest = Web3.to_hex(Web3.keccak(hexstr=asked["params"][0]))
            forged[digest] = {
                "transactionHash": digest,
                "status": "0x1",
                "blockNumber": "0x1",
                "blockHash": "0x" + "11" * 32,
                "gasUsed": "0x5208",
                "cumulativeGasUsed": "0x5208",
                "effectiveGasPrice": "0x1",
                "logs": [],
                "logsBloom": "0x" + "00" * 256,
                "type": "0x2",
                "transactionIndex": "0x0",
                "from": "0x" + "22" * 20,
                "to": "0x" + "33" * 20,
                "contractAddress": None,
            }
            return {"result": digest}
        if asked["method"] == "eth_getTransactionReceipt" and asked["params"][0] in forged:
            return {"result": forged[asked["params"][0]]}
        return truth()

    return lie


def foreign_receipts(asked: Request, truth: Truth) -> Request:
    """The receipt of another transaction."""
    told = truth()
    if asked["method"] == "eth_getTransactionReceipt" and told["result"]:
        told["result"]["transactionHash"] = "0x" + "77" * 32
    return told


def test_a_receipt_without_its_effect_is_not_believed(node: Scene) -> None:
    """Challenge, move, answer, claim: whatever was swallowed is sent again, and the game goes on where it stands."""
    with table(node, LIE) as t:
        auditor = t.seat(Auditor)
        refuses(
            t, auditor, forged_receipts(), EndpointError, "receipt of challenge without error, but a state without it"
        )
        assert t.play.job.disputes == 0
        auditor.step()
        t.play.trainer.step()
        refuses(t, auditor, forged_receipts(), EndpointError, "receipt of select without error")
        assert t.play.run_to_end(t.play.trainer, auditor) is Phase.CONVICTED
        assert len(t.play.disputes()) == 1


def test_a_trainer_believes_no_forged_receipt_either(node: Scene) -> None:
    with table(node) as t:
        t.play = node.post(SETUP)
        trainer = t.seat(Trainer)
        t.proxy.lie = staticmethod(forged_receipts())
        with pytest.raises(EndpointError, match="receipt of acceptJob without error"):
            trainer.accept()
        t.proxy.lie = None
        trainer.accept()
        refuses(t, trainer, forged_receipts(), EndpointError, "receipt of postClaim without error")
        trainer.step()
        accuser = t.play.auditor(state_lie(6, 5, 0)[0], Mistaken)
        t.play.run_until("select", accuser, trainer)
        assert t.play.run_to_end(accuser, trainer) is Phase.FINAL


def test_every_kind_of_call_leaves_a_mark(node: Scene) -> None:
    """No call of a whole game is doubted by an honest endpoint: else a player would report lies that nobody told."""
    with table(node, LIE) as t:
        auditor, trainer = t.seat(Auditor), t.play.trainer
        assert t.play.run_to_end(trainer, auditor) is Phase.CONVICTED
        assert {name for name, _ in t.play.events()} >= {
            "Revealed",
            "LeafOpened",
            "PartialsPosted",
            "RewardPaid",
            "Known",
        }


def test_the_receipt_of_something_else(node: Scene) -> None:
    with table(node, LIE) as t:
        auditor = t.seat(Auditor)
        t.proxy.lie = staticmethod(foreign_receipts)
        with pytest.raises(EndpointError, match="when it is asked for"):
            auditor.step()


@pytest.mark.parametrize(
    ("before", "opening"),
    [
        ("select", "Revealed"),
        ("selectElement", "LeafOpened"),
    ],
)
def test_an_opening_must_hash_to_its_node(node: Scene, before: str, opening: str) -> None:
    with table(node, LIE) as t:
        auditor = t.seat(Auditor)
        t.play.run_until(before, t.play.trainer, auditor)
        for change in (last_bit, emptied):
            refuses(t, t.again(auditor), content_of(opening, change), EndpointError, "an opening of .* that hashes to")
        auditor, sent = t.again(auditor), t.sent(auditor)
        t.proxy.lie = staticmethod(no_logs)
        auditor.step()
        assert t.sent(auditor) == sent
        t.proxy.lie = None
        assert t.play.run_to_end(t.play.trainer, auditor) is Phase.CONVICTED


def test_a_claim_that_is_not_the_one_on_chain_is_not_challenged(node: Scene) -> None:
    """The auditor believes a lie without contradiction; but it stakes its bond against the root that it was shown: the
    contract refuses."""
    with table(node) as t:
        auditor = t.seat(Auditor)
        lie = instead(t.play.job.run_root.hex(), "ab" * 32)
        t.proxy.lie = staticmethod(lie)
        before = t.sent(auditor)
        with pytest.raises(ContractError) as caught:
            auditor.step()
        assert caught.value.name == "BadProof" and t.sent(auditor) == before and not auditor.agrees()
        t.proxy.lie = None
        assert auditor.agrees() and t.play.run_to_end(t.play.trainer, auditor) is Phase.FINAL


def test_other_terms_than_the_order(node: Scene) -> None:
    with table(node, LIE) as t:
        auditor = t.seat(Auditor)
        word = "{:064x}".format
        lie = instead(word(SPEC.challenge_window), word(2 * SPEC.challenge_window))
        refuses(t, auditor, lie, EndpointError, "shows other terms")


def test_a_dispute_that_is_said_to_stand_elsewhere(node: Scene) -> None:
    """Compared with the wrong piece of the own run the first child would differ, and naming it would lose the
    dispute."""
    with table(node, state_lie(6, 5, 0)[0]) as t:
        auditor = t.seat(Auditor)
        while t.play.run_until("select", t.play.trainer, auditor) and t.play.dispute().level is not Level.STATE:
            auditor.step()
        asks, field = selector("getDisputes", "bytes32,uint256,uint256"), slice(192, 224)  # the step of the first one

        def lie(asked: Request, truth: Truth) -> Request:
            told = truth()
            if asked["method"] == "eth_call" and asked["params"][0].get(
                "data", asked["params"][0].get("input", "")
            ).startswith(asks):
                words = bytearray.fromhex(told["result"][2:])
                words[field] = (int.from_bytes(words[field], "big") - 1).to_bytes(32, "big")
                told["result"] = "0x" + words.hex()
            return told

        refuses(t, auditor, lie, EndpointError, "is contested at state")
        assert t.play.run_to_end(t.play.trainer, auditor) is Phase.CONVICTED


def chain_one(asked: Request, truth: Truth) -> Request:
    """The same contracts on another chain, as a fork has them."""
    return {"jsonrpc": "2.0", "id": asked["id"], "result": "0x1"} if asked["method"] == "eth_chainId" else truth()


def test_another_chain_after_an_outage(node: Scene) -> None:
    """The endpoint was restarted with something else behind it: another chain, or this one with other code."""
    with table(node, LIE) as t, embedded_chain() as other:
        auditor = t.seat(Auditor)
        truth = t.proxy.target

        def away() -> None:
            t.proxy.target = "http://127.0.0.1:9"
            with pytest.raises(ChainError):
                auditor.step()

        away()
        t.proxy.target = other.url
        with pytest.raises(ChainError, match=r"is chain \d+ now: nothing is sent|is not the VerificationGame"):
            auditor.step()
        away()
        t.proxy.target, t.proxy.lie = truth, staticmethod(chain_one)
        with pytest.raises(EndpointError, match=r"was chain \d+ and is chain 1 now: nothing is sent"):
            auditor.step()
        away()
        t.proxy.lie = None
        t.proxy.target = truth
        assert t.play.run_to_end(t.play.trainer, auditor) is Phase.CONVICTED
        assert t.play.dispute().status is Status.WON


def fee_lie(base: int | None = None, tip: int | None = None) -> Any:
    """Another price of gas than the chain's, wei."""

    def lie(asked: Request, truth: Truth) -> Request:
        told = truth()
        if asked["method"] == "eth_maxPriorityFeePerGas" and tip is not None:
            told["result"] = hex(tip)
        if asked["method"] == "eth_getBlockByNumber" and base is not None:
            told["result"]["baseFeePerGas"] = hex(base)
        return told

    return lie


def test_a_tip_that_an_endpoint_names_is_paid_up_to_the_usual_one(real_scene: Scene) -> None:
    with table(real_scene) as t:
        t.play = real_scene.post(SETUP)
        trainer = t.seat(Trainer)
        before = real_scene.chain.balance(trainer.address)
        t.proxy.lie = staticmethod(fee_lie(tip=3 * 10**14))
        trainer.accept()
        paid = before - real_scene.chain.balance(trainer.address) - SPEC.trainer_bond
        assert 0 < paid < 200_000 * 4 * GWEI


def test_a_base_fee_above_what_the_user_pays(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with table(real_scene) as t:
        t.play = real_scene.post(SETUP)
        trainer = t.seat(Trainer)
        t.proxy.lie = staticmethod(fee_lie(base=300 * GWEI, tip=10**20))
        wallet, offers = trainer.game.wallet, []
        sign = wallet.account.sign_transaction
        monkeypatch.setattr(wallet.account, "sign_transaction", lambda tx: offers.append(tx) or sign(tx))
        monkeypatch.setenv(FEE_VARIABLE, "299")
        with pytest.raises(EndpointError, match="base fee is 300 gwei per gas, at most 299 are paid: nothing is sent"):
            trainer.accept()
        assert not offers
        monkeypatch.setenv(FEE_VARIABLE, "0.5")
        with pytest.raises(ChainError, match="a whole number of gwei"):
            trainer.accept()
        monkeypatch.delenv(FEE_VARIABLE)
        trainer.accept()
        assert [(tx["maxPriorityFeePerGas"], tx["maxFeePerGas"]) for tx in offers] == [(300 * GWEI, 500 * GWEI)]


def test_a_receipt_that_is_withheld_raises_the_offer_to_the_multiple(
    node: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that collects signed transactions has one at most of so much at the end."""
    with table(node) as t:
        monkeypatch.setattr(wallet_module, "RECEIPT_TIMEOUT", 0)
        wallet, offers = t.seat(Trainer).game.wallet, []
        sign = wallet.account.sign_transaction
        monkeypatch.setattr(
            wallet.account, "sign_transaction", lambda tx: offers.append(tx["maxFeePerGas"]) or sign(tx)
        )

        def swallow(asked: Request, truth: Truth) -> Request:
            return {"result": "0x" + "11" * 32} if asked["method"] == "eth_sendRawTransaction" else truth()

        t.proxy.lie = staticmethod(swallow)
        with pytest.raises(ChainError, match="the most is 32 times the base fee"):
            wallet.send(wallet.address, b"", value=1, gas=21_000)
        assert len(offers) > 5 and offers == sorted(set(offers)) and offers[-1] == FEE_MULTIPLE * USUAL_TIP


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
def test_an_answer_that_is_nonsense_is_one_sentence(real_scene: Scene, method: str, nonsense: Any) -> None:
    """Agents wait for a VgameError to pass; any other error ends them."""
    with table(real_scene, LIE) as t:
        auditor = t.seat(Auditor)

        def lie(asked: Request, truth: Truth) -> Request:
            return {"result": nonsense} if asked["method"] == method else truth()

        t.proxy.lie = staticmethod(lie)
        with pytest.raises(EndpointError, match="answers what cannot be read") as caught:
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


def test_lists_in_lists_do_not_end_the_process() -> None:
    with served(DeepProxy, "") as (_, url):
        run = subprocess.run([sys.executable, "-c", ASK, url], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "answers what cannot be read" in run.stdout, (run.returncode, run.stdout)


@pytest.mark.parametrize("data", ["zz", {"a": 1}, 5, "0x" + "11" * 36, "0x", None, "0xdeadbeef"])
def test_a_revert_that_is_nonsense(real_scene: Scene, data: Any) -> None:
    with table(real_scene, LIE) as t:
        game = t.seat(Auditor).game

        def lie(asked: Request, truth: Truth) -> Request:
            error = {"code": 3, "message": "execution reverted", "data": data}
            return {"error": error} if asked["method"] == "eth_call" else truth()

        t.proxy.lie = staticmethod(lie)
        with pytest.raises(VgameError):
            game.job(t.play.id)
        with pytest.raises(VgameError):
            game.check_machine()


def test_a_phase_that_there_is_not(real_scene: Scene) -> None:
    with table(real_scene, LIE) as t:
        game = t.seat(Auditor).game

        def lie(asked: Request, truth: Truth) -> Request:
            told = truth()
            if asked["method"] == "eth_call":
                told["result"] = "0x" + f"{99:064x}" + told["result"][66:]
            return told

        t.proxy.lie = staticmethod(lie)
        for view in (game.job, game.verdict):
            with pytest.raises(EndpointError, match="answers what cannot be read"):
                view(t.play.id)
