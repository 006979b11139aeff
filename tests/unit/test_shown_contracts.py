"""No money goes to a contract if only one of three endpoints shows its code."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import vgame
from vgame.chain import agreed
from vgame.chain.abi import artifact
from vgame.chain.agreed import check_contracts, median_of
from vgame.chain.anywhere import anywhere
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import ZERO_ADDRESS
from vgame.chain.registry import record
from vgame.chain.sending import send_until
from vgame.chain.turns import SHORTEST
from vgame.chain.wallet import Wallet, deploy_game
from vgame.errors import ChainError, ContractError, NotYet, VgameError

DEAD = "http://127.0.0.1:9"
ANOTHER = "0x" + 19 * "00" + "77"  # an address without code


def funded(chain: Chain) -> Wallet:
    wallet = Wallet(chain)
    chain.fund(wallet.address, 10**18)
    return wallet


def lie(chain: Chain, number: int, reply: Callable[[str, Any], Any]) -> None:
    """Make this endpoint return `reply(method, arguments)`, or its true reply where that is None."""
    assert chain.turns
    node = chain.turns.all[number].node

    def falsified(method: str, arguments: Any, request: Any = node.make_request) -> Any:
        found = reply(method, arguments)
        return request(method, arguments) if found is None else {"jsonrpc": "2.0", "id": 1, "result": found}

    node.make_request = falsified
    node._request_func_cache = (None, None)


def code_at(address: str, code: str) -> Callable[[str, Any], Any]:
    return lambda method, arguments: code if method == "eth_getCode" and arguments[0] == address else None


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed, "WAIT", 0.5)


@pytest.fixture
def game(urls: list[str]) -> Game:
    chain = Chain(urls[0])
    return Game(chain, deploy_game(funded(chain)))


def invented(urls: list[str], game: Game, false: int) -> tuple[Chain, Wallet]:
    """A connection of which one endpoint shows the game's code at another address, with an account."""
    chain = Chain(urls)
    wallet = funded(chain)
    lie(chain, false, code_at(ANOTHER, game.chain.web3.eth.get_code(game.address).to_0x_hex()))
    return chain, wallet


@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_invents_no_game(urls: list[str], game: Game, false: int) -> None:
    chain, wallet = invented(urls, game, false)
    Game(chain, ANOTHER, wallet)  # reading from it costs nothing
    for _ in range(6):
        chain.turn()
        with pytest.raises(ChainError, match=r"2 of 3 endpoints show other contracts|is not the VerificationGame"):
            wallet.send(ANOTHER, b"", 10**17)
    with pytest.raises(ChainError, match=r"2 of 3 endpoints show other contracts.*is not the VerificationGame"):
        check_contracts(chain)
    assert game.chain.balance(ANOTHER) == 0


@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_hides_no_game(urls: list[str], game: Game, false: int) -> None:
    chain = Chain(urls)
    wallet = funded(chain)
    lie(chain, false, code_at(game.address, "0x00"))
    Game(chain, game.address, wallet)
    sent = 0
    for _ in range(6):
        chain.turn()
        with suppress(ChainError):
            sent += wallet.send(ZERO_ADDRESS, b"", 1)["status"]
    check_contracts(chain)
    assert sent >= 4


@pytest.mark.parametrize("living", range(3))
def test_one_living_endpoint_is_enough(urls: list[str], game: Game, living: int) -> None:
    chain = Chain([urls[n] if n == living else DEAD for n in range(3)])
    wallet = funded(chain)
    Game(chain, game.address, wallet)
    assert wallet.send(ZERO_ADDRESS, b"", 1)["status"] == 1


def test_of_two_endpoints_both_must_show_it(urls: list[str], game: Game) -> None:
    chain = Chain(urls[:2])
    wallet = funded(chain)
    lie(chain, 1, code_at(game.address, "0x00"))
    Game(chain, game.address, wallet)
    with pytest.raises(ChainError, match="1 of 2 endpoints show other contracts"):
        wallet.send(ZERO_ADDRESS, b"", 1)


def test_a_check_that_is_added_is_made_at_each_endpoint(urls: list[str], game: Game) -> None:
    """As that of an escrow, after the endpoints have shown the game."""
    chain = Chain(urls)
    wallet = funded(chain)
    Game(chain, game.address, wallet)
    wallet.send(ZERO_ADDRESS, b"", 1)
    asked = set[int]()

    def check() -> None:
        asked.add(chain.endpoint)
        if chain.endpoint != 0:
            raise VgameError("another escrow")

    anywhere(chain, check)
    chain.checks.append(check)
    with pytest.raises(ChainError, match=r"2 of 3 endpoints show other contracts.*another escrow"):
        wallet.send(ZERO_ADDRESS, b"", 1)
    assert asked == {0, 1, 2}


