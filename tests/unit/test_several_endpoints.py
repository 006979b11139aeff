"""Several endpoints of one chain: the endpoint of a look, and the number of endpoints that have to agree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from vgame.chain import final
from vgame.chain.anywhere import anywhere
from vgame.chain.connect import connect
from vgame.chain.connection import FINALITY, GWEI, Chain
from vgame.chain.final import MOMENT, Lasting, most_answering, one
from vgame.chain.records import ZERO_ADDRESS
from vgame.chain.turns import LONGEST, SHORTEST
from vgame.chain.wallet import Wallet
from vgame.delivery.calls import Calls
from vgame.delivery.rules import Snapshot
from vgame.errors import Abstain, ChainError, ContractError, EndpointError, VgameError

DEAD = "http://127.0.0.1:9"


def used(chain: Chain, looks: int) -> list[int]:
    """The endpoints of the next looks; those that fail are noted as failed."""
    found = []
    for _ in range(looks):
        chain.turn()
        found.append(chain.endpoint)
        try:
            chain.now()
        except ChainError:
            found[-1] = -1 - chain.endpoint
    return found


def test_each_look_uses_the_next_endpoint(urls: list[str]) -> None:
    chain = Chain(urls)
    assert used(chain, 6) == [1, 2, 0, 1, 2, 0]


def test_an_endpoint_that_fails_is_left_out_for_longer_and_longer(urls: list[str], clock: list[float]) -> None:
    chain = Chain([urls[0], DEAD, urls[1]])
    assert used(chain, 5) == [-2, 2, 0, 2, 0] and most_answering(chain) == 2
    pause = SHORTEST
    for _ in range(6):
        clock[0] += pause + 1
        assert -2 in used(chain, 3) and -2 not in used(chain, 3)
        pause = min(2 * pause, LONGEST)
    assert pause == LONGEST


def test_the_first_one_may_be_dead(urls: list[str]) -> None:
    chain = Chain([DEAD, urls[0]])
    assert chain.chain_id == Chain(urls[0]).chain_id and chain.now()
    with pytest.raises(ChainError, match="is the node running"):
        Chain([DEAD, DEAD])


def test_each_endpoint_is_checked_before_its_first_reply_counts(urls: list[str]) -> None:
    chain, checked = Chain(urls), []
    chain.checks.append(lambda: checked.append(chain.endpoint))
    used(chain, 6)
    assert checked == [1, 2]


def test_a_look_at_one_block_stays_at_its_endpoint(urls: list[str]) -> None:
    chain = Chain(urls)
    with chain.pinned():
        assert used(chain, 3) == [0, 0, 0]
        with chain.released():
            chain.turn()
            assert chain.endpoint == 1
        assert chain.endpoint == 0
    assert used(chain, 1) == [1]


def test_all_endpoints_get_a_transaction_and_the_middle_reply_counts(urls: list[str]) -> None:
    chain = Chain(urls)
    replies = iter([5, 0, 6])
    assert chain.median(lambda _: next(replies)) == 5 and chain.endpoint == 0
    for found, middle in [((9, 5), 9), ((5, 9), 5), ((1, 3, 5, 7), 3), ((4, 3, 5, 7), 4)]:
        with patch.object(chain, "_from_all", lambda _, found=found: list(found)):
            assert chain.median(lambda _: 0) == middle
    sent = []
    chain.web3.eth.send_raw_transaction = lambda raw: sent.append((chain.endpoint, raw))  # type: ignore[method-assign]
    chain.publish(b"signed")
    assert sent == [(n, b"signed") for n in range(3)]


def test_a_transaction_that_one_endpoint_takes_is_sent(urls: list[str]) -> None:
    chain = Chain([DEAD, urls[0], DEAD])
    chain.web3.eth.send_raw_transaction = lambda raw: chain.now()  # type: ignore[method-assign]
    chain.publish(b"signed")
    dead = Chain(urls[:2])
    dead.web3.eth.send_raw_transaction = lambda raw: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ChainError, match="ZeroDivisionError"):
        dead.publish(b"signed")


@pytest.mark.parametrize("living", range(3))
def test_a_command_without_looks_needs_one_living_endpoint(urls: list[str], living: int) -> None:
    chain = Chain([urls[0] if n == living else DEAD for n in range(3)])
    assert chain.median(lambda eth: eth.block_number) == chain.block().number
    assert chain.turns and chain.turns.answering == 1


@pytest.mark.parametrize("first", range(3))
def test_one_endpoint_of_three_sets_no_fees(urls: list[str], first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A false base fee would also permit a false tip, which is paid."""
    chain = Chain(urls)
    assert chain.turns
    wallet = Wallet(chain)
    chain.fund(wallet.address, 10**19)
    honest, falsified = chain.fees(), chain.turns.all[first].node
    request = falsified.make_request

    def dear(method: str, arguments: object) -> object:
        reply = request(method, arguments)
        if method == "eth_maxPriorityFeePerGas":
            return reply | {"result": hex(400 * GWEI)}
        return reply | {"result": reply["result"] | {"baseFeePerGas": hex(450 * GWEI)}} if "Block" in method else reply

    monkeypatch.setattr(falsified, "make_request", dear)
    falsified._request_func_cache = (None, None)
    sale: Any = SimpleNamespace(game=SimpleNamespace(chain=chain))
    for _ in range(3):
        chain.turn()
        priced = Calls._priced(sale, Snapshot(0, 0, 400 * GWEI, None, None, (), tip=400 * GWEI))  # type: ignore[arg-type]
        assert max(priced.base, priced.tip) <= max(honest)
        before = chain.balance(wallet.address)
        receipt = wallet.send(ZERO_ADDRESS, b"", 1)
        assert chain.fees(of_all=True)[1] == honest[1]
        assert before - chain.balance(wallet.address) <= 1 + receipt["gasUsed"] * 2 * sum(honest)


