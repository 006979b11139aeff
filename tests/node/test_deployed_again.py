"""A second command continues an interrupted deployment: no part is paid twice, and no single endpoint ends it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from proxy import LyingProxy, served
from scene import Scene
from typer.testing import CliRunner

import vgame
from vgame.chain import agreed, deployment, registry
from vgame.chain.abi import artifact
from vgame.chain.connection import Chain
from vgame.chain.deployment import ORDER, deploy, deploy_part, most_gas
from vgame.chain.escrow import NAME
from vgame.chain.registry import check_room, record
from vgame.chain.wallet import Wallet, deploy_game
from vgame.cli.commands import app
from vgame.errors import ChainError, VgameError

OTHER = "0x" + "11" * 20
Lie = Callable[[dict[str, Any], Callable[[], dict[str, Any]]], dict[str, Any]]


def count(wallet: Wallet) -> int:
    return wallet.chain.web3.eth.get_transaction_count(wallet.address)


@contextmanager
def interrupted(after: int) -> Iterator[None]:
    """Ctrl-C after the first `after` transactions of a deployment."""
    usual, left = Wallet.deploy, iter(range(after))

    def deployed(self: Wallet, name: str, *args: str) -> str:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return usual(self, name, *args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Wallet, "deploy", deployed)
        yield


@pytest.mark.parametrize("after", [1, 3, 5])
def test_an_interrupted_deployment_is_continued(real_scene: Scene, after: int) -> None:
    wallet = real_scene.wallet()
    with interrupted(after):
        vgame.Game.deploy(wallet)
    assert count(wallet) == after
    game = vgame.Game.deploy(wallet)
    assert count(wallet) == 6 and tuple(sorted(game.check_parts())) == tuple(sorted(ORDER))


def test_a_complete_game_is_found_again_until_the_account_has_sent_much_else(
    real_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "BACK", 2)
    wallet = real_scene.wallet()
    game = deploy(wallet)
    for n in range(3):
        assert deploy(wallet) == game and count(wallet) == 6 + n
        wallet.send(wallet.address, b"", 1)
    assert deploy(wallet) != game and count(wallet) == 15


def test_a_transaction_of_another_process_stops_no_deployment(real_scene: Scene) -> None:
    wallet = real_scene.wallet()
    usual, sent = Wallet.deploy, []

    def deployed(self: Wallet, name: str, *args: str) -> str:
        if name == "Logged" and not sent:
            sent.append(self.send(self.address, b"", 1))
        return usual(self, name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wallet, "deploy", deployed)
        patch.setattr(agreed, "WAIT", 1.0)
        assert vgame.Game.deploy(wallet) and count(wallet) == 7


@pytest.mark.parametrize("part", ["Pointwise", "Logged"])
def test_a_part_that_an_earlier_command_makes_meanwhile_is_not_paid_again(real_scene: Scene, part: str) -> None:
    """Its transaction was pending when the command was killed, and is included between a look and the next sending."""
    wallet = real_scene.wallet()
    usual, pending = Wallet.deploy, [part]

    def deployed(self: Wallet, name: str, *args: str) -> str:
        if name in pending:
            pending.remove(name)
            usual(Wallet(self.chain, self.key), name, *args)
        return usual(self, name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wallet, "deploy", deployed)
        assert vgame.Game.deploy(wallet).check_parts() and count(wallet) == 6


def test_parts_of_another_game_are_not_used(real_scene: Scene) -> None:
    """The referee of these has another contract for functions than the account's own one."""
    wallet = real_scene.wallet()
    other = real_scene.wallet().deploy("Pointwise")
    wallet.deploy("Pointwise")
    wallet.deploy("Referee", other)
    assert vgame.Game.deploy(wallet) and count(wallet) == 7


