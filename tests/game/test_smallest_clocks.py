"""The smallest clocks that `vgame terms` proposes and that agents accept, a crowd of idle disputes, blocks of 12
seconds, and an agent that is killed at every transaction, in turn before it is sent and after it is included: the
honest side keeps its clocks.

Budgets are those of the terms without the seconds reserved for censorship, as if each side had already lost them. Each
start of an agent costs a block, and the time of the pace in which it executes a segment again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import ceil
from typing import Any

import pytest
import torch
from refusals import NO_BASIS
from revm_chain import RevmChain, RevmGame
from revm_node import RevmNode
from scene import Play, Scene
from test_attacks import STRIKE, Job

from vgame.attacks.adversaries import CheatingTrainer, FalseAccuser
from vgame.chain.records import LOST, JobSpec, Level, Phase, Status, Turn
from vgame.chain.wallet import deploy_game
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain
from vgame.job.file import Terms
from vgame.job.terms import (
    KEPT_OUT,
    Pace,
    Prices,
    auditor_shortcomings,
    count_moves,
    needed_budgets,
    needed_slot,
    safe_terms,
    trainer_shortcomings,
)
from vgame.runs.history import History
from vgame.runs.store import Store

BLOCK, INCLUSION = 12, 15
PACE = Pace(step=2.0, trace=3.0, worst=5.0, state=0.5)
CROWDS = [20, pytest.param(500, marks=pytest.mark.nightly)]


class Killed(Exception):
    """The process is killed."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Job(tmp_path_factory.mktemp("clocks"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def scene() -> Scene:
    chain = RevmChain(RevmNode())
    return Scene(chain, deploy_game(chain.wallet()), chain.wallet, RevmGame)


def proposed(job: Job) -> Terms:
    return safe_terms(job.bundle, PACE, Prices(inclusion=INCLUSION, censorship=KEPT_OUT))


def accepted(job: Job) -> Terms:
    """The least that both agents accept: a second less is refused."""
    proposal, moves = proposed(job), count_moves(job.bundle)
    slot = needed_slot(job.bundle, PACE, INCLUSION)
    trainer = needed_budgets(moves, slot, INCLUSION)[0] + KEPT_OUT
    auditor = needed_budgets(moves, needed_slot(job.bundle, PACE, 0), INCLUSION)[1] + KEPT_OUT
    return proposal.model_copy(update={"slot": slot, "trainer_budget": trainer, "auditor_budget": auditor})


TERMS = [proposed, accepted]


@pytest.mark.parametrize("name", ["slot", "trainer_budget", "auditor_budget"])
def test_a_second_less_is_refused(job: Job, name: str) -> None:
    def short(terms: Terms) -> str:
        bundle = dataclasses.replace(job.bundle, terms=terms)
        return "; ".join([*trainer_shortcomings(bundle, PACE, 0), *auditor_shortcomings(bundle, PACE)])

    least = accepted(job)
    assert short(least) == "" == short(proposed(job))
    assert name in short(least.model_copy(update={name: getattr(least, name) - 1}))


def order(job: Job, terms: Terms) -> JobSpec:
    """The order with these clocks less the time reserved for censorship; its window leaves time to challenge after a
    crowd's time is over."""
    clocks = {name: getattr(terms, name) - KEPT_OUT for name in ("trainer_budget", "auditor_budget")}
    window = 2 * terms.auditor_budget
    return dataclasses.replace(job.spec, **clocks, slot=terms.slot, challenge_window=window, claim_window=window)


class Mortal:
    """A player that is killed at each of its transactions: before one is sent, after the next one is included, and so
    on."""

    def __init__(self, scene: Scene, make: Callable[[], Player], meanwhile: Callable[[str], Any]) -> None:
        self.chain, self.make, self.meanwhile = scene.chain, make, meanwhile
        self.player, self.spared, self.kills, self.sent = make(), False, 0, 0

    def step(self) -> bool:
        if self.player is None:
            self.player = self.make()
            self.player.game.wallet.pauses.known.clear()  # a restarted process has none
            # a segment of two steps, and a trace
            cold = ceil((3 * PACE.step) + (PACE.trace - PACE.step) + 2 * PACE.state)
            assert self.chain.advance(BLOCK + cold)
        usual = type(self.player.game).send.__get__(self.player.game)

        def send(name: str, *args: Any, value: int = 0) -> None:
            self.meanwhile(name)
            before = self.sent % 2 == 0
            if before and not self.spared:
                self.spared = True
                raise Killed
            assert self.chain.advance(BLOCK - 1)
            usual(name, *args, value=value)
            self.sent, self.spared = self.sent + 1, False
            if not before:
                raise Killed

        self.player.game.send = send
        try:
            return self.player.step()
        except Killed:
            self.player, self.kills = None, self.kills + 1
            return True


