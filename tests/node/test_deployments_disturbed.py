"""A deployment beside nodes that lag or undo blocks, failing creations and little money."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proxy import LyingProxy, served
from scene import Scene
from test_deployed_again import OTHER, Lie, asks_too_little_gas, count, endpoints, interrupted, run

import vgame
import vgame.chain.wallet as wallet_module
from vgame.chain import agreed, deployment
from vgame.chain.connection import Chain
from vgame.chain.deployment import ORDER, deploy, deploy_part, most_gas
from vgame.chain.escrow import NAME
from vgame.chain.registry import read
from vgame.chain.wallet import Wallet
from vgame.errors import ChainError, NotYet, VgameError

Truth = Callable[[], dict[str, Any]]
#: Methods with a block, and its place among their parameters.
AT = {"eth_getBlockByNumber": 0, "eth_getTransactionCount": 1, "eth_getCode": 1, "eth_getBalance": 1, "eth_call": 1}
UNKNOWN = {"code": -32001, "message": "header not found"}


def shows_code_late(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
    """A balancer: code is read at a node that is behind, other state at one that is not."""
    newest = query["method"] == "eth_getCode" and query["params"][1] == "latest"
    return {"result": "0x"} if newest else truth()


def test_a_balancer_has_no_part_paid_twice(some_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    funded = some_scene.wallet()
    game = deploy(funded)
    with endpoints(some_scene.chain.url, shows_code_late) as urls:
        assert deploy(Wallet(Chain(urls), funded.key)) == game and count(funded) == 6


def test_a_creation_that_fails_is_paid_once(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where creations cost more than the EVM's rules say, and an endpoint estimates too little."""
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    monkeypatch.setattr(deployment, "most_gas", lambda name: int(most_gas(name) * 0.8))
    funded = real_scene.wallet()
    failed = pytest.raises(ChainError, match="which creates Pointwise, has failed")
    with endpoints(real_scene.chain.url, asks_too_little_gas) as urls, failed:
        deploy(Wallet(Chain(urls), funded.key))
    assert count(funded) == 1


