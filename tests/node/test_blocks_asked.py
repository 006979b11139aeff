"""Every supported chain answers at the requested block, or with an error: the embedded chain, the tests' fast chain,
and anvil."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from chains import anvil
from revm_node import RevmNode

from vgame.chain.embedded import Node, start_tester

#: Without calldata: (timestamp, number, slot 0). With some: adds 1 to slot 0, and logs it under topic 42.
COUNTER = bytes.fromhex("36601457425f52436020525f5460405260605ff35b5f546001015f555f545f52602a60205fa100")
STRANGER, TOPIC = "0x" + "5a" * 20, f"0x{42:064x}"
NOWHERE = "0x" + "11" * 32
MARKED = 7  # wei that another account gains in each block

Ask = Callable[..., dict[str, Any]]


@contextmanager
def embedded(**history: int) -> Iterator[Ask]:
    node = Node(start_tester(), **history)
    yield lambda method, *params: node.handle({"id": 1, "method": method, "params": list(params)})


@contextmanager
def fast(**history: int) -> Iterator[Ask]:
    node = RevmNode(**history)
    yield lambda method, *params: node.handle(method, list(params))


@contextmanager
def on_anvil() -> Iterator[Ask]:
    with anvil() as chain:
        yield lambda method, *params: chain.web3.provider.make_request(method, list(params))


CHAINS = [
    pytest.param(on_anvil, marks=pytest.mark.node, id="anvil"), pytest.param(embedded, id="embedded"),
    pytest.param(fast, id="fast"),
]  # fmt: skip


class Story:
    """A block with the contract, then `length` blocks that each increase its counter and pay another account."""

    def __init__(self, ask: Ask, length: int = 4) -> None:
        self.ask = ask
        self.account = self.get("eth_accounts")[0]
        size = len(COUNTER)
        init = bytes.fromhex(f"60{size:02x}600c60003960{size:02x}6000f3") + COUNTER
        self.contract = self.mined({"data": "0x" + init.hex()})["contractAddress"]
        self.first = self.newest()
        self.blocks = [self.block(hex(self.first))]
        for _ in range(length):
            self.grow()

    def get(self, method: str, *params: Any) -> Any:
        reply = self.ask(method, *params)
        assert "error" not in reply, (method, params, reply["error"])
        return reply["result"]

    def refused(self, method: str, *params: Any) -> dict[str, Any]:
        reply = self.ask(method, *params)
        assert reply.get("result") is None and "error" in reply, (method, params, reply)
        return reply["error"]

    def mined(self, tx: dict[str, Any]) -> dict[str, Any]:
        """Anvil answers a transaction before it has mined it."""
        digest, end = self.get("eth_sendTransaction", {"from": self.account} | tx), time.monotonic() + 30
        while (receipt := self.get("eth_getTransactionReceipt", digest)) is None:
            assert time.monotonic() < end, "no receipt in 30 s"
            time.sleep(0.02)
        return receipt

    def grow(self) -> dict[str, Any]:
        """Increase the counter and the other account's balance: two blocks, of which the second is the story's."""
        self.mined({"to": self.contract, "data": "0x01"})
        self.mined({"to": STRANGER, "value": hex(MARKED)})
        self.blocks.append(self.block("latest"))
        return self.blocks[-1]

    def newest(self) -> int:
        return int(self.get("eth_blockNumber"), 16)

    def block(self, which: str) -> dict[str, Any]:
        return self.get("eth_getBlockByNumber", which, False)

    def state(self, which: Any) -> dict[str, Any]:
        """All queries of a block's state."""
        words = self.get("eth_call", {"to": self.contract}, which).removeprefix("0x")
        at, number, counter = (int(words[i : i + 64] or "0", 16) for i in (0, 64, 128))
        return {
            "time": at, "number": number, "counter": counter,
            "slot": int(self.get("eth_getStorageAt", self.contract, "0x0", which), 16),
            "nonce": int(self.get("eth_getTransactionCount", self.account, which), 16),
            "balance": int(self.get("eth_getBalance", STRANGER, which), 16),
            "code": self.get("eth_getCode", self.contract, which),
        }  # fmt: skip

    def expected(self, i: int) -> dict[str, Any]:
        """The state after the story's block i."""
        block = self.blocks[i]
        return {
            "time": int(block["timestamp"], 16), "number": int(block["number"], 16), "counter": i, "slot": i,
            "nonce": 1 + 2 * i, "balance": MARKED * i, "code": "0x" + COUNTER.hex(),
        }  # fmt: skip


