"""Irreversible decisions need a final state: no role ends with money at stake because of temporary replies, and each
ends when the end is final."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import SETUP, SUM, word_lie
from scene import Play, Scene
from test_watch import watch

import vgame.agents.staking
from vgame.agents.named_jobs import Limits
from vgame.agents.roles import play as play_trainer
from vgame.chain import final, pauses
from vgame.chain.connection import DEVELOPMENT, FINALITY, RefusedError
from vgame.chain.final import final_jobs
from vgame.chain.records import Job, Level, Phase, Verdict
from vgame.dispute.delegate import Delegate
from vgame.dispute.trainer import Trainer
from vgame.errors import ChainError, NotYet, Over
from vgame.system.progress import Reporter

SPEC = SETUP.spec
LIE = word_lie(6, SUM, 4, 1)[0]
LOOKS = 12
LIES: dict[str, Callable[[Job], Job]] = {
    phase.name: lambda job, phase=phase: replace(job, phase=phase)
    for phase in (Phase.FINAL, Phase.CONVICTED, Phase.EXPIRED, Phase.UNDELIVERED, Phase.DECLINED)
} | {
    "another trainer's": lambda job: replace(job, trainer="0x" + 40 * "1", phase=Phase.ACCEPTED),
    "an old state": lambda job: replace(job, phase=Phase.ACCEPTED, claimed_at=0),
}


class EndlessError(BaseException):
    """The role does not end."""


class Node:
    """The finality of the chain's node. `behind`: blocks; `pruned`: only the newest state; None: no finality."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.behind: int | None = 0
        self.pruned = False
        node, chain = scene.chain.node, scene.chain
        usual, shows = node.methods["eth_getBlockByNumber"], chain._shows

        def block(which: str, full: bool = False) -> Any:
            if which != "finalized":
                return usual(which, full)
            return None if self.behind is None else usual(hex(max(0, node.newest() - self.behind)), full)

        def is_shown(named: Any) -> bool:
            return shows(named) and not (self.pruned and named["blockHash"] != node.blocks[-1]["hash"])

        monkeypatch.setitem(node.methods, "eth_getBlockByNumber", block)
        monkeypatch.setattr(chain, "_shows", is_shown)


@pytest.fixture
def node(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    for module in (final, pauses):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=scene.chain.now))
    monkeypatch.setattr(scene.chain, "is_development", False)
    return Node(scene, monkeypatch)


def to_the_end(play: Play, after: Callable[[int], None], looks: int = 300, trainer: Trainer | None = None) -> str:
    """Run the trainer's process, with `after` called after each look. The name of its last phase, or of its error."""
    trainer = trainer or play.trainer
    computation: Any = SimpleNamespace(run_root=bytes(32), store=SimpleNamespace(folder=Path("run")))
    usual, count = trainer.look, [0]

    def look(job: Job | None = None) -> Job:
        if job is None:
            count[0] += 1
            after(count[0])
            if count[0] >= looks:
                raise EndlessError
        return usual(job)

    trainer.look = look
    try:
        return play_trainer(trainer, computation, Reporter(), 0.0).name
    except Over as over:
        return str(over)
    finally:
        del trainer.look


def shown(trainer: Trainer, lie: Callable[[Job], Job]) -> Callable[[], None]:
    """The endpoint alters the job in every query; the returned function undoes this."""
    game = trainer.game
    job, jobs = game.job, game.jobs
    game.job = lambda identity: lie(job(identity))
    game.jobs = lambda identities: [lie(found) for found in jobs(identities)]

    def undo() -> None:
        game.job, game.jobs = job, jobs

    return undo


@pytest.mark.parametrize("behind", [0, 2])
@pytest.mark.parametrize("name", LIES)
def test_a_temporarily_shown_end_does_not_end_a_trainer(scene: Scene, node: Node, name: str, behind: int) -> None:
    play, node.behind = scene.claimed(SETUP), behind
    if name == "an old state" and behind == 0:
        pytest.skip("a state that is final and not the newest is one of a chain's own")
    undo = shown(play.trainer, LIES[name])
    play.advance(SPEC.challenge_window - 10 if name != "an old state" else 10)

    def after(look: int) -> None:
        if look == LOOKS:
            undo()
            play.pass_window()
        if look > LOOKS:
            play.advance(12)

    assert to_the_end(play, after) == "FINAL"
    assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond


