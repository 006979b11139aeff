"""One dishonest endpoint: replies are checked by hashes; the player reports a lie, sends nothing, and wins when the
endpoint is honest again."""

from __future__ import annotations

from typing import Any

import false_replies
import pytest
from frauds import LIE, SETUP, SPEC, Mistaken, state_lie
from lying import Truth, refuses, selector, table, topic
from proxy import Request
from scene import Scene
from web3 import Web3

from vgame.chain.records import Level, Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.errors import ContractError, EndpointError, NotYet


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    false_replies.no_pauses(monkeypatch)


def content_of(opening: str, change: Any, *sources: str) -> Any:
    """The events of that name with other data, in logs and receipts."""

    def lie(query: Request, truth: Truth) -> Request:
        reply = truth()
        if query["method"] in (sources or ("eth_getLogs", "eth_getBlockReceipts")):
            found = reply["result"]
            logs = found if query["method"] == "eth_getLogs" else [log for receipt in found for log in receipt["logs"]]
            for log in (log for log in logs if log["topics"][0] == topic(opening)):
                log["data"] = "0x" + change(bytearray.fromhex(log["data"][2:])).hex()
        return reply

    return lie


def last_bit(data: bytearray) -> bytearray:
    """In the last child of a reveal, in the last word of a leaf."""
    data[-1] ^= 1
    return data


def emptied(data: bytearray) -> bytearray:
    """An empty list of children, or an empty leaf."""
    length = 96 if int.from_bytes(data[64:96]) == 96 else 32
    data[length : length + 32] = bytes(32)
    return data


def no_logs(query: Request, truth: Truth) -> Request:
    """No events at all: an endpoint whose logs lag behind its state."""
    reply = truth()
    return reply | {"result": []} if query["method"] in ("eth_getLogs", "eth_getBlockReceipts") else reply


def instead(old: str, new: str) -> Any:
    """One string for another in every answer: a consistent lie."""

    def lie(query: Request, truth: Truth) -> Request:
        reply = truth()
        if query["method"] in ("eth_call", "eth_getLogs"):
            reply["result"] = replaced(reply.get("result"), old, new)
        return reply

    return lie


def replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [replaced(v, old, new) for v in value]
    return {k: replaced(v, old, new) for k, v in value.items()} if isinstance(value, dict) else value


def forged_receipts() -> Any:
    """No transaction is forwarded, but all are reported as included."""
    forged: dict[str, Request] = {}

    def lie(query: Request, truth: Truth) -> Request:
        if query["method"] == "eth_sendRawTransaction":
            digest = Web3.to_hex(Web3.keccak(hexstr=query["params"][0]))
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
        if query["method"] == "eth_getTransactionReceipt" and query["params"][0] in forged:
            return {"result": forged[query["params"][0]]}
        return truth()

    return lie


def receipts_of_another(query: Request, truth: Truth) -> Request:
    """The receipt of another transaction."""
    reply = truth()
    if query["method"] == "eth_getTransactionReceipt" and reply["result"]:
        reply["result"]["transactionHash"] = "0x" + "77" * 32
    return reply


@pytest.mark.usefixtures("no_pauses")
def test_a_receipt_without_its_effect_is_rejected(node: Scene) -> None:
    """Challenge, move, answer, claim: swallowed transactions are sent again, and the game continues."""
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


@pytest.mark.usefixtures("no_pauses")
def test_a_trainer_rejects_a_forged_receipt_too(node: Scene) -> None:
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


def test_an_honest_endpoint_is_never_reported(node: Scene) -> None:
    """In a whole game, no check of a call fails for an honest endpoint: otherwise a player would report false lies."""
    with table(node, LIE) as t:
        auditor, trainer = t.seat(Auditor), t.play.trainer
        assert t.play.run_to_end(trainer, auditor) is Phase.CONVICTED
        assert {name for name, _ in t.play.events()} >= {"Revealed", "LeafOpened", "PartialsPosted", "Convicted"}


def test_a_receipt_of_another_transaction_is_reported(node: Scene) -> None:
    with table(node, LIE) as t:
        auditor = t.seat(Auditor)
        t.proxy.lie = staticmethod(receipts_of_another)
        with pytest.raises(EndpointError, match="returns the receipt of"):
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
            refuses(t, t.again(auditor), content_of(opening, change), NotYet, "does not show the content of second")
        refuses(t, t.again(auditor), no_logs, NotYet, "does not show the content of second")
        t.proxy.lie = staticmethod(content_of(opening, emptied, "eth_getLogs"))  # the receipts are right
        assert t.play.run_to_end(t.play.trainer, t.again(auditor)) is Phase.CONVICTED


def test_a_claim_other_than_the_one_on_chain_is_not_challenged(node: Scene) -> None:
    """The auditor accepts a consistent lie; but it stakes its bond against the root that it was shown, and the contract
    refuses."""
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


def test_other_terms_than_the_orders_are_reported(node: Scene) -> None:
    with table(node, LIE) as t:
        auditor = t.seat(Auditor)
        word = "{:064x}".format
        lie = instead(word(SPEC.challenge_window), word(2 * SPEC.challenge_window))
        refuses(t, auditor, lie, EndpointError, "shows other terms")


def test_a_dispute_shown_at_another_place(node: Scene) -> None:
    """Compared with the wrong piece of the auditor's run, the first child would differ, and naming it would lose the
    dispute."""
    with table(node, state_lie(6, 5, 0)[0]) as t:
        auditor = t.seat(Auditor)
        while t.play.run_until("select", t.play.trainer, auditor) and t.play.dispute().level is not Level.STATE:
            auditor.step()
        asks, field = selector("getDisputes", "bytes32,uint256,uint256"), slice(224, 256)  # the step of the first one

        def lie(query: Request, truth: Truth) -> Request:
            reply = truth()
            if query["method"] == "eth_call" and query["params"][0].get(
                "data", query["params"][0].get("input", "")
            ).startswith(asks):
                words = bytearray.fromhex(reply["result"][2:])
                words[field] = (int.from_bytes(words[field], "big") - 1).to_bytes(32, "big")
                reply["result"] = "0x" + words.hex()
            return reply

        refuses(t, auditor, lie, EndpointError, "the contested node .* at state height")
        assert t.play.run_to_end(t.play.trainer, auditor) is Phase.CONVICTED