def test_slow_endpoints_have_the_time_of_a_look_to_show_it(urls: list[str], game: Game, clock: list[float]) -> None:
    """The lying endpoint is quick."""
    chain, wallet = invented(urls, game, 0)
    for n in (1, 2):
        lie(chain, n, lambda *_: clock.__setitem__(0, clock[0] + 9))  # returns None: the true reply
    Game(chain, ANOTHER, wallet)
    with pytest.raises(ChainError, match="2 of 3 endpoints show other contracts"):
        wallet.send(ANOTHER, b"", 10**17)
    assert game.chain.balance(ANOTHER) == 0


def test_an_endpoint_that_lags_behind_a_deployment_is_waited_for(urls: list[str], game: Game) -> None:
    chain = Chain(urls[:2])
    wallet, replies = funded(chain), iter(["0x00"] * 3)
    lie(chain, 1, lambda method, _: next(replies, None) if method == "eth_getCode" else None)
    Game(chain, game.address, wallet)
    check_contracts(chain)


@pytest.mark.parametrize("false", range(3))
def test_the_error_of_most_endpoints_is_raised(urls: list[str], false: int) -> None:
    chain = Chain(urls)
    chain.turn()

    def question() -> int:
        raise ContractError(*(("NotTrained", ()) if chain.endpoint == false else ("NotOver", (chain.endpoint,))))

    with pytest.raises(ContractError, match="NotOver"):
        median_of(chain, question)


def test_no_endpoint_counts_twice(urls: list[str]) -> None:
    """The others are left out for a moment."""
    chain = Chain(urls)
    assert chain.turns
    chain.turn()
    first = chain.endpoint
    for n, endpoint in enumerate(chain.turns.all):
        endpoint.until = 0.0 if n == first else float("inf")
    chain.turns.all[(first + 1) % 3].until = 0.0

    def question() -> int:
        if chain.endpoint == first:
            raise ContractError("MarkMissed", ())
        return 7

    assert median_of(chain, question) == 7


@pytest.mark.parametrize("away", [None, 1, 2])
def test_money_is_sent_where_most_endpoints_show_it(urls: list[str], away: int | None) -> None:
    """The first endpoint shows none; another one may be left out."""
    chain = Chain(urls)
    wallet = funded(chain)
    lie(chain, 0, lambda method, _: "0x0" if method == "eth_getBalance" else None)
    assert chain.turns
    if away:
        chain.turns.all[away].until = float("inf")
    with pytest.raises(ChainError, match="has 0 wei"):
        wallet.send(ZERO_ADDRESS, b"", 1)
    assert send_until(wallet, "pay", lambda: wallet.send(ZERO_ADDRESS, b"", 1), len) > 0


def test_a_contract_is_refused_beside_many_others(urls: list[str], game: Game, clock: list[float]) -> None:
    """An honest endpoint that denies it has no time left for all checks before."""
    chain, wallet = invented(urls, game, 2)
    for _ in range(20):
        Game(chain, game.address, wallet)
    for n in (0, 1):
        lie(chain, n, lambda *_: clock.__setitem__(0, clock[0] + 5))
    Game(chain, ANOTHER, wallet)
    with pytest.raises(ChainError):
        wallet.send(ANOTHER, b"", 10**17)
    assert game.chain.balance(ANOTHER) == 0


@pytest.mark.parametrize("false", range(3))
def test_a_pinned_block_hides_no_denial(urls: list[str], game: Game, false: int) -> None:
    """The others know no block that one endpoint invents."""
    chain, wallet = invented(urls, game, false)
    Game(chain, ANOTHER, wallet)
    while chain.endpoint != false:
        chain.turn()
    with chain.pinned():
        chain.web3.eth.default_block = {"blockHash": "0x" + 64 * "7", "requireCanonical": True}
        with pytest.raises(ChainError, match="2 of 3 endpoints show other contracts"):
            check_contracts(chain)


def test_after_a_lag_an_endpoint_is_used_at_once(urls: list[str], game: Game) -> None:
    chain = Chain(urls[:2])
    wallet, replies = funded(chain), iter(["0x00"] * 3)
    lie(chain, 1, lambda method, _: next(replies, None) if method == "eth_getCode" else None)
    Game(chain, game.address, wallet)
    check_contracts(chain)
    assert chain.turns and all(e.until <= time.monotonic() and e.pause == SHORTEST for e in chain.turns.all)


@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_writes_no_registry(urls: list[str], game: Game, tmp_path: Path, false: int) -> None:
    """It shows a part with other immutables, which the comparison of its code leaves out."""
    part = game.check_parts()["Settlement"]
    code = bytearray(game.chain.web3.eth.get_code(part))
    code[artifact("Settlement")["immutables"][0] + 31] ^= 1
    chain = Chain(urls)
    lie(chain, false, code_at(part, "0x" + code.hex()))
    for name, shown in (("by one", Game(Chain(urls[0]), game.address)), ("by three", Game(chain, game.address))):
        record(tmp_path / name, shown)
    assert (tmp_path / "by one").read_text() == (tmp_path / "by three").read_text()
    beside = Chain([DEAD, urls[0]])
    record(tmp_path / "beside a dead one", Game(beside, game.address))
    chain = Chain([DEAD, *urls[1:]])
    lie(chain, 1, code_at(part, "0x" + code.hex()))
    with pytest.raises(NotYet, match="1 of the endpoints agree on the parts of the game, 2 are needed"):
        record(tmp_path / "by one of two", Game(chain, game.address))