def no_gas_used(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
    """A receipt without a field."""
    reply = asks_too_little_gas(query, truth)
    if query["method"] == "eth_getTransactionReceipt" and reply.get("result"):
        reply["result"].pop("gasUsed")
    return reply


def hides_failures(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
    """An endpoint whose receipts cannot be read."""
    reply = asks_too_little_gas(query, truth)
    if query["method"] == "eth_getTransactionReceipt" and reply.get("result"):
        reply["result"]["status"] = "yes"
    return reply


@pytest.mark.parametrize("lies", [(no_gas_used,) * 3, (hides_failures,), (hides_failures,) * 3])
def test_a_failure_that_cannot_be_read_is_paid_once(
    some_scene: Scene, monkeypatch: pytest.MonkeyPatch, lies: tuple[Lie, ...]
) -> None:
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    monkeypatch.setattr(deployment, "most_gas", lambda name: int(most_gas(name) * 0.8))
    funded = some_scene.wallet()
    with endpoints(some_scene.chain.url, *lies) as urls, pytest.raises(VgameError):
        deploy(Wallet(Chain(urls), funded.key))
    assert count(funded) <= 1


def counts_once(more: int) -> Lie:
    """Its first transaction count is too high, all other replies are true."""
    first = [more]

    def lie(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
        reply = truth()
        if query["method"] == "eth_getTransactionCount" and first:
            reply["result"] = hex(int(reply["result"], 16) + first.pop())
        return reply

    return lie


def refuses_once(method: str) -> Lie:
    """A limit of requests is reached."""
    first = [{"error": {"code": -32005, "message": "rate limit"}}]
    return lambda query, truth: first.pop() if query["method"] == method and first else truth()


def counts_wrong(more: int, times: float = inf) -> Lie:
    """Its transaction counts are too high or too low, all other replies are true."""
    left = [times]

    def lie(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
        reply = truth()
        if query["method"] == "eth_getTransactionCount" and left[0] > 0:
            left[0] -= 1
            reply["result"] = hex(max(int(reply["result"], 16) + more, 0))
        return reply

    return lie


def refuses(method: str, seconds: float = 0.0) -> Lie:
    """A limit of requests is reached, for some time after the first request, at least for one."""
    until = list[float]()

    def lie(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
        if query["method"] == method and not (until and time.monotonic() > until[0]):
            until.append(time.monotonic() + seconds)
            return {"error": {"code": -32005, "message": "rate limit"}}
        return truth()

    return lie


COUNT = "eth_getTransactionCount"
COUNTS: dict[str, Callable[[], list[Lie | None]]] = {
    "too high once": lambda: [counts_wrong(6, 1), refuses(COUNT), None],
    "much too high once": lambda: [counts_wrong(31, 1), refuses(COUNT), None],
    "far too high once": lambda: [counts_wrong(600, 1), refuses(COUNT), None],
    "too high": lambda: [counts_wrong(1), refuses(COUNT), None],
    "endless": lambda: [counts_wrong(10**12), None, None],
    "too low": lambda: [counts_wrong(-48), None, None],
    "too low beside a refusal": lambda: [counts_wrong(-3), refuses(COUNT), None],
    "too high beside an outage": lambda: [counts_wrong(36, 1), refuses(COUNT, 3.0), refuses(COUNT, 3.0)],
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("lies", COUNTS.values(), ids=COUNTS)
def test_one_false_count_has_no_part_paid_twice(
    some_scene: Scene, monkeypatch: pytest.MonkeyPatch, lies: Callable[[], list[Lie | None]], place: int
) -> None:
    """The account has begun a game long ago, and completed another one later."""
    monkeypatch.setattr(agreed, "WAIT", 6.0)
    funded = some_scene.wallet()
    with interrupted(2):
        deploy(funded)
    for _ in range(40):
        funded.send(funded.address, b"", 1)
    game = deploy(funded)
    escrow = deploy_part(funded, NAME, game)
    assert count(funded) == 49
    again: list[tuple[str, Callable[[Wallet], str]]] = [
        (game, deploy), (escrow, lambda wallet: deploy_part(wallet, NAME, game))
    ]  # fmt: skip
    for address, deployed in again:
        made = lies()
        with endpoints(some_scene.chain.url, *made[place:], *made[:place]) as urls:
            assert deployed(Wallet(Chain(urls), funded.key)) == address
    assert count(funded) == 49


@pytest.mark.parametrize("place", range(3))
def test_a_dead_endpoint_ends_no_deployment(some_scene: Scene, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Beside one or two others."""
    monkeypatch.setattr(agreed, "WAIT", 3.0)
    funded, url = some_scene.wallet(), some_scene.chain.url
    for urls in ([url], [url, url.replace("127.0.0.1", "localhost")]):
        urls.insert(min(place, len(urls)), "http://127.0.0.1:9")
        assert vgame.Game.deploy(Wallet(Chain(urls), funded.key)).check_parts() and count(funded) == 6


def shows_no_receipt(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
    reply = asks_too_little_gas(query, truth)
    return {"result": None} if query["method"] == "eth_getTransactionReceipt" else reply


@pytest.mark.parametrize("lies", [(shows_no_receipt,), (shows_no_receipt,) * 3])
def test_a_failure_without_a_receipt_is_paid_once(
    some_scene: Scene, monkeypatch: pytest.MonkeyPatch, lies: tuple[Lie, ...]
) -> None:
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    monkeypatch.setattr(wallet_module, "RECEIPT_TIMEOUT", 1)
    monkeypatch.setattr(deployment, "most_gas", lambda name: int(most_gas(name) * 0.8))
    funded = some_scene.wallet()
    refused = pytest.raises(ChainError, match="which creates Pointwise, has failed, or nothing shows")
    with endpoints(some_scene.chain.url, *lies) as urls, refused:
        deploy(Wallet(Chain(urls), funded.key))
    assert count(funded) == 1


def test_a_refused_creation_prints_no_secret(some_scene: Scene) -> None:
    """Nor a text of any length."""

    def quotes(query: dict[str, Any], truth: Truth) -> dict[str, Any]:
        text = "denied for s3cr3tKEYabcdef" + 10**6 * "."
        revert = {"error": {"code": 3, "message": "execution reverted", "data": text}}
        return revert if query["method"] == "eth_estimateGas" else truth()

    funded = some_scene.wallet()
    with endpoints(some_scene.chain.url, quotes) as urls, pytest.raises(ChainError) as refused:
        deploy(Wallet(Chain(f"{urls[0]}/v3/s3cr3tKEYabcdef"), funded.key))
    assert "s3cr3tKEY" not in str(refused.value) and len(str(refused.value)) < 1_000 and count(funded) == 0


def test_parts_before_other_transactions_are_used(real_scene: Scene) -> None:
    wallet = real_scene.wallet()
    game = deploy(wallet)
    for _ in range(3):
        wallet.send(wallet.address, b"", 1)
    assert deploy(wallet) == game and count(wallet) == 9


class Behind(LyingProxy):
    """One URL, two nodes: each request goes to one of them, of which one lacks the newest block."""

    node: Chain
    dice: random.Random

    def do_POST(self) -> None:
        is_behind = self.dice.random() < 0.5
        type(self).lie = staticmethod(self.reply_behind) if is_behind else None
        super().do_POST()

    def truth(self, method: str, *params: Any) -> dict[str, Any]:
        reply: Any = self.node.web3.provider.make_request(method, params)  # type: ignore[arg-type]
        return {key: reply[key] for key in ("result", "error") if key in reply}

    def reply_behind(self, query: dict[str, Any], truth: Truth) -> dict[str, Any]:
        newest, method, params = self.node.block().number, query["method"], list(query["params"])
        if method == "eth_blockNumber":
            return {"result": hex(newest - 1)}
        if method == "eth_getTransactionReceipt":
            reply = truth()
            is_new = reply.get("result") and int(reply["result"]["blockNumber"], 16) == newest
            return {"result": None} if is_new else reply
        if method not in AT:
            return truth()
        named = params[AT[method]] if len(params) > AT[method] else "latest"
        if isinstance(named, dict):
            named = self.truth("eth_getBlockByHash", named["blockHash"], False)["result"]["number"]
        if named == hex(newest):
            return {"result": None} if method == "eth_getBlockByNumber" else {"error": UNKNOWN}
        params[AT[method]] = hex(newest - 1) if named == "latest" else named
        return self.truth(method, *params)


@contextmanager
def blocks(url: str, every: float) -> Iterator[None]:
    """A new block in each interval, in seconds."""
    over, chain = threading.Event(), Chain(url)

    def mine() -> None:
        while not over.wait(every):
            chain.web3.provider.make_request("evm_mine", [])  # type: ignore[arg-type]

    miner = threading.Thread(target=mine)
    miner.start()
    try:
        yield
    finally:
        over.set()
        miner.join()


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_is_behind_its_balancer_stops_no_deployment(
    some_scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    monkeypatch.setattr(agreed, "WAIT", 20.0)
    funded, node = some_scene.wallet(), Chain(some_scene.chain.url)
    node.fund(OTHER, 1)  # both nodes have the block that paid the account
    dice = random.Random(seed)
    with served(Behind, node.url, node=node, dice=dice) as (_, url), blocks(node.url, 1.0):
        done = run(SimpleNamespace(chain=SimpleNamespace(url=url), key=funded.key), "--registry", tmp_path / "g")
    assert done.exit_code == 0 and count(funded) == 6, done.exception
    assert read(tmp_path / "g")


def test_an_honest_estimate_above_the_bound_counts(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "most_gas", lambda name: int(most_gas(name) * 0.8))
    wallet = real_scene.wallet()
    assert vgame.Game.deploy(wallet).check_parts() and count(wallet) == 6


def test_a_part_that_was_undone_is_not_used(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced block takes the transaction of the first part away: the second may not have its number."""
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    wallet = real_scene.wallet()
    parts = deployment._Parts(wallet, ORDER)
    parts.after = 2  # two parts were created
    with pytest.raises(NotYet, match=r"show 0 transactions of .*, where 2 have created parts: a block was replaced"):
        parts.deploy("Logged", OTHER)
    assert count(wallet) == 0


def test_money_is_checked_for_all_that_the_wallet_asks(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each creation the wallet asks for its gas limit at twice the base fee; those before it are paid then."""
    wallet, base, tip = real_scene.wallet(), 10**10, 10**9
    asked: list[int] = []
    monkeypatch.setattr(Wallet, "_check_owned", lambda self, needed: asked.append(needed))
    monkeypatch.setattr(Chain, "fees", lambda self, of_all=False: (base, tip))
    for name in ORDER:
        creation = deployment._Creation(wallet, -1, most_gas(name))
        with pytest.raises(NotYet, match="is next, not -1"):  # it is not sent
            creation.send(None, b"")
    spent = [sum(most_gas(name) for name in ORDER[:n]) * (base + tip) for n in range(len(ORDER))]
    needed = max(before + most for before, most in zip(spent, asked, strict=True))
    parts = deployment._Parts(wallet, ORDER)
    monkeypatch.setattr(Chain, "balance", lambda self, address: needed - 1)
    with pytest.raises(ChainError, match=f"{needed} are needed"):
        parts._check_funds(ORDER[0])
    monkeypatch.setattr(Chain, "balance", lambda self, address: needed)
    parts._check_funds(ORDER[0])
