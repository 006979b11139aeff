"""Many auditors, many accusers, many jobs: the trainer pays for distinct nodes, finality is bounded, no wei is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from frauds import LIE, SETUP, SUM, Mistaken, place_of, state_lie, word_lie
from outcomes import prize
from scene import Play, Scene, Setup, due
from toy import INFINITY, Lies

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import LOST, Level, Phase, Status, Turn
from vgame.dispute.player import Player

OPENINGS = ("Revealed", "LeafOpened", "SegmentPosted", "TracePosted", "PartialsPosted")


def sent_by(scene: Scene, player: Player) -> int:
    """Transactions of a player."""
    return scene.chain.node.nonces.get(player.address.lower(), 0)


def openings(play: Play) -> Counter[tuple[object, ...]]:
    """The opened nodes, by content or position, with their counts."""
    found = []
    for name, a in play.events(*OPENINGS):
        if name == "PartialsPosted":
            d = play.dispute(a["dispute"])
            found.append((name, d.step, d.operator, d.index))
        else:
            keys = ("kind", "height", "node", "checkpoint", "step", "tensor")
            found.append((name, *(a[k] for k in keys if k in a)))
    return Counter(found)


def empty(scene: Scene, *players: Player) -> None:
    """All accounts withdraw: the rest is the burnt amount."""
    for player in players:
        player.withdraw()
    assert scene.chain.balance(scene.address) == scene.game().burnt()


@pytest.mark.parametrize("count", [1, 50])
def test_auditors_on_one_path_cost_the_trainer_no_more_than_one(scene: Scene, count: int) -> None:
    """Every node is opened once for all disputes; the auditor that convicts is paid, all others have their bonds
    back."""
    play = scene.claimed(replace(SETUP, terms={"trainer_budget": 3000, "auditor_budget": 3000}), LIE)
    auditors = [play.auditor() for _ in range(count)]
    for auditor in auditors:
        due(auditor).send(auditor.game)
    before = sent_by(scene, play.trainer)
    play.run_to_end(play.trainer, *auditors)
    assert play.verdicts == [("Convicted", play.verdicts[0][1], "element")]
    assert set(openings(play).values()) == {1}
    # each with the first reveal below it
    posts = sum(key[0] in ("SegmentPosted", "TracePosted") for key in openings(play))
    assert sent_by(scene, play.trainer) - before == len(openings(play)) - posts + 1  # and the proof
    won = [play.verdicts[0][1] == number for number in range(count)]
    assert [play.paid(a) for a in auditors] == [
        SETUP.spec.auditor_bond + prize(SETUP.spec, "element") * one for one in won
    ]
    assert [d.status for d in play.disputes()].count(Status.VOID) == count - 1
    empty(scene, play.trainer, *auditors, _client(play))


def _client(play: Play) -> Player:
    return Player(play.client, play.id, play.setup.honest)


@pytest.mark.wide
def test_fifty_accusers_of_an_honest_claim(scene: Scene) -> None:
    """A2, A8: all at once, each on its own path: all dismissed, every node opened once, and the trainer gains from
    each."""
    play = scene.claimed(SETUP)
    accusers = [play.auditor(None, FalseAccuser, step_wanted=1 + n % 8) for n in range(50)]
    since = play.job.since
    for accuser in accusers:
        accuser.step()
    assert play.job.open == 50
    play.run_to_end(play.trainer, *accusers)
    spec = SETUP.spec
    assert play.phase is Phase.FINAL and {d.status for d in play.disputes()} <= LOST
    assert set(openings(play).values()) == {1}
    assert play.paid(play.trainer) == spec.reward + spec.trainer_bond + 50 * (spec.auditor_bond // 2)
    duties = 14  # more than any of these disputes has
    assert (
        scene.chain.now()
        <= since + spec.challenge_window + spec.trainer_budget + spec.auditor_budget + duties * 50 * spec.slot
    )
    empty(scene, play.trainer, _client(play))


@pytest.mark.parametrize("count", [2, 7])
def test_a_trainer_with_one_worker_keeps_all_its_clocks(scene: Scene, count: int) -> None:
    """The queue: first come, first served, one slot for each duty below RUN; no dispute is charged more than a slot for
    a duty."""
    slot = 50
    setup = Setup(SETUP.program, steps=8, terms={"slot": slot, "trainer_budget": 14 * slot, "challenge_window": 100})
    play = scene.claimed(setup)
    accusers = [play.auditor(None, FalseAccuser, step_wanted=1 + n) for n in range(count)]
    duties, longest = Counter(), 0
    for accuser in accusers:
        accuser.step()
    while any(d.status is Status.OPEN for d in play.disputes()):
        waiting = [
            (d.turn_at, n, d) for n, d in enumerate(play.disputes())
            if d.status is Status.OPEN and play.client.turn(play.id, n)[0] is Turn.TRAINER
        ]  # fmt: skip
        if waiting:
            _, number, d = min(waiting, key=lambda w: w[:2])
            deep = d.level is not Level.RUN or d.height == 0
            if deep:
                duties[number] += 1
                # its own work; the rest of the slot is for transactions of others
                play.advance(slot - 2 * count - 2)
            play.trainer.answer(play.job, number, d)
            longest = max(longest, len(waiting))
        for accuser in accusers:
            accuser.step()
    assert {name for name, _, _ in play.verdicts} == {"Dismissed"} and len(play.verdicts) == count
    for number, d in enumerate(play.disputes()):
        assert d.trainer_left >= 14 * slot - (duties[number] + 1) * slot
    assert longest == count
    assert play.run_to_end(play.trainer) is Phase.FINAL


def test_several_frauds_and_all_kinds_of_auditors_at_once(scene: Scene) -> None:
    """C7: mistaken auditors, accusers and idle ones beside one honest auditor, on a claim that is wrong in three
    segments."""
    words = {
        place: word
        for lie in (word_lie(2, 2, 5), word_lie(6, 1, 9), word_lie(8, SUM, 1))
        for place, word in lie[0].words.items()
    }
    play = scene.claimed(SETUP, Lies(words=words, state=state_lie(3, 2, 0)[0].state))
    honest = play.auditor()
    crowd = [
        play.auditor(None, FalseAccuser, idle=True),
        play.auditor(word_lie(6, 1, 9)[0], Mistaken),
        play.auditor(word_lie(1, 0, 0)[0], Mistaken),
        play.auditor(None, FalseAccuser, step_wanted=5),
        honest,
        play.auditor(LIE, Mistaken),
    ]
    play.run_to_end(play.trainer, *crowd)
    assert play.phase is Phase.CONVICTED
    assert play.paid(honest) >= SETUP.spec.auditor_bond
    empty(scene, play.trainer, *crowd, _client(play))


def test_jobs_on_one_contract_do_not_affect_each_other(scene: Scene) -> None:
    """I13, C6: the same data in three jobs of one contract: an honest claim, a cheat's, one without a challenge."""
    plays = [scene.claimed(SETUP), scene.claimed(SETUP, LIE), scene.claimed(SETUP)]
    auditors = [plays[0].auditor(LIE, Mistaken), plays[1].auditor(), plays[2].auditor()]
    for _ in range(60):
        for play, auditor in zip(plays, auditors, strict=True):
            play.trainer.step()
            auditor.step()
    assert plays[0].verdicts == [("Dismissed", 0, "element")] and plays[2].verdicts == []
    assert plays[1].verdicts == [("Convicted", 0, "element")]
    v = plays[1].client.verdict(plays[1].id)
    assert (v.level, v.step, v.operator, v.index, v.part) == place_of(6, SUM, 4, 1)
    for play, auditor in zip(plays, auditors, strict=True):
        play.run_to_end(play.trainer, auditor)
    assert [p.phase for p in plays] == [Phase.FINAL, Phase.CONVICTED, Phase.FINAL]
    empty(scene, *(p.trainer for p in plays), *auditors, *(_client(p) for p in plays))


