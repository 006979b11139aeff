"""Payments on a conviction (docs/protocol.md): the prize, bonds and fees, to the wei."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import LIE, SUM, Bluffer, Mistaken, state_lie, word_lie
from frauds import SETUP as FREE
from outcomes import prize
from scene import ETHER, Play, Scene, Setup, due
from toy import Lies

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase, Status
from vgame.dispute.auditor import Auditor
from vgame.errors import ContractError

FEE = ETHER // 50 + 1
FIRST = word_lie(3, SUM, 4, 1)[0]
#: A waiting guardian's clock is longer than that of a silent trainer.
SETUP = replace(FREE, terms={"fee": FEE, "auditor_budget": 900})
SPEC = SETUP.spec
CAUSES = {"element": (LIE, ()), "opening": (state_lie(6, SUM, 0)[0], ()), "timeout": (LIE, ("postTrace",))}


def guarded(scene: Scene, lies: Lies | None, setup: Setup = SETUP, **options: object) -> tuple[Play, Auditor]:
    """A claim whose order names a guardian, and that guardian."""
    wallet = scene.wallet()
    setup = replace(setup, terms=setup.terms | {"guardian": wallet.address})
    play = scene.claimed(setup, lies, Bluffer, **options)
    return play, Auditor(scene.game(wallet), play.id, play.machine(None))


def gained(play: Play, player: Auditor) -> int:
    """A player's gain beyond its bonds and fees."""
    return play.paid(player) - play.setup.spec.stake * sum(d.auditor == player.address for d in play.disputes())


def convict(play: Play, auditor: Auditor) -> None:
    """Trainer and auditor play to the verdict; no other account moves."""
    for _ in range(100):
        play.run(play.trainer, auditor)
        if play.phase is Phase.CONVICTED:
            return
        play.wait_for_clocks()
    raise AssertionError("no conviction")


# ---- the prize ----


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("guardian", ["none", "absent", "open", "lapsed", "own"])
def test_a_guardian_is_paid_for_any_conviction(scene: Scene, cause: str, guardian: str) -> None:
    """While the guardian has an open dispute, also if another one convicts; otherwise the convicting auditor is
    paid."""
    lies, silent = CAUSES[cause]
    play, guard = guarded(scene, lies, silent=silent)
    if guardian == "none":
        play = scene.claimed(SETUP, lies, Bluffer, silent=silent)
    auditor = guard if guardian == "own" else play.auditor()
    if guardian in ("open", "lapsed"):
        due(guard).send(guard.game)
    if guardian == "lapsed":
        play.trainer.step()
        play.wait_for_clocks()
        play.trainer.step()
        assert play.dispute().status is Status.LAPSED
    convict(play, auditor)
    number = int(guardian in ("open", "lapsed"))
    assert play.verdicts[-1] == ("Convicted", number, cause)
    winner = guard if guardian in ("open", "own") else auditor
    assert play.client.verdict(play.id).winner == winner.address
    assert gained(play, winner) == prize(SPEC, cause) - (SPEC.stake if guardian == "open" else 0)
    play.run(guard, auditor)  # the guardian's bond, and its fee
    lapsed = guardian == "lapsed"
    assert gained(play, winner) == prize(SPEC, cause)
    assert winner is guard or gained(play, guard) == -SPEC.stake * lapsed
    burnt = SPEC.stake - SPEC.auditor_bond // 2 if lapsed else 0
    assert play.client.burnt() == SPEC.trainer_bond - prize(SPEC, cause) + burnt


def test_a_guardian_that_has_not_challenged_is_not_paid(scene: Scene) -> None:
    """Another auditor's dispute, number 0, is open."""
    play, guard = guarded(scene, LIE)
    first, second = play.auditor(), play.auditor()
    due(first).send(first.game)
    convict(play, second)
    assert play.verdicts[-1] == ("Convicted", 1, "element") and play.disputes()[0].status is Status.OPEN
    assert play.client.verdict(play.id).winner == second.address
    assert gained(play, second) == prize(SPEC, "element") and gained(play, guard) == 0


