"""Cases of illegal calls: each yields calls that the contract must refuse, and names the errors that they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from frauds import LIE, SETUP
from scene import Call, Play, Scene, due
from toy import INFINITY, Lies, Special

from vgame.chain.game import Game

NODE = b"\x77" * 32
NO_BASIS = (0, bytes(32), bytes(32))  # of a claim "trained", in mode `correct`
RECORD = (b"", b"", [])

Prepare = Callable[[Scene], Iterator["Refusal"]]
CASES: list[tuple[frozenset[str], Prepare]] = []


@dataclass(frozen=True)
class Refusal:
    """An illegal call and its error; `args` None: they are hashes."""

    error: str
    args: tuple[Any, ...] | None
    game: Game
    call: Call


def refuses(*names: str) -> Callable[[Prepare], Prepare]:
    """The errors of a case."""

    def register(case: Prepare) -> Prepare:
        CASES.append((frozenset(names), case))
        return case

    return register


# ---- stages ----


def disputed(scene: Scene, until: str, lies: Lies = LIE) -> tuple[Play, Any, Any, Call]:
    """A game just before the call `until`: the play, both players, the call."""
    play = scene.claimed(SETUP, lies)
    auditor = play.auditor()
    return play, play.trainer, auditor, play.run_until(until, play.trainer, auditor)


def struct(call: Call, field: int, value: Any, at: int = -1) -> Call:
    """The call with another field of a struct, by default of its last argument."""
    values = list(call.args[at])
    values[field] = value
    return call.but(at, tuple(values))


def here(play: Play, call: Call) -> Call:
    """The call, with the dispute's current position."""
    return call.but(2, play.dispute(call.args[1]).position)


def place_beside(play: Play, shift: int, number: int = 0) -> int:
    """Another place in the tree that a dispute is in."""
    d = play.dispute(number)
    return replace(d, index=d.index + shift).position


def elsewhere(play: Play, game: Game, call: Call) -> Refusal:
    """The call names another place."""
    return Refusal("Elsewhere", (play.dispute(call.args[1]).position, call.args[2]), game, call)


def diverged_play(scene: Scene, step: int = 5) -> tuple[Play, Call]:
    """A job whose trainer is about to claim that it diverged."""
    program = replace(SETUP.program, specials=(Special(step, 1, 130, INFINITY),))
    play = scene.post(replace(SETUP, program=program))
    play.trainer = play.new_trainer()
    play.trainer.accept()
    return play, due(play.trainer)