def test_no_endpoint_alone_ends_a_command_at_its_start(urls: list[str]) -> None:
    """If each one leads to an error, that counts against none."""
    chain, asked, checked = Chain(urls), list[int](), list[int]()
    chain.checks.append(lambda: checked.append(chain.endpoint))

    def question(right: int, error: type[VgameError]) -> int:
        asked.append(chain.endpoint)
        if chain.now() and chain.endpoint != right:
            raise error(f"endpoint {chain.endpoint} shows another job")
        return right

    assert anywhere(chain, lambda: question(2, Abstain)) == 2 and asked == [0, 1, 2] and checked == [1, 2]
    assert anywhere(chain, lambda: question(1, ChainError)) == 1 and asked[3:] == [2, 0, 1]
    assert chain.turns and [e.until > 0 for e in chain.turns.all] == [True, False, True]
    for error in (Abstain, ChainError):
        with pytest.raises(error, match="endpoint 1 shows"):
            anywhere(chain, lambda error=error: question(3, error))  # type: ignore[misc]
    assert [e.until > 0 for e in chain.turns.all] == [True, False, True]


def test_contracts_that_cannot_be_checked_are_no_reply(urls: list[str]) -> None:
    chain = Chain(urls[0])

    def reverts() -> None:
        raise ContractError("NoJob", ())

    chain.checks.append(reverts)
    chain.lost = True
    for _ in range(2):
        with pytest.raises(EndpointError, match="cannot be checked"):
            chain.now()


class Looks:
    """Looks at three endpoints, one look every 12 seconds."""

    def __init__(self, chain: Chain, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chain, "is_development", False)
        self.chain, self.clock, self.lasting = chain, clock, Lasting(chain)

    def seconds(self, *shown: bool, of: object = final.most, rounds: int = 1) -> float:
        """The seconds for which a condition has lasted, after `rounds` in which each endpoint has shown it or not."""
        found = 0.0
        for _ in range(rounds):
            for so in shown:
                self.clock[0] += 12
                self.chain.turn()
                self.chain.now()
                found = max(self.lasting.held("it", so, of), found * (not so))  # type: ignore[arg-type]
        return found


@pytest.fixture
def looks(urls: list[str], clock: list[float], monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(Chain(urls), clock, monkeypatch)


def test_one_endpoint_of_three_establishes_no_condition(looks: Looks) -> None:
    """However long it shows the condition. For a stake one endpoint is enough, since a stake names its claim."""
    assert looks.seconds(False, True, False, rounds=200) == 0
    assert looks.seconds(False, True, rounds=1, of=one) >= FINALITY


def test_one_endpoint_of_three_prevents_no_condition(looks: Looks) -> None:
    assert looks.seconds(True, False, True, rounds=4) >= MOMENT
    assert looks.seconds(True, False, True, rounds=30) >= FINALITY


def test_a_look_without_the_condition_restarts_the_time_of_its_endpoint(looks: Looks) -> None:
    looks.seconds(True, True, True, rounds=30)
    looks.seconds(False, False, True)
    assert looks.seconds(True) == 0 and looks.seconds(True, True, True) < FINALITY


def test_at_the_last_moment_most_of_the_answering_endpoints_are_enough(urls: list[str]) -> None:
    """Of two endpoints, both: one alone would decide which moment is the last."""
    chain = Chain([*urls, DEAD, DEAD])
    assert most_answering(chain) == final.most(chain) == 3
    used(chain, 5)
    assert most_answering(chain) == 2 and final.most(chain) == 3
    assert most_answering(Chain(urls[:2])) == 2 and most_answering(Chain(urls[0])) == 1


def test_an_endpoint_without_recent_looks_does_not_count(looks: Looks) -> None:
    """It showed the condition long ago. Now a lying endpoint shows it, and an honest one does not."""
    looks.seconds(True, True, True, rounds=30)
    looks.clock[0] += FINALITY
    assert looks.chain.turns is not None
    found = 0.0
    for _ in range(100):
        for at, so in ((1, True), (2, False)):
            looks.chain.turns.at = at
            looks.clock[0] += 12
            found = max(found, looks.lasting.held("it", so))
    assert found == 0


def test_a_first_endpoint_of_another_chain_is_passed_over(
    urls: list[str], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its replies do not count later."""
    right = Chain(urls[0]).chain_id
    ids = iter([5])
    usual = Chain.ask

    def ask(self: Chain, question: object) -> object:
        found = usual(self, question)  # type: ignore[arg-type]
        return next(ids, found) if found == right and self.endpoint == 0 else found

    monkeypatch.setattr(Chain, "ask", ask)
    chain = Chain(urls, right)
    assert chain.chain_id == right and chain.endpoint == 1
    ids = iter([5] * 100)
    assert used(chain, 3) == [2, 1, 2]
    clock[0] += SHORTEST + 1
    assert used(chain, 3) == [-1, 1, 2]
    with pytest.raises(ChainError, match="was expected"):
        Chain(urls[0], right + 1)


def test_the_user_names_the_chain_unless_all_endpoints_are_on_this_machine(urls: list[str]) -> None:
    far = urls[0].replace("127.0.0.1", "0.0.0.0")  # the same, but not by a name of loopback
    assert connect([urls[0]]).chain_id
    with pytest.raises(ChainError, match="--chain-id"):
        connect([urls[0], far])