def test_the_gas_of_all_parts_is_checked_before_the_first(real_scene: Scene) -> None:
    wallet, chain = real_scene.wallet(), real_scene.chain
    before = chain.balance(wallet.address)
    deploy_game(wallet)
    cost = before - chain.balance(wallet.address)
    poor = Wallet(chain)
    chain.fund(poor.address, cost * 3 // 4)
    with pytest.raises(ChainError, match=r"are needed for the gas to deploy Pointwise, .*VerificationGame; send it"):
        deploy(poor)
    assert count(poor) == 0
    chain.fund(poor.address, 10**18)
    assert deploy(poor) and count(poor) == 6


@pytest.mark.parametrize("name", [*ORDER, NAME])
def test_the_gas_of_a_part_is_within_its_bound(name: str) -> None:
    """By the rules of the EVM: the transaction, its data, the creation, the code."""
    data, code = bytes.fromhex(artifact(name)["bytecode"].removeprefix("0x")), len(artifact(name)["runtime"]) // 2
    used = 53_000 + 16 * len(data) - 12 * data.count(0) + len(data) // 16 + 200 * code
    assert used + 5_000 < most_gas(name) < 1.05 * used


def no_ether(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return {"result": "0x0"} if query["method"] == "eth_getBalance" else truth()


def refuses(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    revert = {"error": {"code": 3, "message": "execution reverted", "data": "0x"}}
    return revert if query["method"] == "eth_estimateGas" else truth()


def asks_too_much_gas(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return {"result": hex(17_000_000)} if query["method"] == "eth_estimateGas" else truth()


def asks_too_little_gas(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return {"result": hex(60_000)} if query["method"] == "eth_estimateGas" else truth()


def invents_addresses(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    reply = truth()
    if query["method"] == "eth_getTransactionReceipt" and reply.get("result"):
        reply["result"]["contractAddress"] = OTHER
    return reply


def shows_no_code(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return {"result": "0x"} if query["method"] == "eth_getCode" else truth()


def shows_all_code(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Each address holds the first part."""
    if query["method"] == "eth_getCode":
        return {"result": "0x" + artifact("Pointwise")["runtime"]}
    return truth()


def hides_receipts(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    refusal = {"error": {"code": -32005, "message": "daily request count exceeded"}}
    return refusal if query["method"] == "eth_getTransactionReceipt" else truth()


LIES = (
    no_ether, refuses, asks_too_much_gas, asks_too_little_gas, invents_addresses, shows_no_code, shows_all_code,
    hides_receipts,
)  # fmt: skip


@contextmanager
def endpoints(target: str, *lies: Lie | None) -> Iterator[list[str]]:
    with ExitStack() as stack:
        urls = []
        for lie in lies:
            handler, url = stack.enter_context(served(LyingProxy, target))
            handler.lie = staticmethod(lie) if lie else None
            urls.append(url)
        yield urls


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_of_three_ends_no_deployment(
    some_scene: Scene, monkeypatch: pytest.MonkeyPatch, false: int, lie: Lie
) -> None:
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    funded = some_scene.wallet()
    with endpoints(some_scene.chain.url, *(lie if n == false else None for n in range(3))) as urls:
        wallet = Wallet(Chain(urls), funded.key)
        assert vgame.Game.deploy(wallet).check_parts() and count(funded) == 6
        game = vgame.Game(some_scene.chain, deploy(wallet), funded)
        assert vgame.Escrow(game, deploy_part(wallet, NAME, game.address)) and count(funded) == 7


def lags(query: dict[str, Any], truth: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Shows the state before the last transaction."""
    reply = truth()
    if query["method"] == "eth_getTransactionCount":
        reply["result"] = hex(max(int(reply["result"], 16) - 1, 0))
    return {"result": "0x"} if query["method"] == "eth_getCode" else reply


def test_one_that_lags_beside_a_false_one_has_no_part_paid_twice(
    some_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The false one shows the true count of transactions, and no code."""
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    funded = some_scene.wallet()
    with endpoints(some_scene.chain.url, None, lags, shows_no_code) as urls, pytest.raises(VgameError):
        deploy(Wallet(Chain(urls), funded.key))
    assert count(funded) == 1


def run(wallet: Wallet, *words: object) -> Any:
    return CliRunner().invoke(
        app, ["deploy", "--rpc", wallet.chain.url, "--json", *map(str, words)], env={"VGAME_KEY": wallet.key.hex()}
    )


def test_a_registry_is_tried_before_the_first_payment(real_scene: Scene, tmp_path: Path) -> None:
    wallet, number = real_scene.wallet(), real_scene.chain.chain_id
    (tmp_path / "file").touch()
    done = run(wallet, "--registry", tmp_path / "file" / "games.json")
    assert "cannot be written" in str(done.exception) and count(wallet) == 0
    done = run(wallet, "--registry", tmp_path / ("g" * 300))
    assert "cannot be written" in str(done.exception) and count(wallet) == 0
    held = tmp_path / "games.json"
    held.write_text(json.dumps({str(number): {"game": OTHER}}))
    done = run(wallet, "--registry", held)
    assert f"holds the game {OTHER} of chain {number}" in str(done.exception) and count(wallet) == 0
    done = run(wallet, "--registry", tmp_path / "new" / "games.json")
    assert done.exit_code == 0 and count(wallet) == 6
    again = run(wallet, "--registry", tmp_path / "new" / "games.json")
    assert (again.exit_code, again.stdout) == (0, done.stdout) and count(wallet) == 6


def test_a_game_in_a_registry_is_not_replaced(real_scene: Scene, tmp_path: Path) -> None:
    (first, second) = (vgame.Game.deploy(real_scene.wallet()) for _ in range(2))
    games = tmp_path / "games.json"
    record(games, first)
    before = games.read_bytes()
    record(games, first)
    with pytest.raises(VgameError, match=f"holds the game {first.address} of chain"):
        record(games, second)
    with pytest.raises(VgameError, match="holds the game"):
        check_room(games, real_scene.chain.chain_id)
    assert games.read_bytes() == before


def test_two_commands_write_one_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two chains, at the same time: none of the two games is lost."""
    games, usual = tmp_path / "games.json", registry.write_atomic
    one, other = (SimpleNamespace(address=OTHER, chain=SimpleNamespace(chain_id=n)) for n in (5, 6))
    second = threading.Thread(target=lambda: record(games, cast(Any, other)))

    def written(*args: Any) -> None:
        if not second.ident:
            second.start()
            second.join(0.5)
        usual(*args)

    monkeypatch.setattr(registry, "agreed", lambda *_: ())
    monkeypatch.setattr(registry, "write_atomic", written)
    record(games, cast(Any, one))
    second.join()
    assert set(registry.read(games)) == {"5", "6"}
