"""No endpoint blocks a look, neither by slow replies nor by their size, number or text."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from web3.exceptions import Web3RPCError
from wide import of_many

from vgame.agents.named_jobs import Limits, NamedJobs
from vgame.chain import wallet as wallets
from vgame.chain.anywhere import anywhere
from vgame.chain.connection import MOST_SHOWN, Chain
from vgame.chain.game import JOBS, PAGE, Game
from vgame.chain.look import OTHERS, SENDS, STALE
from vgame.chain.records import MOST_REQUESTS, ZERO_ADDRESS, Level
from vgame.chain.turns import LONGEST, MOST, PATIENCE, SHORTEST
from vgame.chain.wallet import Wallet
from vgame.errors import ChainError, EndpointError, NotYet

DEAD = "http://127.0.0.1:9"


class Slow:
    """Looks at endpoints, each with its own seconds for a reply."""

    def __init__(self, chain: Chain, clock: list[float], *seconds: float) -> None:
        self.chain, self.clock, self.seconds = chain, clock, seconds

    def ask(self) -> int:
        def question() -> int:
            self.clock[0] += self.seconds[self.chain.endpoint]
            return self.chain.web3.eth.block_number

        return self.chain.ask(question)

    def look(self, requests: int = 1_000) -> tuple[int, float]:
        """Make one look; its endpoint and its duration in seconds."""
        self.chain.turn()
        endpoint, begin = self.chain.endpoint, self.clock[0]
        try:
            for _ in range(requests):
                self.ask()
        except ChainError:
            pass
        return endpoint, self.clock[0] - begin


def test_no_endpoint_blocks_a_look(urls: list[str], clock: list[float]) -> None:
    slow = Slow(Chain(urls), clock, 0.01, 7.0, 0.01)
    assert slow.look()[0] == 1
    with pytest.raises(ChainError, match=r"replies of .* to one look took"):
        slow.ask()
    assert [slow.look(10)[0] for _ in range(4)] == [2, 0, 2, 0]  # it is left out
    clock[0] += SHORTEST
    endpoint, seconds = slow.look()
    assert endpoint == 1 and PATIENCE <= seconds < PATIENCE + 7


def test_an_endpoint_that_is_always_almost_too_slow_is_left_out_for_longer_and_longer(
    urls: list[str], clock: list[float]
) -> None:
    slow, begin, spent = Slow(Chain(urls), clock, 1.0, 7.0, 1.0), clock[0], 0.0
    while clock[0] - begin < 3_600:
        endpoint, seconds = slow.look(8)
        spent += seconds if endpoint == 1 else 0
    assert spent < 20 * 56  # of an hour; LONGEST between two looks later
    assert slow.chain.turns and slow.chain.turns.all[1].pause == LONGEST


@pytest.mark.parametrize("third", of_many([7.0, 0.01], 7.0))
def test_if_most_endpoints_are_slow_looks_take_longer(urls: list[str], clock: list[float], third: float) -> None:
    """A quick endpoint prevents neither this nor the later return to short looks."""
    slow = Slow(Chain(urls), clock, 7.0, 7.0, third)
    assert slow.chain.turns

    def looks(count: int) -> dict[int, float]:
        found = {}
        for _ in range(count):
            clock[0] += 12
            endpoint, seconds = slow.look(20)
            found[endpoint] = seconds
        return found

    looks(200)
    assert slow.chain.turns.patience == 4 * PATIENCE
    found = looks(100)
    assert found[0] == found[1] == 140
    slow.seconds = 0.01, 0.01, 7.0
    looks(100)
    assert slow.chain.turns.patience == PATIENCE


def test_one_slow_look_counts_once(urls: list[str], clock: list[float]) -> None:
    """A transaction sends several requests to each endpoint; a slow endpoint that does not fail still receives them."""
    slow = Slow(Chain(urls), clock, 4.0, 0.01, 0.01)
    slow.chain.turn(), slow.chain.turn(), slow.chain.turn()
    for _ in range(10):
        slow.ask()
    for _ in range(6):
        slow.chain.median(lambda eth: eth.block_number)
    slow.chain.turn()
    assert slow.chain.turns and slow.chain.turns.all[0].pause == 2 * SHORTEST
    asked = list[int]()
    slow.chain.median(lambda _: asked.append(slow.chain.endpoint) or 0)
    assert sorted(asked) == [0, 1, 2]


def test_a_wait_for_a_receipt_leaves_the_look_its_time(urls: list[str], clock: list[float]) -> None:
    slow = Slow(Chain(urls), clock, 3.0, 3.0, 3.0)
    slow.chain.turn()
    with slow.chain.released():
        slow.chain.turn()
    for _ in range(15):
        slow.ask()
    assert slow.chain.endpoint == 1


def test_requests_without_looks_are_not_one_long_look(urls: list[str], clock: list[float]) -> None:
    slow = Slow(Chain(urls), clock, 1.0, 1.0, 1.0)
    for _ in range(200):
        slow.ask()
    slow.look(1)
    for _ in range(3):
        clock[0] += STALE + 1
        for _ in range(int(PATIENCE) - 1):
            slow.ask()
    with pytest.raises(ChainError):
        slow.ask(), slow.ask()


def test_another_endpoint_holds_a_transaction_for_a_moment_only(urls: list[str], clock: list[float]) -> None:
    chain, begin = Chain(urls), clock[0]

    def question(eth: Any) -> int:
        clock[0] += 4 * (chain.endpoint == 2)
        return eth.block_number

    for _ in range(3):
        chain.turn()
    for _ in range(20):
        chain.median(question)
    assert clock[0] - begin <= PATIENCE / OTHERS + 4 and chain.endpoint == 0


@pytest.mark.parametrize("seconds", of_many([0.05, 0.3, 1.0, 6.0], 0.3, 6.0))
def test_a_look_at_one_endpoint_leaves_no_other_one_out(urls: list[str], clock: list[float], seconds: float) -> None:
    """The third endpoint invents moves that fail, and each move sends several requests to the others. It sets no value,
    and a third of the looks are its own."""
    slow, looks = Slow(Chain(urls), clock, seconds, seconds, 0.01), list[int]()
    chain, failed = slow.chain, 0

    def question(eth: Any) -> int:
        clock[0] += slow.seconds[chain.endpoint]
        return 10**6 if chain.endpoint == 2 else eth.block_number

    for _ in range(60):
        looks.append(slow.look(3)[0])
        for _ in range(100 if chain.endpoint == 2 else 1):
            try:
                assert chain.median(question) < 10**6
            except NotYet:
                failed += chain.endpoint != 2
    assert all(looks.count(n) >= 18 for n in range(3)) and not failed
    assert chain.turns and chain.turns.answering == 3


def test_looks_take_longer_if_too_few_endpoints_answer_in_their_part(urls: list[str], clock: list[float]) -> None:
    """Most of them take half of the part for each reply, and a look asks all of them three times."""
    slow, found = Slow(Chain(urls), clock, PATIENCE / OTHERS / 2, PATIENCE / OTHERS / 2, 0.01), list[bool]()
    chain = slow.chain

    def question(eth: Any) -> int:
        clock[0] += slow.seconds[chain.endpoint] if chain.endpoint < 2 else 0
        if chain.endpoint == 2:
            raise ChainError("it does not answer as another one")
        return eth.block_number

    for _ in range(60):
        slow.look(2)
        if chain.endpoint == 2:
            continue
        try:
            found.append(all(chain.median(question) >= 0 for _ in range(3)))
        except NotYet:
            found.append(False)
    assert found.count(True) > len(found) // 2


def test_one_transaction_that_reverts_ends_those_of_its_look(urls: list[str], clock: list[float]) -> None:
    chain, sent = Chain(urls), list[int]()
    turns = chain.turns
    assert turns

    def send(status: int) -> None:
        sent.append(chain.endpoint)
        turns.attempt(lambda: {"status": status})

    for _ in range(6):
        chain.turn()
        with suppress(NotYet):
            send(1), send(1), send(0)
            turns.attempt(lambda: pytest.fail("another one is sent in this look"))
    assert sorted(sent) == [0] * 6 + [1] * 6 + [2] * 6


def test_failed_attempts_to_send_end_those_of_a_look_after_its_time(urls: list[str], clock: list[float]) -> None:
    chain, attempts = Chain(urls), 0
    turns = chain.turns
    assert turns

    def send() -> None:
        nonlocal attempts
        attempts += 1
        clock[0] += 12
        chain.turn()  # as a wait for a receipt does
        raise ChainError("it is not included")

    chain.turn()
    for _ in range(100):
        with pytest.raises((ChainError, NotYet)):
            turns.attempt(send)
    assert attempts == PATIENCE / 12


def test_the_transactions_of_a_look_end_even_if_each_seems_to_have_an_effect(
    urls: list[str], clock: list[float]
) -> None:
    """Its endpoint may show receipts without end."""
    chain, begin = Chain(urls), clock[0]
    turns = chain.turns
    assert turns

    def send() -> dict[str, int]:
        for _ in range(3):
            clock[0] += 4
            chain.turn()
        return {"status": 1}

    chain.turn()
    with pytest.raises(NotYet):
        while True:
            turns.attempt(send)
    assert clock[0] - begin == SENDS * PATIENCE
    chain.turn()
    turns.attempt(send)


@pytest.mark.parametrize("slow", [0.36, 4.0, 6.0])
def test_failed_attempts_do_not_use_up_the_time_of_a_slower_endpoint(
    urls: list[str], clock: list[float], slow: float
) -> None:
    """The third endpoint is hostile; with two replies in all, its own would be the middle one."""
    chain = Chain(urls)
    assert chain.turns
    found = list[int]()

    def fees() -> dict[str, int]:
        for _ in range(3):
            found.append(chain.median(question))
        raise ChainError("no money")

    def question(eth: Any) -> int:
        clock[0] += (0.3, slow, 0.01)[chain.endpoint]
        return 10**6 if chain.endpoint == 2 else eth.block_number

    while chain.endpoint != 2:
        chain.turn()
    for _ in range(12):
        before = len(found)
        with suppress(ChainError, NotYet):
            chain.turns.attempt(fees)
        assert found[before:][:1] < [10**6]
    assert len(found) >= 5


@pytest.mark.parametrize("dead", range(2))
def test_a_slow_endpoint_beside_a_dead_one_gets_its_time(urls: list[str], clock: list[float], dead: int) -> None:
    chain = Chain([DEAD if n == dead else urls[n] for n in range(2)])
    slow = Slow(chain, clock, 6.0, 6.0)
    assert len(anywhere(chain, lambda: [slow.ask() for _ in range(16)])) == 16
    looks = [slow.look(16) for _ in range(16)]
    assert [seconds for endpoint, seconds in looks if endpoint != dead][-4:] == [96] * 4
    assert chain.turns and chain.turns.patience <= MOST


@pytest.mark.parametrize("seconds", [0.3, 7.0, 59.0])
def test_one_endpoint_delays_a_start_for_a_look_only(urls: list[str], clock: list[float], seconds: float) -> None:
    slow = Slow(Chain(urls), clock, seconds, 0.3, 0.3)
    begin = clock[0]
    anywhere(slow.chain, lambda: [slow.ask() for _ in range(16)])
    assert clock[0] - begin < PATIENCE + 70
    for _ in range(100):  # commands without looks continue
        slow.ask()


def test_of_two_endpoints_a_slow_one_keeps_no_look_long(urls: list[str], clock: list[float]) -> None:
    """While the other endpoint was unreachable, the looks at the slow one became long."""
    slow = Slow(Chain(urls[:2]), clock, 0.01, 7.0)
    turns = slow.chain.turns
    assert turns
    slow.look(1), slow.look(1)
    turns.all[0].lost = turns.all[0].failed = True
    turns.all[0].until = clock[0] + 900
    if turns.at == 0:
        slow.chain.lost = True
    while turns.patience < MOST:
        slow.look()
    clock[0] += 900
    looks = [slow.look() for _ in range(20)]
    assert all(seconds <= PATIENCE + 7 for endpoint, seconds in looks[12:] if endpoint == 1)


def test_a_start_at_slow_endpoints_takes_longer(urls: list[str], clock: list[float]) -> None:
    slow = Slow(Chain(urls), clock, 7.0, 7.0, 7.0)
    assert len(anywhere(slow.chain, lambda: [slow.ask() for _ in range(16)])) == 16


def game_with(urls: list[str], reply: Any) -> Game:
    game = object.__new__(Game)
    game.chain, game._call, game.address = Chain(urls[0]), lambda *_: reply, ZERO_ADDRESS  # type: ignore[method-assign]
    return game


def test_more_entries_than_the_contract_can_have_are_no_reply(urls: list[str]) -> None:
    job = bytes(32)
    with pytest.raises(EndpointError, match=f"0 entries, {PAGE} to {PAGE} are possible"):
        list(game_with(urls, []).all_disputes(job, 2**32 - 1))
    with pytest.raises(EndpointError, match=f"5000 entries, 0 to {MOST_REQUESTS} are possible"):
        game_with(urls, [()] * 5_000).requests(job)
    with pytest.raises(EndpointError, match=f"201 entries, 0 to {PAGE} are possible"):
        game_with(urls, ([job] * 201, 2**200)).claims_of(job)
    with pytest.raises(EndpointError, match="3 entries, 1 to 1 are possible"):
        game_with(urls, [()] * 3).posts(job, Level.TRACE, [4])


def test_a_refusal_is_shown_in_one_line_without_secrets(urls: list[str]) -> None:
    chain = Chain(f"{urls[0]}/a-key-that-is-secret")

    def refused(text: str) -> str:
        def question() -> None:
            raise Web3RPCError(text)

        with pytest.raises(ChainError) as found:
            chain.ask(question)
        return str(found.value)

    assert len(refused("x" * 10**7)) < MOST_SHOWN + 100
    echoed = refused("/a-key-that-is-secret " * 10**5)
    assert len(echoed) < MOST_SHOWN + 100 and "a-key" not in echoed


def test_each_endpoint_shows_all_hunted_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 claims in three pages, and three endpoints: no page falls to one endpoint alone."""
    chain = SimpleNamespace(endpoint=0)
    named = NamedJobs(SimpleNamespace(chain=chain), SimpleNamespace(program_root=bytes(32)), Limits())  # type: ignore[arg-type]
    claims = [bytes([n]) for n in range(3 * JOBS)]
    monkeypatch.setattr(NamedJobs, "hunted", dict.fromkeys(claims))
    shown: dict[int, set[bytes]] = {}
    for look in range(9):
        chain.endpoint = look % 3
        shown.setdefault(chain.endpoint, set()).update(named.others([]))
    assert all(found == set(claims) for found in shown.values())