@pytest.mark.parametrize("behind", [0, 8])
@pytest.mark.parametrize("phase", [Phase.FINAL, Phase.UNDELIVERED, Phase.DECLINED, Phase.CONVICTED])
def test_one_altered_field_of_a_claim_past_its_window_does_not_end_a_trainer(
    scene: Scene, node: Node, phase: Phase, behind: int
) -> None:
    """All times are consistent then: only a phase shown in each look for long enough counts, even if the node declares
    its block final."""
    play, node.behind = scene.claimed(SETUP), behind
    play.pass_window()
    undo = shown(play.trainer, lambda job: replace(job, phase=phase))

    def after(look: int) -> None:
        play.advance(12)
        if look == 6:
            undo()

    assert to_the_end(play, after) == "FINAL"
    assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond


def test_a_hidden_acceptance_does_not_end_a_trainer(scene: Scene, node: Node) -> None:
    play, node.behind = scene.post(SETUP), 2
    play.trainer = play.new_trainer()
    play.trainer.accept()
    play.advance(SPEC.accept_window + 1)
    undo = shown(play.trainer, lambda job: replace(job, phase=Phase.CREATED))

    def after(look: int) -> None:
        play.advance(1 if look < LOOKS else 12)
        if look == LOOKS:
            undo()
        if play.phase is Phase.CLAIMED:
            play.advance(SPEC.challenge_window)

    assert to_the_end(play, after) == "FINAL"


def test_a_late_end_on_a_node_without_finality_is_observed_for_long_enough(scene: Scene, node: Node) -> None:
    """A reorganisation may undo it for as long as any other block."""
    play, node.behind = scene.claimed(SETUP), None
    play.advance(SPEC.challenge_window + 2 * FINALITY)
    begun = scene.chain.now()
    assert to_the_end(play, lambda _: play.advance(60)) == "FINAL"
    assert scene.chain.now() - begun >= FINALITY


def test_a_conviction_in_the_second_of_its_claim_is_possible(scene: Scene, node: Node) -> None:
    play = scene.claimed(SETUP)
    convicted, at_once = replace(play.job, phase=Phase.CONVICTED, disputes=1), play.job.claimed_at
    verdict = Verdict(Level.RUN, 0, 0, 0, 0, 0, 0, "timeout", at_once, play.trainer.address)
    assert convicted.could_be(at_once, verdict) and not convicted.could_be(at_once - 1, verdict)
    assert not convicted.could_be(at_once, replace(verdict, time=at_once - 1))
    assert not convicted.could_be(at_once, replace(verdict, time=0)) and not convicted.could_be(at_once)


@pytest.mark.parametrize("behind", [2, 40])
def test_a_trainer_stays_until_the_end_is_final(scene: Scene, node: Node, behind: int) -> None:
    """A reorganisation may undo the end; then the claim is finalized again."""
    play, chain = scene.claimed(SETUP), scene.chain.node
    play.pass_window()
    point, replaced, node.behind = chain.snapshot(), [False], behind

    def after(look: int) -> None:
        if play.phase is Phase.FINAL and not replaced[0]:
            replaced[0] = True
            chain.revert(point)
            scene.ghost.remember(memory)
        play.advance(12)

    memory = scene.ghost.memory()
    assert to_the_end(play, after, 120) == "FINAL" and replaced[0] and play.phase is Phase.FINAL
    assert chain.newest() - behind >= play.client.events("Finalized", job=play.id)[-1].block
    assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond


@pytest.mark.parametrize("manner", ["no tag", "pruned"])
def test_an_end_on_a_node_without_a_final_state_is_accepted_later(scene: Scene, node: Node, manner: str) -> None:
    play = scene.claimed(SETUP)
    play.pass_window()
    node.behind, node.pruned = (None, False) if manner == "no tag" else (1, True)
    begun = scene.chain.now()
    assert to_the_end(play, lambda _: play.advance(60)) == "FINAL"
    assert scene.chain.now() - begun >= (FINALITY if manner == "no tag" else 60)
    assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond


