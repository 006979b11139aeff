"""A few false looks among many honest ones, each with another block number or time, or from a stalled node.

In each play a rule that believes the highest block would ignore all honest looks between two false ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from exchange import KEY_WINDOW
from scene import Scene
from test_delivery_agents import MARGIN, Partial

from vgame.chain import final, pauses
from vgame.chain.connection import Block
from vgame.chain.records import Phase
from vgame.delivery import buyer, calls, looks, rules
from vgame.errors import VgameError

HIGH = 10**9


class Table:
    """A claimed sale. The roles' own clocks are right; `lie` alters the endpoint's newest block."""

    def __init__(self, scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch, change: object = None) -> None:
        self.sides, self.chain = Partial(scene, folder), scene.chain
        self.sides.claim(change) if change else self.sides.claim()
        self.game, self.job = self.sides.game, self.sides.play.id
        self.lie: Callable[[Block], Block] = lambda block: block
        self.last = float("-inf")
        monkeypatch.setattr(scene.chain, "is_development", False)
        for module in (buyer, calls, final, looks, pauses):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        usual = scene.chain.block

        def block(which: int | str | None = None) -> Block:
            found = usual(which)
            return found if scene.chain.pin or which == "finalized" else self.lie(found)

        monkeypatch.setattr(scene.chain, "block", block)

    @property
    def now(self) -> int:
        """The true time."""
        return int(self.chain.node.blocks[-1]["timestamp"], 16)

    @property
    def phase(self) -> Phase:
        return self.sides.play.phase

    def every(self, gap: int) -> bool:
        """True once every `gap` seconds, but not in the first."""
        self.last = self.now if self.last < 0 else self.last
        if self.now - self.last >= gap:
            self.last = self.now
        return self.now == self.last and self.now > self.begun

    def play(self, seconds: int, look: Callable[[], object], beside: Callable[[], object] = lambda: None) -> None:
        """A look each 3 seconds for so long, or until the phase changes."""
        self.begun, phase = self.now, self.phase
        while self.now < self.begun + seconds and self.phase is phase:
            with suppress(VgameError):
                look()
            beside()
            self.sides.play.advance(3)


@pytest.fixture
def table(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(scene, tmp_path, monkeypatch)


@pytest.mark.parametrize("time", [0, -1_000])
@pytest.mark.parametrize("number", [45, HIGH])
def test_the_key_is_revealed(table: Table, number: int, time: int) -> None:
    """Its number is ahead, its time is the right one or one before the confirmation."""
    table.sides.buyer.ready()
    assert table.game.exchange(table.job).confirmed_at
    table.lie = lambda b: replace(b, number=b.number + number, time=b.time + time) if table.every(100) else b
    table.play(KEY_WINDOW, table.sides.trainer.step)
    assert table.phase is Phase.REVEALED


@pytest.mark.parametrize("ahead", [45, HIGH])
def test_the_key_is_revealed_beside_a_stalled_node(table: Table, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    usual, old = rules.read, rules.read(table.game, table.job)
    table.sides.buyer.ready()

    def read(*args: object) -> rules.Snapshot:
        return replace(old, number=old.number + ahead + table.now) if table.every(110) else usual(*args)

    monkeypatch.setattr(looks, "read", read)
    table.play(KEY_WINDOW, table.sides.trainer.step)
    assert table.phase is Phase.REVEALED


@pytest.mark.parametrize("gap", [15, 35])
@pytest.mark.parametrize("number", [0, HIGH])
def test_no_key_before_the_client_decides(table: Table, number: int, gap: int) -> None:
    """A look each 15 or 35 seconds shows the last moment of the key window."""
    late, sent = table.game.exchange(table.job).until + KEY_WINDOW - 20, []
    usual = table.game.send
    table.game.send = lambda name, *args, **options: (sent.append(name), usual(name, *args, **options))[1]
    table.lie = lambda b: replace(b, number=b.number + number, time=late) if table.every(gap) else b
    table.play(600, table.sides.trainer.step)
    assert "revealKey" not in sent


@pytest.mark.parametrize("number", [0, HIGH])
def test_the_client_does_not_decline_early(table: Table, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The server is away; each 36 seconds a look shows the last tenth of the confirm window."""
    monkeypatch.setattr("vgame.delivery.rules.MOST_REQUESTS", 0)
    until = table.game.exchange(table.job).until
    table.sides.refuse = lambda *_: True
    table.lie = lambda b: replace(b, number=b.number + number, time=until - 60) if table.every(36) else b
    table.play(until - table.now - 2 * MARGIN, table.sides.buyer.ready)
    assert table.phase is Phase.DELIVERING


