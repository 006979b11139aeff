"""Illegal orders, acceptances, claims and ends of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any

from frauds import LIE, SETUP
from refusals import NODE, Refusal, diverged_play, refuses, struct
from scene import NAME, Call, Scene, due
from toy import Operator, Program, State

from vgame.chain.records import JobSpec, Phase


@refuses("BadSpec", "WrongValue", "JobExists", "HeaderMismatch")
def create_job(scene: Scene) -> Iterator[Refusal]:
    game, spec = scene.game(), SETUP.spec

    def order(error: str, args: tuple[Any, ...] | None, changed: JobSpec, value: int = spec.reward) -> Refusal:
        return Refusal(error, args, game, Call("createJob", (astuple(changed), 5, NAME, SETUP.program.header), value))

    bad: dict[str, list[dict[str, int]]] = {
        "steps": [{"steps": 0}],
        "interval": [{"interval": 0}],
        "depth": [{"depth": 0}, {"depth": 9}],
        "mode": [{"mode": 1}],
        "divergedPay": [{"diverged_pay": spec.reward + 1}],
        "trainerBond": [
            {"trainer_bond": 0},
            {"trainer_bond": spec.reward - 1},
            {"trainer_bond": 0, "reward": 0, "diverged_pay": 0},
        ],
        "auditorBond": [{"auditor_bond": 0}],
        "slot": [{"slot": 0}],
        "window": [{f"{w}_window": 0} for w in ("accept", "claim", "challenge")]
        + [{f"{w}_window": 9} for w in ("confirm", "key", "complaint")],
        "budget": [{"trainer_budget": 0}, {"trainer_budget": spec.slot - 1}, {"auditor_budget": 0}],
    }
    for field, changes in bad.items():
        for change in changes:
            yield order("BadSpec", (field,), replace(spec, **change))
    for value in (0, spec.reward - 1, spec.reward + 1):
        yield order("WrongValue", (value, spec.reward), spec, value)
    yield order("HeaderMismatch", None, replace(spec, program_root=NODE))
    for program in (Program((), (State(1),)), Program((Operator(1),), ())):
        changed = replace(spec, program_root=program.root)
        call = Call("createJob", (astuple(changed), 5, NAME, program.header), spec.reward)
        yield Refusal("BadSpec", ("program",), game, call)
    good = order("JobExists", (game.job_id(spec, game.wallet.address, 5),), spec)
    good.call.send(game)
    yield good
    yield replace(good, call=good.call.but(2, bytes(32)))  # the name is no part of the identity


@refuses("WrongPhase", "TooLate", "WrongValue")
def accept_job(scene: Scene) -> Iterator[Refusal]:
    play, spec, game = scene.post(SETUP), SETUP.spec, scene.game()
    accept = Call("acceptJob", (play.id,), spec.trainer_bond)
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CREATED), game, accept.but(0, NODE))
    for value in (1, spec.trainer_bond - 1, spec.trainer_bond + 1):
        yield Refusal("WrongValue", (value, spec.trainer_bond), game, replace(accept, value=value))
    accept.send(game)
    yield Refusal("WrongPhase", (Phase.ACCEPTED, Phase.CREATED), scene.game(), accept)
    late = scene.post(SETUP)
    until = late.job.since + spec.accept_window
    late.advance(spec.accept_window)
    yield Refusal("TooLate", (until + 1, until), game, accept.but(0, late.id))


@refuses("WrongPhase", "NotTrainer", "TooLate", "BadProof", "PathLength", "NoDelivery")
def post_claim(scene: Scene) -> Iterator[Refusal]:
    play = scene.post(SETUP)
    trainer = play.new_trainer()
    early = Call("postClaim", (play.id, NODE, NODE, [], bytes(32), bytes(32)))
    yield Refusal("WrongPhase", (Phase.CREATED, Phase.ACCEPTED), trainer.game, early)
    trainer.accept()
    claim = due(trainer)
    stranger = scene.game()
    yield Refusal("NotTrainer", (stranger.wallet.address.lower(),), stranger, claim)
    yield Refusal("BadProof", None, trainer.game, claim.but(1, NODE))
    yield Refusal("BadProof", None, trainer.game, claim.but(2, NODE))
    yield Refusal("BadProof", None, trainer.game, claim.but(3, claim.args[3][::-1]))
    yield Refusal("PathLength", (1, 2), trainer.game, claim.but(3, claim.args[3][:1]))
    yield Refusal("PathLength", (3, 2), trainer.game, claim.but(3, [*claim.args[3], NODE]))
    for field in (4, 5):  # the offer of a job without delivery
        yield Refusal("NoDelivery", (), trainer.game, claim.but(field, NODE))
    until = play.job.since + SETUP.spec.claim_window
    play.advance(until - scene.chain.now())
    yield Refusal("TooLate", (until + 1, until), trainer.game, claim)


@refuses("BadSpec", "BadProof", "WrongSource", "StillFinite", "LeafSize", "PathLength", "NotTrainer", "RecordMismatch")
def post_diverged(scene: Scene) -> Iterator[Refusal]:
    play, claim = diverged_play(scene)
    game, record = play.trainer.game, play.trainer.machine.operator_record
    stranger = scene.game()
    yield Refusal("NotTrainer", (stranger.wallet.address.lower(),), stranger, claim)
    yield Refusal("BadSpec", ("step",), game, struct(claim, 0, 0))
    yield Refusal("BadSpec", ("step",), game, struct(claim, 0, 9))
    for field in (1, 2, 3, 6):  # run root, segment root, prior, trace root
        yield Refusal("BadProof", None, game, struct(claim, field, NODE))
    yield Refusal("PathLength", None, game, struct(claim, 0, 4))  # another step has another shape
    yield Refusal("PathLength", (1, 0), game, struct(claim, 4, [NODE]))
    yield Refusal("RecordMismatch", None, game, struct(claim, 7, 2))
    other = struct(struct(claim, 7, 2), 8, record(2).as_tuple())
    yield Refusal("WrongSource", (), game, other)
    yield Refusal("WrongSource", (), game, struct(other, 10, 0))  # within its elements, but it need not be finite
    yield Refusal("WrongSource", (), game, struct(claim, 10, 300))
    yield Refusal("StillFinite", None, game, struct(claim, 10, 131))
    yield Refusal("LeafSize", (511,), game, struct(claim, 11, claim.args[1][11][:-1]))
    yield Refusal("BadProof", None, game, struct(claim, 10, 2))  # the word is there, at another place
    early, claim = diverged_play(scene, 2)
    # no checkpoint: the run root is padding
    yield Refusal("BadProof", None, early.trainer.game, struct(claim, 1, NODE))


@refuses("WrongPhase", "TooEarly", "DisputesOpen")
def ends_of_a_job(scene: Scene) -> Iterator[Refusal]:
    game, spec = scene.game(), SETUP.spec
    play = scene.post(SETUP)
    for name, actual in (("expire", Phase.ACCEPTED), ("finalize", Phase.CLAIMED)):
        yield Refusal("WrongPhase", (Phase.NONE, actual), game, Call(name, (NODE,)))
    expire, finalize = Call("expire", (play.id,)), Call("finalize", (play.id,))
    yield Refusal("TooEarly", (scene.chain.now() + 1, play.job.since + spec.accept_window + 1), game, expire)
    yield Refusal("WrongPhase", (Phase.CREATED, Phase.CLAIMED), game, finalize)
    play.trainer = play.new_trainer()
    play.trainer.accept()
    yield Refusal("TooEarly", (scene.chain.now() + 1, play.job.since + spec.claim_window + 1), game, expire)
    play.trainer.claim()
    yield Refusal("WrongPhase", (Phase.CLAIMED, Phase.ACCEPTED), game, expire)
    yield Refusal("TooEarly", (scene.chain.now() + 1, play.job.since + spec.challenge_window + 1), game, finalize)
    due(play.auditor(LIE)).send(play.auditor(LIE).game)
    play.pass_window()
    yield Refusal("DisputesOpen", (1,), game, finalize)
    yield Refusal("WrongPhase", (Phase.CLAIMED, Phase.CONVICTED), game, Call("refund", (play.id, 0)))
