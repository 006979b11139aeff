"""Honest players as processes that are killed at random moments (SIGKILL) and started again: they win every dispute, no
money is stuck."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
from frauds import SETUP, SPEC, SUM, Mistaken, state_lie, word_lie
from proxy import DeadlyProxy, served
from scene import Play, Scene

from vgame.chain.records import Phase, Status
from vgame.chain.wallet import Wallet

PLAYER = Path(__file__).resolve().parent / "player.py"


class KilledPlayer:
    """A player's process, killed `kills` times, each a random time after it is ready; then left running."""

    def __init__(self, role: str, play: Play, wallet: Wallet, kills: int, dice: random.Random) -> None:
        self.wallet, self.kills, self.dice, self.killed = wallet, kills, dice, 0
        scene = play.scene
        self.command = [sys.executable, str(PLAYER), role, self.endpoint(scene), scene.address, play.id.hex()]
        self.start()

    def endpoint(self, scene: Scene) -> str:
        return scene.chain.url

    def start(self) -> None:
        environment = os.environ | {"VGAME_KEY": self.wallet.key.hex()}
        self.process = forked.Popen(self.command, env=environment, stdout=subprocess.PIPE, text=True)
        self.death = None

    def watch(self) -> None:
        """Kill the process at its time; start it again."""
        if self.process.poll() is None and self.killed < self.kills:
            if self.death is None:
                assert self.process.stdout.readline() == "ready\n"
                self.death = time.monotonic() + self.dice.uniform(0, 0.4)
            if time.monotonic() < self.death:
                return
            self.process.kill()
            self.killed += 1
        if self.process.poll() is not None:
            self.process.stdout.close()
            self.start()

    def end(self, timeout: float = 60) -> None:
        until(lambda: self.process.poll() == 0, self.watch, timeout=timeout)
        self.process.stdout.close()


def until(condition: Callable[[], bool], *turns: Callable[[], object], timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "the game stands still"
        for turn in turns:
            turn()
        time.sleep(0.02)


def auditor_wins(scene: Scene, kills: int, dice: random.Random) -> int:
    """A cheat in this process against an auditor that is killed."""
    play = scene.claimed(SETUP, word_lie(6, SUM, 4, 1)[0])
    auditor = KilledPlayer("auditor", play, scene.wallet(), kills, dice)
    until(lambda: play.phase is Phase.CONVICTED, auditor.watch, play.trainer.step)
    auditor.kills = auditor.killed
    until(lambda: not play.client.credits(auditor.wallet.address), auditor.watch)
    auditor.end()
    drawn = [e.args["amount"] for e in play.client.events("Withdrawn") if e.args["account"] == auditor.wallet.address]
    assert sum(drawn) == SPEC.auditor_bond + SPEC.trainer_bond // 2
    return auditor.killed


def trainer_wins(scene: Scene, kills: int, dice: random.Random) -> int:
    """A mistaken auditor in this process against a trainer that is killed."""
    play = scene.post(SETUP)
    trainer = KilledPlayer("trainer", play, scene.wallet(), kills, dice)
    until(lambda: play.phase is Phase.CLAIMED, trainer.watch)
    accuser = play.auditor(state_lie(6, 5, 0)[0], Mistaken)
    until(lambda: play.job.disputes == 1 and play.job.open == 0, trainer.watch, accuser.step)
    assert play.dispute().status is Status.DISMISSED
    play.pass_window()
    trainer.kills = trainer.killed
    until(lambda: play.phase is Phase.FINAL and not play.client.credits(trainer.wallet.address), trainer.watch)
    trainer.end()
    drawn = [e.args["amount"] for e in play.client.events("Withdrawn") if e.args["account"] == trainer.wallet.address]
    assert sum(drawn) == SPEC.trainer_bond + SPEC.reward + SPEC.auditor_bond // 2
    return trainer.killed


@pytest.mark.node
@pytest.mark.nightly
@pytest.mark.parametrize("wins", [auditor_wins, trainer_wins])
def test_a_kill_at_every_transaction_loses_and_repeats_none(
    node: Scene, wins: Callable[[Scene, int, random.Random], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the acceptance, the claim, `finalize` and `withdraw`: before the transaction arrives, and before its
    reply does."""
    with served(DeadlyProxy, node.chain.url) as (handler, url):

        class KilledAtTransactions(KilledPlayer):
            def endpoint(self, scene: Scene) -> str:
                handler.kill = staticmethod(lambda: self.process.kill())
                return url

        monkeypatch.setattr(f"{__name__}.KilledPlayer", KilledAtTransactions)
        wins(node, 0, random.Random(0))
        assert handler.kills >= 16  # twice for each of its transactions
        check_money(node)


def check_money(node: Scene) -> None:
    """The game's balance is burnt money, or a client's."""
    balance = node.chain.balance(node.address)
    view = node.game()
    clients = {e.args["client"] for e in view.events("JobCreated")}
    assert balance == view.burnt() + sum(view.credits(c) for c in clients)


@pytest.mark.node
@pytest.mark.parametrize("total", [8, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_killed_role_resumes_and_wins(node: Scene, total: int) -> None:
    dice, killed = random.Random(total), 0
    while killed < total:
        for game in (auditor_wins, trainer_wins):
            killed += game(node, min(4, max(total - killed, 0)), dice)
    check_money(node)