@pytest.fixture(params=CHAINS)
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    with request.param() as ask:
        yield Story(ask)


def names(block: dict[str, Any]) -> list[Any]:
    """Every way to name a block of the chain."""
    number, digest = block["number"], block["hash"]
    objects = [{"blockNumber": number}, {"blockHash": digest}, {"blockHash": digest, "requireCanonical": True}]
    return [number, digest, *objects, {"blockHash": digest, "requireCanonical": False}]


def test_state_is_that_of_the_named_block(story: Story) -> None:
    order = [*range(len(story.blocks)), *reversed(range(len(story.blocks)))]  # forwards, and back again
    for i in order:
        for which in names(story.blocks[i]):
            assert story.state(which) == story.expected(i), which
    assert story.state("latest") == story.expected(len(story.blocks) - 1)


def test_tags_name_blocks(story: Story) -> None:
    assert story.state("earliest")["code"] == "0x" and story.state("earliest")["balance"] == 0
    for tag in ("latest", "safe", "finalized", "earliest"):
        named = story.block(tag)
        assert story.state(tag) == story.state(named["hash"]) == story.state(named["number"])
    assert story.block("earliest")["number"] == "0x0" and int(story.block("latest")["number"], 16) == story.newest()
    pending, last = story.state("pending"), story.state("latest")
    assert pending["number"] == last["number"] + 1 and pending["time"] >= last["time"]
    assert all(pending[key] == last[key] for key in ("counter", "slot", "nonce", "balance", "code"))


def test_moved_time_affects_the_pending_block_only(story: Story) -> None:
    before = story.state("latest")
    story.get("evm_increaseTime", 1000)
    assert story.state("latest") == before and story.state("pending")["time"] >= before["time"] + 1000
    story.get("evm_mine")
    assert story.state("latest")["time"] >= before["time"] + 1000 and story.state(hex(before["number"])) == before


def test_blocks_are_found_by_hash(story: Story) -> None:
    for block in story.blocks:
        assert story.get("eth_getBlockByHash", block["hash"], False) == block == story.block(block["number"])
    assert all(int(b["number"], 16) == story.first + 2 * i for i, b in enumerate(story.blocks))
    assert story.get("eth_getBlockByHash", NOWHERE, False) is None
    assert story.get("eth_getBlockByNumber", hex(story.newest() + 1), False) is None
    parents = [story.block(hex(n)) for n in range(story.newest() + 1)]
    assert all(after["parentHash"] == before["hash"] for before, after in pairwise(parents))


def test_receipts_are_those_of_the_block(story: Story) -> None:
    for block in (story.block(hex(n)) for n in range(story.newest() + 1)):
        found = [story.get("eth_getBlockReceipts", which) for which in (block["number"], block["hash"])]
        assert found[0] == found[1] and [r["transactionHash"] for r in found[0]] == block["transactions"]
        assert all(r["blockHash"] == block["hash"] and r["status"] == "0x1" for r in found[0])
        for receipt in found[0]:
            alone = story.get("eth_getTransactionReceipt", receipt["transactionHash"])
            assert {k: v for k, v in alone.items() if v == receipt[k]}.keys() >= {"logs", "from", "gasUsed"}
    assert story.get("eth_getBlockReceipts", NOWHERE) is None is story.get("eth_getBlockReceipts", "0xffff")


def test_logs_are_those_of_the_blocks(story: Story) -> None:
    grown = [story.first + 2 * i + 1 for i in range(len(story.blocks) - 1)]

    def numbers(**query: Any) -> list[int]:
        return [int(log["blockNumber"], 16) for log in story.get("eth_getLogs", query)]

    assert numbers(fromBlock="earliest", toBlock="latest") == grown
    assert numbers(fromBlock=hex(grown[1]), toBlock=hex(grown[2])) == grown[1:3]
    assert numbers(fromBlock=hex(grown[1]), toBlock="0xffff") == grown[1:]
    assert numbers(fromBlock=hex(grown[2]), toBlock=hex(grown[1])) == [] == numbers()
    assert numbers(fromBlock="earliest", address=story.contract, topics=[TOPIC]) == grown
    assert numbers(fromBlock="earliest", address=[STRANGER]) == [] == numbers(fromBlock="earliest", topics=[NOWHERE])
    for n in grown:
        assert numbers(blockHash=story.block(hex(n))["hash"]) == [n]
        assert numbers(blockHash=story.block(hex(n - 1))["hash"]) == []
    assert story.refused("eth_getLogs", {"blockHash": NOWHERE}) == {"code": -32000, "message": "unknown block"}
    both = {"blockHash": story.blocks[0]["hash"], "fromBlock": "0x0"}
    assert story.refused("eth_getLogs", both)["code"] == -32602


