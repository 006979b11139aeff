"""The embedded chain caches its work: an answer is valid until a change, gas is found by two trials."""

from __future__ import annotations

import threading
import time
from unittest.mock import patch

import pytest
from eth.vm.forks.prague.state import PragueState

from vgame.chain.embedded import Node, start_tester

#: A counter in slot 0: sload(0) + 1, stored and returned.
COUNTER = bytes.fromhex("6000546001018060005560005260206000f3")


@pytest.fixture
def node() -> Node:
    return Node(start_tester())


def ask(node: Node, method: str, *params: object) -> object:
    return node.handle({"id": 1, "method": method, "params": list(params)})["result"]


def counter(node: Node) -> str:
    """A contract that increments its counter and returns it."""
    size = len(COUNTER)
    init = bytes.fromhex(f"60{size:02x}600c60003960{size:02x}6000f3") + COUNTER
    sent = ask(node, "eth_sendTransaction", {"data": "0x" + init.hex()})
    return ask(node, "eth_getTransactionReceipt", sent)["contractAddress"]


def executions(node: Node, *request: object) -> int:
    with patch.object(
        PragueState, "apply_transaction", autospec=True, side_effect=PragueState.apply_transaction
    ) as run:
        ask(node, *request)
    return run.call_count


def test_an_answer_is_valid_until_a_block_is_mined(node: Node) -> None:
    call = ("eth_call", {"to": counter(node)}, "latest")
    assert int(ask(node, *call), 16) == 1
    assert executions(node, *call) == 0
    ask(node, "eth_sendTransaction", call[1])
    assert int(ask(node, *call), 16) == 2


def test_an_answer_is_valid_until_time_is_moved(node: Node) -> None:
    clock = ("eth_getBlockByNumber", "latest", False)
    before = int(ask(node, *clock)["timestamp"], 16)
    ask(node, "evm_increaseTime", 1000)
    ask(node, "evm_mine")
    assert int(ask(node, *clock)["timestamp"], 16) >= before + 1000


def at(node: Node) -> tuple[int, int]:
    """Number and time of the newest block."""
    newest = ask(node, "eth_getBlockByNumber", "latest", False)
    return int(newest["number"], 16), int(newest["timestamp"], 16)


@pytest.mark.parametrize("disturb", ["nothing", "transactions", "moved time"])
def test_a_chain_in_real_time_mines_a_block_a_second(node: Node, disturb: str) -> None:
    if disturb == "transactions":
        for _ in range(5):
            ask(node, "eth_sendTransaction", {"to": "0x" + "11" * 20})
    elif disturb == "moved time":
        ask(node, "evm_increaseTime", 1000)
    threading.Thread(target=node.keep_time, daemon=True).start()
    time.sleep(1.5)  # the first block: the wall clock's time, plus moved seconds
    (number, then), begin = at(node), time.monotonic()
    time.sleep(3)
    blocks, seconds = at(node)[0] - number, at(node)[1] - then
    passed = time.monotonic() - begin
    node.stopped.set()
    assert 2 <= blocks <= passed + 1 and abs(seconds - passed) <= 2, (blocks, seconds, passed)


def test_moved_time_is_that_of_the_next_block(node: Node) -> None:
    number, then = at(node)
    ask(node, "evm_increaseTime", 1000)
    assert at(node) == (number, then)
    ask(node, "evm_mine")
    assert at(node)[0] == number + 1 and 1000 <= at(node)[1] - then <= 1001


def test_gas_is_found_by_two_trials_and_is_enough(node: Node) -> None:
    request = {"to": counter(node)}
    assert executions(node, "eth_estimateGas", request) == 2
    gas = int(ask(node, "eth_estimateGas", request), 16)
    receipt = ask(node, "eth_getTransactionReceipt", ask(node, "eth_sendTransaction", request | {"gas": hex(gas)}))
    used = int(receipt["gasUsed"], 16)
    assert receipt["status"] == "0x1" and used <= gas < 1.1 * used


def test_a_reverted_block_takes_its_transactions_with_it(node: Node) -> None:
    point = ask(node, "evm_snapshot")
    sent = ask(node, "eth_sendTransaction", {"to": counter(node)})
    assert ask(node, "eth_getTransactionReceipt", sent)["transactionHash"] == sent
    assert ask(node, "eth_getTransactionByHash", sent)["hash"] == sent
    ask(node, "evm_revert", point)
    assert ask(node, "eth_getTransactionReceipt", sent) is None is ask(node, "eth_getTransactionByHash", sent)