@pytest.mark.parametrize("step,entry", [(2, Level.RUN), (4, Level.SEGMENT)])
def test_a_tree_that_ends_before_the_conviction(scene: Scene, step: int, entry: Level) -> None:
    """A divergence is decided behind the last checkpoint and the last state: a dispute about one of these is refunded
    its bond."""
    play = scene.claimed(SETUP, Lies(words={(5, 1, 130): INFINITY}))
    mistaken, honest = play.auditor(word_lie(step, 1, 3)[0], Mistaken), play.auditor()
    due(mistaken).send(mistaken.game)
    play.run(play.trainer, honest)
    assert play.verdicts == [("Convicted", 1, "element")] and play.dispute(0).entry is entry
    play.run_to_end(mistaken, honest)
    assert play.paid(mistaken) == SETUP.spec.auditor_bond
    assert play.paid(honest) == SETUP.spec.auditor_bond + prize(SETUP.spec, "element")


def test_openings_of_one_job_do_not_count_in_another(scene: Scene) -> None:
    """I13: keys hold the job."""
    first, second = scene.claimed(SETUP), scene.claimed(SETUP)
    tree = first.trainer.run_tree()
    scene.game().send("reveal", first.id, int(Level.RUN), 2, tree.descendants(2, 0, 2))
    assert first.client.opened(first.id, Level.RUN, 2, tree.root) == scene.chain.now()
    assert second.client.opened(second.id, Level.RUN, 2, tree.root) == 0
    accuser = second.auditor(LIE, Mistaken)
    accuser.step()
    assert second.client.turn(second.id, 0)[0] is Turn.TRAINER


def test_the_cost_of_a_call_does_not_grow_with_disputes(scene: Scene) -> None:
    """I12: the same moves under one dispute and under forty cost the same gas but for the bits of the calldata."""

    def gas(others: int) -> dict[str, int]:
        play = scene.claimed(SETUP, LIE)
        for _ in range(others):
            play.auditor(None, FalseAccuser, idle=True).step()
        auditor, used = play.auditor(), {}
        due(auditor).send(auditor.game)
        play.trainer.defend = lambda job: play.trainer.answer(job, others, play.dispute(others))
        while play.phase is Phase.CLAIMED:
            player = play.trainer if play.client.turn(play.id, others)[0] is Turn.TRAINER else auditor
            call = due(player)
            used[call.name] = int(call.send(player.game)["gasUsed"], 16)
        return used

    few, many = gas(0), gas(40)
    assert few.keys() == many.keys() and len(few) > 9
    for name, used in few.items():
        assert abs(many[name] - used) <= 25_000, name