def test_a_client_complains_of_a_wrong_leaf(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look in 110 seconds is of before the key, with a high number."""

    def garble(piece: object, true: object, cipher: object) -> None:
        if piece.tensor == 2:  # type: ignore[attr-defined]
            cipher[3, 5] ^= 1  # type: ignore[index]

    table = Table(scene, tmp_path, monkeypatch, garble)
    seller, window = table.sides.trainer.seller, 800
    assert not table.sides.buyer.ready() and table.game.exchange(table.job).confirmed_at
    usual, old = rules.read, rules.read(table.sides.play.client, table.job)
    table.game.send("revealKey", table.job, astuple(seller.offer()), seller.key())

    def read(*args: object) -> rules.Snapshot:
        return replace(old, number=HIGH + table.now) if table.every(110) else usual(*args)

    monkeypatch.setattr(looks, "read", read)
    table.play(window, table.sides.receive)
    assert table.phase is Phase.UNDELIVERED


# ---- one of several endpoints lies in each look ----


class Turns:
    """The endpoints of a chain object, which all ask the same node."""

    has_computed_long = False

    def __init__(self, count: int, answering: int) -> None:
        self.all, self.answering, self.at = list(range(count)), answering, 0

    def next(self) -> None:
        self.at = (self.at + 1) % self.answering

    def back(self) -> AbstractContextManager[None]:
        return nullcontext()

    def each(self) -> Iterator[None]:
        yield

    def timed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check_enough(self, replies: int) -> None: ...

    def attempt(self, send: Callable[[], object]) -> object:
        return send()

    at_any = attempt


@pytest.fixture(params=[(3, 3), (3, 2), (2, 2)], ids=["of three", "of three, one is down", "of two"])
def turns(table: Table, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Turns:
    """Endpoint 1 is the false one."""
    turns = Turns(*request.param)
    monkeypatch.setattr(table.chain, "turns", turns)
    return turns


@pytest.mark.parametrize("number", [0, HIGH])
def test_one_false_endpoint_does_not_cause_a_reveal_of_the_key(table: Table, turns: Turns, number: int) -> None:
    """It shows the last moment of the key window."""
    late, sent = table.game.exchange(table.job).until + KEY_WINDOW - 20, []
    usual = table.game.send
    table.game.send = lambda name, *args, **options: (sent.append(name), usual(name, *args, **options))[1]
    table.lie = lambda b: replace(b, number=b.number + number, time=late) if turns.at == 1 else b
    table.play(300, table.sides.trainer.step)
    assert "revealKey" not in sent


def test_one_false_endpoint_does_not_cause_a_reveal_of_the_key_while_no_other_one_answers(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have answered before. It shows so old a confirmation that the key would have to be revealed."""
    turns, sent = Turns(3, 3), list[str]()
    monkeypatch.setattr(table.chain, "turns", turns)
    table.play(120, table.sides.trainer.step)
    turns.answering, usual, send = 1, rules.read, table.game.send
    table.game.send = lambda name, *args, **options: (sent.append(name), send(name, *args, **options))[1]

    def read(*args: object) -> rules.Snapshot:
        s = usual(*args)
        return replace(s, exchange=replace(s.exchange, confirmed_at=s.now - KEY_WINDOW + 20))

    monkeypatch.setattr(looks, "read", read)
    table.play(300, table.sides.trainer.step)
    assert "revealKey" not in sent


@pytest.mark.parametrize("number", [0, HIGH])
def test_one_false_endpoint_makes_no_client_decline(
    table: Table, turns: Turns, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It shows the last tenth of the confirm window; the server is away."""
    monkeypatch.setattr("vgame.delivery.rules.MOST_REQUESTS", 0)
    until = table.game.exchange(table.job).until
    table.sides.refuse = lambda *_: True
    table.lie = lambda b: replace(b, number=b.number + number, time=until - 60) if turns.at == 1 else b
    table.play(until - table.now - 2 * MARGIN, table.sides.buyer.ready)
    assert table.phase is Phase.DELIVERING


def test_the_key_is_revealed_beside_a_false_endpoint(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three shows the state before the confirmation."""
    turns = Turns(3, 3)
    usual, old = rules.read, rules.read(table.game, table.job)
    table.sides.buyer.ready()
    monkeypatch.setattr(table.chain, "turns", turns)
    monkeypatch.setattr(
        looks, "read", lambda *args: replace(usual(*args), exchange=old.exchange) if turns.at == 1 else usual(*args)
    )
    table.play(KEY_WINDOW, table.sides.trainer.step)
    assert table.phase is Phase.REVEALED


# ---- failing looks ----


def test_failing_looks_leave_time_for_all_requests(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer serves nothing, in each third look a request to the endpoint fails, and a transaction takes 12 s."""
    send, tries = table.sides.play.client.send, [0]

    def slow(*args: object, **options: object) -> object:
        table.sides.play.advance(12)
        return send(*args, **options)

    def offer() -> object:
        tries[0] += 1
        if tries[0] % 3 == 0:
            raise VgameError("no answer")
        return offered()

    offered = table.sides.buyer.offer
    monkeypatch.setattr(table.sides.buyer, "offer", offer)
    monkeypatch.setattr(table.sides.play.client, "send", slow)
    table.sides.refuse = lambda *_: True
    table.play(10_000, table.sides.buyer.ready)
    assert len(table.sides.requested_chunks()) == sum(table.sides.buyer.shape.chunks)