def crowd(scene: Scene, play: Play, count: int) -> None:
    """The crowd challenges, gets the root opened, and never moves again; then its time is over."""
    for _ in range(count):
        place = (int(Level.RUN), 0, play.job.run_root, NO_BASIS)
        scene.game().send("challenge", play.id, *place, value=play.setup.spec.auditor_bond)
    while play.trainer.step():
        pass
    play.advance(play.setup.spec.auditor_budget + 1)
    assert play.client.turn(play.id, 0)[0] is Turn.AUDITOR_EXPIRED


def leave(*_: object) -> bool:
    """The other side ends no dispute of the crowd."""
    return False


def again(job: Job) -> History:
    """The data of a restarted process: the store."""
    return History(Store(job.folder / "honest", job.bundle), job.device())


class Sweeper(Auditor):
    """An auditor that ends the disputes of others one by one before its own moves."""

    def step(self) -> bool:
        view = self.view()
        over = [
            s.number for s in view.standings if s.turn is Turn.AUDITOR_EXPIRED and s.dispute.auditor != self.address
        ]
        return bool(over and view.mine and self.attempt("timeout", self.id, over[0])) or super().step()


def is_convicted(scene: Scene, job: Job, count: int, kind: type[Auditor] = Auditor) -> bool:
    """Whether the auditor's first dispute convicts a cheat that answers as soon as the auditor sends anything for a
    dispute of the crowd."""
    spec = job.spec
    play = job.play(scene)
    play.trainer = cheat = CheatingTrainer(scene.game(), play.id, job.cheat("flipped-bit"), "")
    cheat.sweep = leave
    cheat.accept()
    cheat.claim()
    crowd(scene, play, count)
    seat = scene.game()
    auditor = Mortal(
        scene,
        lambda: kind(RevmGame(scene.chain, scene.address, seat.wallet), play.id, again(job)),
        lambda name: name.startswith("timeout") and cheat.step(),
    )
    begin = scene.chain.now()
    with suppress(Abstain):  # it has lost its dispute by time
        for _ in range(400):
            if play.phase is not Phase.CLAIMED:
                break
            auditor.step() or cheat.step() or play.advance(BLOCK)
    own = play.dispute(count)
    assert own.auditor == seat.wallet.address and auditor.kills > 5
    if play.phase is not Phase.CONVICTED or own.status is not Status.WON:
        return False
    moves = (
        sum(e.name in ("Selected", "ElementSelected", "Challenged") for e in play.client.events(job=play.id)) - count
    )
    assert auditor.kills >= moves > 5
    assert scene.chain.now() - begin < spec.trainer_budget + spec.auditor_budget + BLOCK * (count // 100 + 2)
    return True


@pytest.mark.parametrize("count", CROWDS)
@pytest.mark.parametrize("terms", TERMS)
def test_a_cheat_with_an_idle_crowd_is_convicted(
    scene: Scene, job: Job, terms: Callable[[Job], Terms], count: int
) -> None:
    job.spec = order(job, terms(job))
    assert is_convicted(scene, job, count)


def test_an_auditor_that_ends_other_disputes_first_loses(scene: Scene, job: Job) -> None:
    """The damaged twin."""
    job.spec = order(job, accepted(job))
    assert not is_convicted(scene, job, 40, Sweeper)


@pytest.mark.parametrize("count", CROWDS)
@pytest.mark.parametrize("terms", TERMS)
def test_an_honest_claim_is_final(scene: Scene, job: Job, terms: Callable[[Job], Terms], count: int) -> None:
    """An accuser moves as soon as the trainer sends anything for a dispute of the crowd."""
    job.spec = order(job, terms(job))
    play = job.play(scene)
    play.trainer = Trainer(scene.game(), play.id, job.honest)
    play.trainer.accept()
    play.trainer.claim()
    crowd(scene, play, count)
    accuser = FalseAccuser(scene.game(), play.id, job.honest, step_wanted=STRIKE)
    accuser.sweep = leave
    accuser.step()
    wallet = play.trainer.game.wallet
    trainer = Mortal(
        scene,
        lambda: Trainer(RevmGame(scene.chain, scene.address, wallet), play.id, again(job)),
        lambda name: name.startswith("timeout") and accuser.step(),
    )
    for _ in range(400):
        if not play.job.open:
            break
        trainer.step() or accuser.step() or play.advance(BLOCK)
    assert trainer.kills > 5 and {d.status for d in play.disputes()} <= LOST
    play.pass_window()
    for _ in range(10):
        trainer.step()
    assert play.phase is Phase.FINAL