def shows_strangers(chain: Chain, true: Game, what: str, false: int) -> None:
    """One endpoint alone shows a game of vgame, or an escrow for the true game, at ANOTHER."""
    code = true.chain.web3.eth.get_code(true.address).hex() if what == "game" else artifact("AccuracyEscrow")["runtime"]

    def shown(method: str, arguments: Any) -> Any:
        if method == "eth_call" and arguments[0]["to"] == ANOTHER:
            if what == "escrow":
                return "0x" + true.address[2:].rjust(64, "0")
            call = [arguments[0] | {"to": true.address}, *arguments[1:]]
            return true.chain.web3.provider.make_request(method, call)["result"]
        return code_at(ANOTHER, "0x" + code)(method, arguments)

    lie(chain, false, shown)


def open_strangers(game: Game, what: str, wallet: Wallet | None) -> None:
    own = vgame.Game(game.chain, game.address, wallet) if what == "escrow" else None
    vgame.Escrow(own, ANOTHER) if own else vgame.Game(game.chain, ANOTHER, wallet)


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("what", ["game", "escrow"])
@pytest.mark.parametrize("false", range(3))
def test_a_contract_that_one_endpoint_shows_is_refused_and_blocks_no_transactions(
    urls: list[str], game: Game, what: str, false: int, order: str, sends: bool
) -> None:
    """With a wallet or without, beside the user's game: `vgame.Escrow.check` would read the contract of an attacker.
    Nor is an honest endpoint left out because it does not show it."""
    chain = Chain(urls)
    wallet = funded(chain)
    shows_strangers(chain, game, what, false)
    if order == "after":
        Game(chain, game.address, wallet)
        wallet.send(ZERO_ADDRESS, b"", 1)
    own = Game(chain, game.address)
    known, first = list(chain.checks), chain.endpoint
    with pytest.raises(ChainError, match="2 of 3 endpoints show other contracts"):
        open_strangers(own, what, wallet if sends else None)
    assert what == "escrow" or (chain.checks, chain.endpoint) == (known, first)
    if order == "before":
        Game(chain, game.address, wallet)
    assert chain.turns
    for _ in range(6):
        chain.turn()
        assert wallet.send(ZERO_ADDRESS, b"", 1)["status"] == 1
    assert chain.turns.answering == 3 and all(e.until <= time.monotonic() for e in chain.turns.all)


@pytest.mark.parametrize("false", range(3))
def test_a_false_address_of_a_deployment_blocks_no_transactions(urls: list[str], game: Game, false: int) -> None:
    chain = Chain(urls)
    own = vgame.Game(chain, game.address, funded(chain))
    shows_strangers(chain, game, "escrow", false)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wallet, "deploy", lambda *_: ANOTHER)
        patch.setattr(agreed, "WAIT", 0.2)
        with pytest.raises(NotYet, match="most endpoints do not show its effect"):
            vgame.Escrow.deploy(own)
    assert own.wallet
    for _ in range(6):
        chain.turn()
        assert own.wallet.send(ZERO_ADDRESS, b"", 1)["status"] == 1
    assert chain.turns and chain.turns.answering == 3


@pytest.mark.parametrize("false", range(3))
def test_a_command_that_only_reads_checks_the_contract_at_each_endpoint(
    urls: list[str], game: Game, false: int
) -> None:
    """As by `vgame status`: the contract of an attacker would show the same at each endpoint."""
    chain = Chain(urls)
    shows_strangers(chain, game, "game", false)
    Game(chain, ANOTHER)
    with pytest.raises(NotYet, match="1 of the endpoints agree"):
        agreed.agreed(chain, "it", lambda: chain.block(0).number)


def test_one_endpoint_uses_up_no_time_for_an_effect(urls: list[str]) -> None:
    """It hangs until the time is over; the others show the effect when they are asked again."""
    chain, asked = Chain(urls), list[int]()

    def effect() -> bool:
        asked.append(chain.endpoint)
        if chain.endpoint == 0:
            time.sleep(1.2 * agreed.WAIT)
        return asked.count(chain.endpoint) > 1

    assert agreed.shown_by(chain, effect, wait=True)


def test_an_interrupted_check_is_made_again(urls: list[str]) -> None:
    """At each endpoint: nothing is read from one that was checked in part."""
    chain, made = Chain(urls), list[int]()
    assert chain.turns

    def check() -> None:
        made.append(chain.endpoint)
        chain.ask(interrupted if len(made) == 1 else lambda: chain.web3.eth.block_number)

    def interrupted() -> None:
        raise KeyboardInterrupt

    chain.checks.append(check)
    chain.turn()
    with pytest.raises(KeyboardInterrupt):
        chain.block()
    chain.block()
    assert made == [1, 1]
    made.clear()
    with pytest.raises(KeyboardInterrupt):
        check_contracts(chain)
    assert chain.endpoint == 1 and len(made) == 1
    check_contracts(chain)
    assert made == [0, 0, 1]