def test_a_chain_of_a_development_node_is_final_at_once(
    scene: Scene, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes blocks only for transactions, so none would ever become final."""
    assert {1337, 31337} < {*DEVELOPMENT}
    play, node.behind = scene.claimed(SETUP), 64
    play.pass_window()
    with pytest.raises(EndlessError):
        to_the_end(play, lambda _: None)
    assert scene.chain.final_time() < scene.chain.now()
    monkeypatch.setattr(scene.chain, "is_development", True)
    assert scene.chain.final_time() == scene.chain.now()
    assert to_the_end(play, lambda _: None) == "FINAL"


def test_a_failed_query_for_finality_is_repeated(scene: Scene, node: Node) -> None:
    play, calls = scene.claimed(SETUP), [0]
    play.pass_window()
    chain = scene.chain
    usual = chain.block

    def block(which: Any = None) -> Any:
        if which == "finalized" and (calls.append(1) or len(calls) < 5):
            raise ChainError("no answer")
        return usual(which)

    chain.block = block
    try:
        assert to_the_end(play, lambda _: play.advance(60)) == "FINAL" and len(calls) >= 5
    finally:
        del chain.block


def test_the_acceptance_of_another_trainer_counts_when_it_is_final(scene: Scene, node: Node) -> None:
    """On another branch this trainer's acceptance may come first, with its bond."""
    play, node.behind = scene.post(SETUP), 3
    play.trainer = play.new_trainer()
    for _ in range(4):
        play.advance(1)
    play.new_trainer().accept()
    for _ in range(3):
        with pytest.raises(NotYet, match="until that state is final"):
            play.trainer.step()
        play.advance(FINALITY // 3)
    with pytest.raises(Over, match="not this trainer's"):
        play.trainer.step()


def test_a_delegate_ends_with_the_final_phase(scene: Scene, node: Node) -> None:
    play, node.behind = scene.post(SETUP), 3
    play.trainer = play.new_trainer()
    play.trainer.accept()
    delegate = play.new_trainer(None, Delegate)
    undo = shown(delegate, LIES["EXPIRED"])
    for _ in range(LOOKS):
        play.advance(1)
        with pytest.raises(NotYet, match="until that state is final"):
            delegate.step()
    undo()
    play.advance(SPEC.claim_window)
    play.client.send("expire", play.id)
    assert "nothing to defend" in to_the_end(play, lambda _: play.advance(12), trainer=delegate)


@pytest.mark.parametrize("name", ["FINAL", "CONVICTED", "EXPIRED", "DECLINED"])
@pytest.mark.parametrize("behind", [0, 2])
def test_a_temporarily_shown_end_does_not_end_an_auditor(scene: Scene, node: Node, name: str, behind: int) -> None:
    play, node.behind = scene.claimed(SETUP, LIE), behind
    service = watch(play, Limits(jobs=frozenset({play.id})))
    service.round()
    undo = shown(service, LIES[name])
    for _ in range(LOOKS):
        service.round()
        play.advance(12)
        assert not service.finished
    undo()
    for _ in range(200):
        service.round()
        if service.finished:
            break
        play.trainer.step()
        play.advance(12 if play.phase is Phase.CONVICTED else 1)
    assert service.finished and play.phase is Phase.CONVICTED
    assert play.client.credits(service.game.wallet.address) == 0


def test_an_impossible_state_is_not_final(scene: Scene, node: Node) -> None:
    """A claim with one altered field, for every alteration that would end a role."""
    play = scene.claimed(SETUP)
    game = play.trainer.game
    assert final_jobs(game, [play.id])[0] == [play.job]
    usual = game.jobs
    for change in (
        *({"phase": phase} for phase in Phase if phase is not Phase.CLAIMED),
        {"claimed_at": play.job.claimed_at + 10_000}, {"claimed_at": 0},
    ):  # fmt: skip
        game.jobs = lambda jobs, change=change: [replace(job, **change) for job in usual(jobs)]
        assert final_jobs(game, [play.id])[0] is None, change
    del game.jobs


@pytest.mark.parametrize("error", [RefusedError("400"), ChainError("no answer"), ValueError("nonsense")])
def test_an_auditor_that_cannot_read_a_final_state_continues(scene: Scene, node: Node, error: Exception) -> None:
    play = scene.claimed(SETUP)
    service = watch(play, Limits(jobs=frozenset({play.id})))
    play.pass_window()
    play.trainer.step()
    usual, away = service.game.jobs, [False]

    def jobs(identities: Any) -> Any:
        if away[0]:
            raise error
        return usual(identities)

    service.game.jobs = jobs
    service.round()
    play.advance(FINALITY)
    for away[0] in (True, False):
        service.round()
        assert service.finished is not away[0]
