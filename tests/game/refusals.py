"""Cases of illegal calls: each yields calls that the contract must refuse, and names the errors that they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from frauds import SETUP, SUM, word_lie
from scene import Call, Play, Scene, due
from toy import INFINITY, Lies, Special

from vgame.chain.game import Game

NODE = b"\x77" * 32
RECORD = (b"", b"", [])

Prepare = Callable[[Scene], Iterator["Refusal"]]
CASES: list[tuple[frozenset[str], Prepare]] = []


@dataclass(frozen=True)
class Refusal:
    """An illegal call and the error that it meets; `args` None: they are hashes."""

    error: str
    args: tuple[Any, ...] | None
    game: Game
    call: Call


def refuses(*names: str) -> Callable[[Prepare], Prepare]:
    """The errors that a case meets."""

    def register(case: Prepare) -> Prepare:
        CASES.append((frozenset(names), case))
        return case

    return register


# ---- stages ----

LIE = word_lie(6, SUM, 4, 1)[0]


def disputed(scene: Scene, until: str, lies: Lies = LIE) -> tuple[Play, Any, Any, Call]:
    """A game in which somebody is about to send `until`: the play, both players, the call."""
    play = scene.claimed(SETUP, lies)
    auditor = play.auditor()
    return play, play.trainer, auditor, play.run_until(until, play.trainer, auditor)


def struct(call: Call, field: int, value: Any, at: int = -1) -> Call:
    """The call with another field of its struct, its last argument unless said otherwise."""
    values = list(call.args[at])
    values[field] = value
    return call.but(at, tuple(values))


def diverged_play(scene: Scene, step: int = 5) -> tuple[Play, Call]:
    """A job whose trainer is about to claim that it diverged."""
    program = replace(SETUP.program, specials=(Special(step, 1, 130, INFINITY),))
    play = scene.post(replace(SETUP, program=program))
    play.trainer = play.new_trainer()
    play.trainer.accept()
    return play, due(play.trainer)