@pytest.mark.parametrize("first", range(3))
def test_one_endpoint_of_three_invents_no_receipt(urls: list[str], first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the transaction alone, and shows its receipt; the others refuse it."""
    monkeypatch.setattr(wallets, "RECEIPT_TIMEOUT", 0.2)
    chain = Chain(urls)
    assert chain.turns
    wallet = Wallet(chain)
    chain.fund(wallet.address, 10**18)
    for n, endpoint in enumerate(chain.turns.all):

        def falsified(method: str, arguments: Any, request: Any = endpoint.node.make_request, n: int = n) -> Any:
            if method == "eth_sendRawTransaction":
                refusal = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32_000, "message": "transaction underpriced"}}
                return {"jsonrpc": "2.0", "id": 1, "result": "0x" + 64 * "1"} if n == first else refusal
            if method == "eth_getTransactionReceipt" and n == first:
                receipt = {"status": "0x1", "transactionHash": arguments[0], "blockNumber": "0x1"}
                return {"jsonrpc": "2.0", "id": 1, "result": receipt}
            return request(method, arguments)

        monkeypatch.setattr(endpoint.node, "make_request", falsified)
        endpoint.node._request_func_cache = (None, None)
    with pytest.raises(ChainError, match="is not included"):
        wallet.send(ZERO_ADDRESS, b"", 1)