def test_a_timeout_pays_no_more_than_an_auditors_clock(scene: Scene) -> None:
    """An honest trainer that is kept off the chain loses its bond, and no account gets more of it than an idle auditor
    would pay to the trainer: the rest is burnt."""
    play = scene.claimed(SETUP)
    accuser = play.auditor(None, FalseAccuser, idle=True)
    accuser.step()
    play.wait_for_clocks()
    scene.game().send("timeout", play.id, 0)
    play.run(accuser)
    assert gained(play, accuser) == SPEC.auditor_bond // 2 < SPEC.trainer_bond // 2
    assert play.client.burnt() == SPEC.trainer_bond - SPEC.auditor_bond // 2


@pytest.mark.parametrize("silent", ["reveal", "postSegment", "postTrace", "openLeaf"])
def test_a_timeout_with_a_small_trainers_bond(scene: Scene, silent: str) -> None:
    bond = 10 * (ETHER + 1)
    play = scene.claimed(replace(SETUP, terms=SETUP.terms | {"auditor_bond": bond}), LIE, Bluffer, silent={silent})
    auditor = play.auditor()
    convict(play, auditor)
    assert play.verdicts == [("Convicted", 0, "timeout")] and gained(play, auditor) == SPEC.trainer_bond // 2


@pytest.mark.parametrize("guardian", [False, True])
def test_an_account_disputes_a_claim_once(scene: Scene, guardian: bool) -> None:
    """Also if its dispute has ended: whatever an endpoint hides from an auditor, it stakes once."""
    play, guard = guarded(scene, LIE)
    player = guard if guardian else play.auditor()
    first = due(player)
    first.send(player.game)
    with pytest.raises(ContractError, match="AlreadyDisputed"):
        first.send(player.game)
    play.trainer.step()
    play.wait_for_clocks()
    play.trainer.step()
    assert play.dispute().status is Status.LAPSED and play.job.guarded == guardian
    with pytest.raises(ContractError, match="AlreadyDisputed"):
        first.send(player.game)
    convict(play, play.auditor())
    assert play.client.verdict(play.id).winner != guard.address


@pytest.mark.parametrize("cause", CAUSES)
def test_a_sybil_in_all_roles_loses_at_least_half_of_its_bond(scene: Scene, cause: str) -> None:
    """Trainer, guardian and crowd are one account."""
    lies, silent = CAUSES[cause]
    play, guard = guarded(scene, lies, silent=silent)
    own = [guard, play.auditor(), play.auditor()]
    for player in own:
        due(player).send(player.game)
    convict(play, own[1])
    play.run(*own)
    assert play.job.open == 0
    assert sum(gained(play, p) for p in own) <= SPEC.trainer_bond // 2
    assert play.client.burnt() >= SPEC.trainer_bond - SPEC.trainer_bond // 2 and play.paid(play.trainer) == 0


@pytest.mark.parametrize("guard", [False, True], ids=["stranger", "guardian"])
def test_an_honest_auditor_pays_the_fee_if_the_cheat_convicts_itself_elsewhere(scene: Scene, guard: bool) -> None:
    """The auditor pays the fee, because it cannot be distinguished from the cheat's crowd; the guardian gets its fee
    back, and the prize."""
    words = {place: word for lie in (LIE, FIRST) for place, word in lie.words.items()}
    play, honest = guarded(scene, Lies(words=words))
    if not guard:
        honest = play.auditor()
    own = play.auditor(FIRST, Mistaken)  # it contests the second lie alone
    for _ in range(100):
        for player in (play.trainer, own):
            player.step()
        if play.job.disputes < 2 or play.dispute(1).level is Level.RUN:
            honest.step()
    assert play.verdicts == [("Convicted", 0, "element")]
    play.run(honest, own)
    assert gained(play, honest) == (prize(SPEC, "element") if guard else -FEE)
    assert gained(play, own) == (0 if guard else prize(SPEC, "element"))
