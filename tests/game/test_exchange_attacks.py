"""Every row of the register of attacks on a delivery, over the toy machine: the ghost counts every wei, the honest side
loses none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange import DELIVERY
from scene import Scene
from toy import Operator, Program, State

from vgame.attacks.exchange import CHEATS, HONEST, Cheat, Exchange
from vgame.chain.records import Phase
from vgame.delivery.sealed import Piece
from vgame.errors import VgameError

SPEC = DELIVERY.spec
#: As many chunks as may be requested.
MANY = replace(DELIVERY, program=Program((Operator(1),), tuple(State(3) for _ in range(64))))


def exchange(scene: Scene, cheat: Cheat, folder: Path) -> Exchange:
    setup = MANY if cheat.name == "requests-to-the-limit" else DELIVERY
    play, machine = scene.post(setup), setup.machine()
    words = [w.astype("<u4") for w in machine.state_words(setup.steps)]
    record = lambda t: setup.honest.source_record(t).as_tuple()  # noqa: E731
    x = Exchange(cheat, play.client, scene.game(), machine, play.id, words, folder, record)
    x.claim()
    play.pass_window()
    return x


def test_the_register_is_long_enough_and_both_sides_are_in_it() -> None:
    assert len(CHEATS) >= 15 and {c.end for c in CHEATS.values()} == {Phase.FINAL, Phase.UNDELIVERED, Phase.DECLINED}


@pytest.mark.parametrize("name", [HONEST.name, *CHEATS])
def test_each_attack_on_a_delivery_ends_as_registered(scene: Scene, tmp_path: Path, name: str) -> None:
    cheat = CHEATS.get(name, HONEST)
    x = exchange(scene, cheat, tmp_path)
    client, trainer = x.client.wallet.address, x.trainer.address
    before = scene.ghost.burnt
    assert x.play() is cheat.end
    burnt = scene.ghost.burnt - before
    assert x.client.credits(client) == x.client.credits(trainer) == 0
    lost = {Phase.FINAL: 0, Phase.UNDELIVERED: SPEC.trainer_bond, Phase.DECLINED: SPEC.reward - 2 * (SPEC.reward // 4)}
    assert burnt == lost[cheat.end]
    assert x.received == (cheat.end is Phase.FINAL and not cheat.absent)
    assert bool(x.refusals) == (bool(cheat.tries) and name != "declines")


def test_the_checks_of_the_register_can_fail(scene: Scene, tmp_path: Path) -> None:
    """Damaged twins: a right leaf is no cheat, a legal call is not refused."""
    harmless = replace(CHEATS["one-wrong-leaf"], change=lambda *_: None)
    assert exchange(scene, harmless, tmp_path / "a").play() is Phase.FINAL
    legal = Cheat(
        "legal",
        "",
        Phase.FINAL,
        tries={
            Phase.DELIVERING: lambda x: x.refused(
                "NotClient", x.client, "confirm", x.job, x.client.exchange(x.job).offer
            )
        },
    )
    with pytest.raises(VgameError, match="accepted confirm"):
        exchange(scene, legal, tmp_path / "b").play()


def test_the_received_state_is_the_trained_one(scene: Scene, tmp_path: Path) -> None:
    x = exchange(scene, CHEATS["answers-on-chain"], tmp_path)
    x.cheat = HONEST
    found: dict[int, list[np.ndarray]] = {}
    x.write = lambda buyer: buyer.receive(
        lambda piece, leaves: found.setdefault(piece.tensor, []).append(leaves.reshape(-1))
    )
    assert x.play() is Phase.FINAL
    for tensor, words in enumerate(x.words):
        assert np.array_equal(np.concatenate(found[tensor]).view("<u4")[: words.size], words)


# ---- agents that are killed ----


class Killed(BaseException):
    """Like kill -9: without clean-up."""


class Mortal:
    """Both sides; the `n`-th transaction of all is the last one sent, or the first one not sent. Then all roles
    restart."""

    def __init__(self, scene: Scene, cheat: Cheat, folder: Path, n: int, sent: bool) -> None:
        self.scene, self.cheat, self.folder, self.left, self.sent = scene, cheat, folder, n, sent
        self.play, self.trainer, self.count, self.deaths = scene.post(DELIVERY), scene.game(), 0, 0
        for game in (self.play.client, self.trainer):
            game.send = partial(self.send, game.send)

    def send(self, really: Any, *args: Any, **options: Any) -> Any:
        self.count += 1
        self.left -= 1
        if self.left == 0 and not self.sent:
            raise Killed
        found = really(*args, **options)
        if self.left == 0:
            raise Killed
        return found

    def fresh(self) -> Exchange:
        machine = DELIVERY.machine()
        words = [w.astype("<u4") for w in machine.state_words(DELIVERY.steps)]
        record = lambda t: DELIVERY.honest.source_record(t).as_tuple()  # noqa: E731
        return Exchange(self.cheat, self.play.client, self.trainer, machine, self.play.id, words, self.folder, record)

    def end(self) -> Phase:
        while True:
            try:
                x = self.fresh()
                if self.play.phase <= Phase.ACCEPTED:
                    x.claim()
                if self.play.phase is Phase.CLAIMED:
                    self.play.pass_window()
                return x.play()
            except Killed:
                self.deaths += 1


KILLED = ["honest-exchange", "answers-on-chain", "one-wrong-leaf", "wrong-true-hash", "no-key", "refused-chunk"]


@pytest.mark.parametrize("name", KILLED)
@pytest.mark.parametrize("sent", [True, False])
def test_a_role_killed_at_any_transaction_resumes(scene: Scene, tmp_path: Path, name: str, sent: bool) -> None:
    cheat = CHEATS.get(name, HONEST)
    whole = Mortal(scene, cheat, tmp_path / "whole", 0, sent)
    assert whole.end() is cheat.end and whole.deaths == 0
    for n in range(1, whole.count + 1):
        mortal = Mortal(scene, cheat, tmp_path / str(n), n, sent)
        assert mortal.end() is cheat.end and mortal.deaths == 1, n
        for game in (mortal.play.client, mortal.trainer):
            assert game.credits(game.wallet.address) == 0


def test_a_trainer_killed_while_sealing_seals_again_with_the_same_key(scene: Scene, tmp_path: Path) -> None:
    """The key is on disk before its use; a partly sealed state is no offer."""

    def dies(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        if piece.tensor == 2:
            raise Killed

    mortal = Mortal(scene, replace(HONEST, change=dies), tmp_path, 0, True)
    with pytest.raises(Killed):
        mortal.fresh().claim()
    key = (tmp_path / "seller" / "key").read_bytes()
    mortal.cheat = HONEST
    assert mortal.end() is Phase.FINAL and (tmp_path / "seller" / "key").read_bytes() == key