def reads(story: Story) -> list[tuple[Any, ...]]:
    """Every request about a state, without the block."""
    account = story.contract
    methods = ("eth_getBalance", "eth_getTransactionCount", "eth_getCode")
    return [("eth_call", {"to": account}), ("eth_getStorageAt", account, "0x0"), *((name, account) for name in methods)]


def test_requests_for_an_unknown_block_give_an_error(story: Story) -> None:
    unknown = [NOWHERE, {"blockHash": NOWHERE}, {"blockHash": NOWHERE, "requireCanonical": True}]
    future = [hex(story.newest() + 1 + i) for i in (0, 1, 10**6)]
    both = {"blockHash": story.blocks[0]["hash"], "blockNumber": "0x1"}
    nonsense = ["bogus", "3", 3, "0x", "0xzz", {}, both, {"blockHash": "0x12"}]
    for request in reads(story):
        for which in (*unknown, *future, *({"blockNumber": n} for n in future)):
            assert story.refused(*request, which)["code"] in (-32000, -32001, -32602)
        for which in nonsense:
            assert story.refused(*request, which)["code"] == -32602, which


def test_requests_for_an_undone_block_give_an_error(story: Story) -> None:
    point, stays = story.get("evm_snapshot"), story.state("latest")
    gone = story.grow()
    assert story.state(gone["hash"])["counter"] == stays["counter"] + 1
    story.get("evm_revert", point)
    for length in range(4):  # the chain is shorter, as long, and longer
        for request in reads(story):
            for which in ({"blockHash": gone["hash"]}, {"blockHash": gone["hash"], "requireCanonical": True}):
                assert story.refused(*request, which)["code"] in (-32000, -32001), (length, which)
        assert story.get("eth_getBlockByHash", gone["hash"], False) is None
        assert story.get("eth_getBlockReceipts", gone["hash"]) is None
        assert story.refused("eth_getLogs", {"blockHash": gone["hash"]})["code"] == -32000
        assert story.state("latest")["counter"] == stays["counter"] and story.state(hex(stays["number"])) == stays
        story.get("evm_mine")


@pytest.mark.parametrize("chain", [embedded, fast])
def test_errors_are_those_of_geth(chain: Callable[..., Any]) -> None:
    with chain() as ask:
        story = Story(ask, 1)
        point, digest = story.get("evm_snapshot"), story.grow()["hash"]
        story.get("evm_revert", point)
        for request in reads(story):
            assert story.refused(*request, "0xffff") == {"code": -32000, "message": "header not found"}
            message = "header for hash not found"
            assert story.refused(*request, {"blockHash": NOWHERE}) == {"code": -32000, "message": message}
            error = story.refused(*request, {"blockHash": digest, "requireCanonical": True})
            assert error == {"code": -32000, "message": "hash is not currently canonical"}
            assert "missing trie node" in story.refused(*request, {"blockHash": digest})["message"]


@pytest.mark.parametrize("chain", [embedded, fast])
def test_requests_for_pruned_states_give_an_error(chain: Callable[..., Any]) -> None:
    with chain(history=3) as ask:
        story = Story(ask, 4)
        newest = story.newest()
        kept = [block for block in story.blocks if int(block["number"], 16) >= newest - 3]
        assert len(kept) == 2
        for i, block in enumerate(story.blocks):
            if block in kept:
                assert all(story.state(which) == story.expected(i) for which in names(block))
                continue
            for request in reads(story):
                for which in (*names(block), "earliest"):
                    error = story.refused(*request, which)
                    assert error["code"] == -32000 and error["message"].startswith("missing trie node")
        assert len(story.get("eth_getLogs", {"fromBlock": "earliest"})) == 4  # of blocks, not of states
        assert all(story.get("eth_getBlockReceipts", block["hash"]) for block in story.blocks)
