"""Every order of every call of a small delivery, by any account, with every silence: all states are visited; random
calls in addition. The ghost counts every wei after each call. Time is a call too: to the end of the current window, or
one second past it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from eth_abi.exceptions import EncodingError
from exchange import KEY, ONE, Exchange, offered
from scene import Call, Scene

from vgame.chain.abi import errors
from vgame.chain.records import ENDED, IN_DELIVERY, Phase, delivery_window
from vgame.delivery.sealed import Piece
from vgame.errors import ContractError

SPEC = ONE.spec
KNOWN = {name for name, _ in errors().values()} | {"RecordMismatch"}


def garble(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    cipher[1] ^= 1


@dataclass
class Explorer:
    """All states that a delivery of one chunk can reach. `honest`: no leaf is wrong."""

    x: Exchange
    honest: bool
    states: dict[Hashable, set[Hashable]] = field(default_factory=dict)
    ends: set[Hashable] = field(default_factory=set)

    def key(self) -> Hashable:
        x, job, e = self.x, self.x.play.job, self.x.client.exchange(self.x.id)
        if job.phase not in IN_DELIVERY:
            return job.phase
        window, end = delivery_window(job, e, x.play.scene.chain.now() + 1)
        late = bool(e.open) and x.play.scene.chain.now() + 1 > self.since() + SPEC.key_window
        over = x.play.scene.chain.now() + 1 > end
        return job.phase, window, over, bool(e.confirmed_at), len(x.client.requests(x.id)), e.open, late

    def since(self) -> int:
        """Begin of the request's time; 0 without a request."""
        return sum(r.since for r in self.x.client.requests(self.x.id))

    def calls(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        x = self.x
        client, trainer, stranger = x.client, x.trainer, x.play.scene.game(x.play.scene.spare)
        offer = (x.offer.final_state, x.offer.cipher_root, x.offer.key_hash)
        leaves = {"right leaf": x.bad_leaf(0, 0), "garbled leaf": x.bad_leaf(0, 1)}
        for who, game in (("client", client), ("stranger", stranger)):
            for name in ("confirm", "decline"):
                yield f"{who} {name}", Call(name, (x.id, x.state().offer)), game
            for phase in IN_DELIVERY:
                yield f"{who} close {phase.name}", Call("closeDelivery", (x.id, int(phase))), game
            yield f"{who} request", Call("request", x.request_args(0, 0, index=0)), game
            yield f"{who} refused", Call("refused", (x.id, 0)), game
            yield f"{who} badNode", Call("badNode", x.bad_node(0, 0, b"\1" * 32)), game
            for what, args in leaves.items():
                yield f"{who} {what}", Call("badLeaf", args), game
        yield "trainer answer", Call("answer", (x.id, offer, 0, *x.sealed.answer(0, 0))), trainer
        yield "trainer reveal", Call("revealKey", (x.id, offer, KEY)), trainer
        yield "trainer other key", Call("revealKey", (x.id, offer, b"\1" * 32)), trainer

    def expected(self, what: str) -> bool:
        """Whether the call is accepted."""
        x, job, e, now = self.x, self.x.play.job, self.x.client.exchange(self.x.id), self.x.play.scene.chain.now() + 1
        open_, who, name = job.phase is Phase.DELIVERING, *what.split(" ", 1)
        undecided = open_ and who == "client" and not e.confirmed_at and now <= e.until
        match name:
            case "confirm":
                return undecided and not e.open
            case "decline":
                return undecided
            case "request":
                return undecided and not x.client.requests(x.id)
            case "answer":
                return open_ and e.open == 1
            case "refused":
                return open_ and e.open == 1 and now > self.since() + SPEC.key_window
            case "reveal":
                return open_ and not e.open and (bool(e.confirmed_at) or now > e.until)
            case "close DELIVERING":
                return open_ and not e.open and now > e.key_from + SPEC.key_window
            case "close REVEALED":
                return job.phase is Phase.REVEALED and now > e.key_at + SPEC.complaint_window
            case "garbled leaf":
                return not self.honest and job.phase is Phase.REVEALED and now <= e.key_at + SPEC.complaint_window
        return False

    def explore(self) -> Hashable:
        key = self.key()
        if key in self.states or key in self.ends:
            return key
        if self.x.phase in ENDED:
            self.ends.add(key)
            return key
        self.states[key] = set()
        for what, call, game in list(self.calls()):
            self.branch(key, what, lambda call=call, game=game: call.send(game))
        job, e, now = self.x.play.job, self.x.client.exchange(self.x.id), self.x.play.scene.chain.now()
        ends = {delivery_window(job, e, now + 1)[1], self.since() + SPEC.key_window}
        for end in ends:
            if end > now:
                self.branch(key, "time", lambda end=end: self.x.play.advance(end - now + 1))
        return key

    def branch(self, key: Hashable, what: str, make: Callable[[], Any]) -> None:
        """Make a call, explore the states after it, undo it."""
        node, ghost = self.x.play.scene.chain.node, self.x.play.scene.ghost
        expected = what == "time" or self.expected(what)
        point, memory = node.snapshot(), ghost.memory()
        try:
            make()
            assert expected, (what, key)
            self.states[key].add(self.explore())
        except ContractError as error:
            assert not expected and error.name in KNOWN, (what, key, error)
        finally:
            node.revert(point)
            ghost.remember(memory)

    def check_ends(self) -> None:
        """From every state the game can be brought to an end."""
        good: set[Hashable] = set(self.ends)
        while more := {s for s, after in self.states.items() if s not in good and after & good}:
            good |= more
        assert good >= set(self.states), set(self.states) - good


@pytest.mark.parametrize("honest", [True, False])
def test_every_order_of_every_call(scene: Scene, tmp_path: Path, honest: bool) -> None:
    scene.spare = scene.wallet()
    explorer = Explorer(offered(scene, tmp_path, ONE, None if honest else garble).finalize(), honest)
    explorer.explore()
    explorer.check_ends()
    print(f"{len(explorer.states)} states, ends {sorted(p.name for p in explorer.ends)}")
    assert explorer.ends == {Phase.FINAL, Phase.DECLINED, Phase.UNDELIVERED} and len(explorer.states) >= 10


def test_an_explorer_that_could_fail(scene: Scene, tmp_path: Path) -> None:
    """Its damaged twin takes a garbled leaf for a right one."""
    scene.spare = scene.wallet()
    with pytest.raises(AssertionError, match="garbled leaf"):
        Explorer(offered(scene, tmp_path, ONE, garble).finalize(), True).explore()


# ---- calls at random ----


def damaged(args: tuple[Any, ...], dice: Random) -> tuple[Any, ...]:
    """One argument changed, at any depth, as its type allows."""
    position = dice.randrange(len(args))
    value = args[position]
    if isinstance(value, (tuple, list)) and value:
        value = type(value)(damaged(tuple(value), dice)) if dice.random() < 0.7 else value[:-1]
    elif isinstance(value, bytes) and value:
        at = dice.randrange(len(value))
        value = value[:at] + bytes([value[at] ^ 1 << dice.randrange(8)]) + value[at + 1 :]
    elif isinstance(value, int):
        value = max(0, value + dice.choice((-1, 1, 2**16)))
    return (*args[:position], value, *args[position + 1 :])


def play_at_random(scene: Scene, folder: Path, seed: int, calls: int) -> int:
    """Accepted calls; the ghost looks after each."""
    dice, accepted = Random(seed), 0
    scene.spare = scene.wallet()
    change = dice.choice((None, garble))
    x = offered(scene, folder, ONE, change).finalize()
    explorer = Explorer(x, change is None)
    players = [x.client, x.trainer, scene.game(scene.spare)]
    for _ in range(calls):
        if x.phase in ENDED:
            break
        _, call, game = dice.choice(list(explorer.calls()))
        allowed = KNOWN
        if dice.random() < 0.4:
            call, game = Call(call.name, damaged(call.args, dice), dice.choice((0, 0, 1))), dice.choice(players)
            allowed = KNOWN | {"unknown error 0x"}  # solc's decoder gives no reason
        try:
            call.send(game)
            accepted += 1
        except ContractError as error:
            assert error.name in allowed, (error, call)
        except (EncodingError, TypeError, ValueError):  # no such call can be encoded
            continue
        x.play.advance(dice.choice((1, 1, 1, 30, 300, 800)))
    settle(x)
    return accepted


def settle(x: Exchange) -> None:
    """Every state can be ended, and all money that is not burnt withdrawn."""
    x.play.advance(10_000)
    for name, argument in (("refused", 0), *(("closeDelivery", int(phase)) for phase in sorted(IN_DELIVERY))):
        try:
            x.client.send(name, x.id, argument)
        except ContractError:
            continue
    assert x.phase in ENDED
    for game in (x.client, x.trainer):
        if game.credits(game.wallet.address):
            game.send("withdraw", game.wallet.address)


@pytest.mark.parametrize("seed", range(12))
def test_any_calls(scene: Scene, tmp_path: Path, seed: int) -> None:
    play_at_random(scene, tmp_path, seed, 40)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_twenty_thousand_calls(scene: Scene, tmp_path: Path) -> None:
    for seed in range(500):
        play_at_random(scene, tmp_path / str(seed), 1000 + seed, 40)
