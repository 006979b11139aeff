"""Every refusal of the contract, by name and arguments: an illegal call always reverts, with the error that says why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from frauds import SETUP, SUM, Forcer, state_lie, word_lie
from scene import Call, Play, Scene, Setup, due, payee_game
from toy import INFINITY, Lies, Operator, Program, Special, State

from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import Tree, padding
from vgame.errors import ContractError
from vgame.game.auditor import Auditor
from vgame.game.chain import artifact
from vgame.game.game import Game, JobSpec, Level, Phase, Status, Turn
from vgame.game.view import View

ROOT = Path(__file__).resolve().parents[2]
NODE = b"\x77" * 32
RECORD = (b"", b"", [])

#: Errors that no call can meet, and why.
UNREACHABLE = {
    "HashFailed": "the SHA-256 precompile fails only for lack of gas, and then too little is left to say so",
    "InsufficientBalance": "I1: the contract holds what it owes",
    "RangeProofLength": "only the referee opens ranges; tested there",
}

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


@pytest.mark.parametrize("names,case", CASES, ids=[case.__name__ for _, case in CASES])
def test_an_illegal_call_meets_its_error(scene: Scene, names: frozenset[str], case: Prepare) -> None:
    met = set()
    for refusal in case(scene):
        with pytest.raises(ContractError) as caught:
            refusal.call.send(refusal.game)
        assert caught.value.name == refusal.error, refusal.call.name
        assert refusal.args is None or caught.value.args_ == refusal.args, refusal.call.name
        met.add(refusal.error)
    assert met == names


def declared() -> set[str]:
    """Every custom error of the game's contracts, from their interfaces and from their sources."""
    found = {
        e["name"] for name in ("VerificationGame", "Settlement") for e in artifact(name)["abi"] if e["type"] == "error"
    }
    for path in (ROOT / "contracts").glob("*.sol"):
        if path.stem not in ("Referee", "Operands", "Records"):
            found |= set(re.findall(r"^\s*error (\w+)\(", path.read_text(), re.MULTILINE))
    return found


def test_every_error_is_met_or_cannot_be() -> None:
    met = set().union(*(names for names, _ in CASES)) & declared()
    assert met | set(UNREACHABLE) == declared()
    assert not met & set(UNREACHABLE)


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


# ---- jobs ----


@refuses("BadSpec", "WrongValue", "JobExists", "HeaderMismatch")
def create_job(scene: Scene) -> Iterator[Refusal]:
    game, spec = scene.game(), SETUP.spec

    def order(error: str, args: tuple[Any, ...] | None, changed: JobSpec, value: int = spec.reward) -> Refusal:
        return Refusal(error, args, game, Call("createJob", (astuple(changed), 5, SETUP.program.header), value))

    bad: dict[str, list[dict[str, int]]] = {
        "steps": [{"steps": 0}, {"steps": 2**32}],
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
        "slot": [{"slot": 0}, {"slot": 2**24}],
        "window": [{f"{w}_window": 0} for w in ("accept", "claim", "challenge", "reward")],
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
        yield Refusal(
            "BadSpec", ("program",), game, Call("createJob", (astuple(changed), 5, program.header), spec.reward)
        )
    good = order("JobExists", (game.job_id(spec, game.wallet.address, 5),), spec)
    good.call.send(game)
    yield good


@refuses("WrongPhase", "TooLate", "WrongValue")
def accept_job(scene: Scene) -> Iterator[Refusal]:
    play, spec, game = scene.post(SETUP), SETUP.spec, scene.game()
    accept = Call("acceptJob", (play.id,), spec.trainer_bond)
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CREATED), game, accept.but(0, NODE))
    yield Refusal("WrongValue", (1, spec.trainer_bond), game, replace(accept, value=1))
    accept.send(game)
    yield Refusal("WrongPhase", (Phase.ACCEPTED, Phase.CREATED), scene.game(), accept)
    late = scene.post(SETUP)
    until = late.job.since + spec.accept_window
    late.advance(spec.accept_window)
    yield Refusal("TooLate", (until + 1, until), game, accept.but(0, late.id))


@refuses("WrongPhase", "NotTrainer", "TooLate", "BadProof", "PathLength")
def post_claim(scene: Scene) -> Iterator[Refusal]:
    play = scene.post(SETUP)
    trainer = play.new_trainer()
    yield Refusal(
        "WrongPhase", (Phase.CREATED, Phase.ACCEPTED), trainer.game, Call("postClaim", (play.id, NODE, NODE, []))
    )
    trainer.accept()
    claim = due(trainer)
    stranger = scene.game()
    yield Refusal("NotTrainer", (stranger.wallet.address.lower(),), stranger, claim)
    yield Refusal("BadProof", None, trainer.game, claim.but(1, NODE))
    yield Refusal("BadProof", None, trainer.game, claim.but(2, NODE))
    yield Refusal("BadProof", None, trainer.game, claim.but(3, claim.args[3][::-1]))
    yield Refusal("PathLength", (1, 2), trainer.game, claim.but(3, claim.args[3][:1]))
    yield Refusal("PathLength", (3, 2), trainer.game, claim.but(3, [*claim.args[3], NODE]))
    until = play.job.since + SETUP.spec.claim_window
    play.advance(until - scene.chain.now())
    yield Refusal("TooLate", (until + 1, until), trainer.game, claim)


def diverged_play(scene: Scene, step: int = 5) -> tuple[Play, Call]:
    """A job whose trainer is about to claim that it diverged."""
    program = replace(SETUP.program, specials=(Special(step, 1, 130, INFINITY),))
    play = scene.post(replace(SETUP, program=program))
    play.trainer = play.new_trainer()
    play.trainer.accept()
    return play, due(play.trainer)


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
    yield Refusal("WrongSource", (), game, struct(claim, 10, 300))
    yield Refusal("StillFinite", None, game, struct(claim, 10, 131))
    yield Refusal("LeafSize", (511,), game, struct(claim, 11, claim.args[1][11][:-1]))
    yield Refusal("BadProof", None, game, struct(claim, 10, 2))  # the word is there, at another place
    early, claim = diverged_play(scene, 2)
    yield Refusal(
        "BadProof", None, early.trainer.game, struct(claim, 1, NODE)
    )  # no checkpoint: the run root is padding


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
    for name in ("refund", "payReward"):
        yield Refusal(
            "WrongPhase", (Phase.CLAIMED, Phase.CONVICTED), game, Call(name, (play.id, 0)[: 1 + (name == "refund")])
        )


# ---- moves ----


@refuses("WrongPhase", "TooLate", "WrongValue", "WrongLevel", "NotPosted", "NothingToContest", "BadProof")
def challenge(scene: Scene) -> Iterator[Refusal]:
    play, game, bond = scene.post(SETUP), scene.game(), SETUP.spec.auditor_bond
    call = Call("challenge", (play.id, int(Level.RUN), 0, NODE, NODE), bond)
    yield Refusal("WrongPhase", (Phase.CREATED, Phase.CLAIMED), game, call)
    trainer = play.new_trainer()
    trainer.accept()
    trainer.claim()
    yield Refusal("WrongValue", (bond - 1, bond), game, replace(call, value=bond - 1))
    yield Refusal("WrongValue", (0, bond), game, replace(call, value=0))
    for level in (Level.NONE, Level.STATE, Level.TENSOR, Level.ELEMENT, Level.BLOCK):
        yield Refusal("WrongLevel", (level, 0), game, call.but(1, int(level)))
    for level in (Level.SEGMENT, Level.TRACE):
        for where in (0, 1, 2**200):
            yield Refusal("NotPosted", (), game, call.but(1, int(level)).but(2, where))
    yield Refusal("BadProof", (NODE, play.job.run_root), game, call)  # another claim than the one that stands there
    until = play.job.since + SETUP.spec.challenge_window
    play.advance(until - scene.chain.now())
    yield Refusal("TooLate", (until + 1, until), game, call)
    first, claim = diverged_play(scene, 1)
    claim.send(first.trainer.game)
    yield Refusal("NothingToContest", (), game, call.but(0, first.id))  # no checkpoint before step 1
    yield Refusal("NothingToContest", (), game, call.but(0, first.id).but(1, int(Level.SEGMENT)).but(2, 1))  # only S_0


@refuses("WrongPhase", "WrongLevel", "ChildCount", "LeafSize")
def openings(scene: Scene) -> Iterator[Refusal]:
    play, game = scene.claimed(SETUP), scene.game()
    reveal = Call("reveal", (play.id, int(Level.RUN), 2, [NODE] * 4))
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CLAIMED), game, reveal.but(0, NODE))
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CLAIMED), game, Call("openLeaf", (NODE, bytes(512))))
    for level in (Level.NONE, Level.ELEMENT, Level.BLOCK):
        yield Refusal("WrongLevel", (level, 2), game, reveal.but(1, int(level)))
    for height in (0, 65, 2**255):
        yield Refusal("WrongLevel", (Level.RUN, height), game, reveal.but(2, height))
    for count in (0, 1, 2, 3, 5, 8):
        yield Refusal("ChildCount", (count, 4), game, reveal.but(3, [NODE] * count))
    yield Refusal("ChildCount", (4, 2), game, reveal.but(2, 1))
    for size in (0, 511, 513):
        yield Refusal("LeafSize", (size,), game, Call("openLeaf", (play.id, bytes(size))))


@refuses(
    "NotTrainer", "WrongLevel", "NotYourTurn", "BadProof", "PathLength", "ChildCount", "DisputeClosed", "WrongPhase"
)
def post_segment(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "postSegment")
    game = trainer.game
    yield Refusal("NotTrainer", (auditor.address.lower(),), auditor.game, call)
    yield Refusal("DisputeClosed", (Status.NONE,), game, call.but(1, 1))
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CLAIMED), game, call.but(0, NODE))
    for field in (0, 1):  # the state of the checkpoint, that before it
        yield Refusal("BadProof", None, game, struct(call, field, NODE))
    honest, forged = list(call.args[2][3]), SETUP.honest.segment(2)
    for place in (0, 3):  # I8: both ends
        children = [*honest[:place], NODE, *honest[place + 1 :]]
        yield Refusal("BadProof", None, game, struct(call, 3, children))
    yield Refusal("BadProof", None, game, struct(call, 3, forged[::-1]))
    yield Refusal("ChildCount", (2, 4), game, struct(call, 3, honest[:2]))
    for field in (2, 4, 5):
        yield Refusal("PathLength", None, game, struct(call, field, [*call.args[2][field], NODE]))
    call.send(game)
    yield Refusal("NotYourTurn", (Turn.AUDITOR,), game, call)
    play.run_until("postTrace", trainer, auditor)
    yield Refusal("WrongLevel", (Level.SEGMENT, 0), game, call)


@refuses("NotTrainer", "NotYourTurn", "WrongLevel", "ChildCount")
def post_trace(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "postTrace")
    yield Refusal("NotTrainer", (auditor.address.lower(),), auditor.game, call)
    yield Refusal("ChildCount", (2, 4), trainer.game, call.but(2, call.args[2][:2]))
    call.send(trainer.game)
    yield Refusal("NotYourTurn", (Turn.AUDITOR,), trainer.game, call)
    play.run_until("select", trainer, auditor).send(auditor.game)
    yield Refusal("WrongLevel", (Level.TRACE, 1), trainer.game, call)


@refuses("NotAuditor", "NotYourTurn", "WrongLevel", "DisputeClosed")
def select_state(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, post = disputed(scene, "postTrace", state_lie(6, SUM, 0)[0])
    call = Call("selectState", (play.id, 0))
    yield Refusal("NotYourTurn", (Turn.TRAINER,), auditor.game, call)
    post.send(trainer.game)
    yield Refusal("NotAuditor", (trainer.address.lower(),), trainer.game, call)
    yield Refusal("DisputeClosed", (Status.NONE,), auditor.game, call.but(1, 1))
    call.send(auditor.game)
    yield Refusal("NotYourTurn", (Turn.TRAINER,), auditor.game, call)
    play.run_until("reveal", trainer, auditor).send(trainer.game)
    yield Refusal("WrongLevel", (Level.STATE, 3), auditor.game, call)


@refuses("WrongSource", "BadProof", "PathLength", "WrongPhase", "WrongLevel", "RecordMismatch")
def ties(scene: Scene) -> Iterator[Refusal]:
    play, trainer, _, call = disputed(scene, "tie", state_lie(6, SUM, 0)[0])
    game, machine = trainer.game, trainer.machine
    record = machine.source_record(SUM).as_tuple()
    tie = Call("tie", (play.id, 0, record, machine.trace(6)[SUM], trainer.trace_tree(6).path(0, SUM)))
    prior, prior_path = trainer.prior(play.job, 6)
    unchanged = Call("tieUnchanged", (play.id, 0, record, prior, prior_path, NODE, [NODE] * 3))
    assert tie == call
    yield Refusal("WrongSource", (), game, unchanged)
    yield Refusal("BadProof", None, game, tie.but(3, NODE))
    yield Refusal("BadProof", None, game, tie.but(3, machine.trace(6)[0]).but(4, trainer.trace_tree(6).path(0, 0)))
    yield Refusal("PathLength", (2, 3), game, tie.but(4, tie.args[4][:2]))
    yield Refusal("RecordMismatch", None, game, tie.but(2, machine.source_record(0).as_tuple()))
    tie.send(game)
    for call in (tie, unchanged):
        yield Refusal("WrongPhase", (Phase.CONVICTED, Phase.CLAIMED), game, call)
    play, trainer, *_ = disputed(scene, "openLeaf")
    for call in (tie, unchanged):
        yield Refusal("WrongLevel", (Level.TENSOR, 0), trainer.game, call.but(0, play.id))
    _, trainer, _, call = disputed(scene, "tieUnchanged", state_lie(6, 5, 0)[0])
    yield Refusal("BadProof", None, trainer.game, call.but(3, NODE))
    yield Refusal("BadProof", None, trainer.game, call.but(5, NODE))
    yield Refusal("PathLength", None, trainer.game, call.but(4, []))
    yield Refusal("WrongSource", (), trainer.game, Call("tie", (*call.args[:3], NODE, [])))


@refuses(
    "NotAuditor",
    "NotYourTurn",
    "BadProof",
    "PathLength",
    "IndexOutOfRange",
    "NothingToContest",
    "WrongLevel",
    "DisputeClosed",
)
def selects(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "select")
    game = auditor.game
    yield Refusal("NotAuditor", (trainer.address.lower(),), trainer.game, call)
    yield Refusal("DisputeClosed", (Status.NONE,), game, call.but(1, 1))
    yield Refusal("BadProof", None, game, call.but(2, NODE))
    yield Refusal("BadProof", None, game, call.but(3, call.args[3] ^ 1))
    yield Refusal("BadProof", None, game, call.but(4, call.args[4][::-1]))
    yield Refusal("PathLength", (1, 2), game, call.but(4, call.args[4][:1]))
    yield Refusal("PathLength", (3, 2), game, call.but(4, [*call.args[4], NODE]))
    for index in (4, 2**48, 2**256 - 1):
        yield Refusal("IndexOutOfRange", (index, 2), game, call.but(3, index))
    children = trainer.run_tree().descendants(2, 0, 2)
    path = [children[2], trainer.run_tree().node(1, 0)]
    yield Refusal("NothingToContest", (), game, Call("select", (play.id, 0, children[3], 3, path)))  # padding
    yield Refusal("WrongLevel", (Level.RUN, 0), game, Call("selectOperator", (*call.args, RECORD)))
    yield Refusal("WrongLevel", (Level.RUN, 2), game, Call("selectElement", (play.id, 0, 0, bytes(512))))
    yield Refusal("WrongLevel", (Level.RUN, 2), game, Call("selectBlock", call.args))
    call.send(game)
    yield Refusal("NotYourTurn", (Turn.TRAINER,), game, call)
    segment = play.run_until("select", trainer, auditor)
    tree = trainer.segment_tree(2)
    yield Refusal(
        "NothingToContest", (), game, Call("select", (play.id, 0, tree.node(0, 0), 0, tree.path(0, 0)))
    )  # S_0
    segment.send(game)


@refuses("WrongLevel", "NothingToContest", "BadProof", "RecordMismatch")
def select_operator(scene: Scene) -> Iterator[Refusal]:
    _, trainer, auditor, call = disputed(scene, "selectOperator")
    game = auditor.game
    yield Refusal("WrongLevel", (Level.TRACE, 0), game, Call("select", call.args[:-1]))
    yield Refusal("BadProof", None, game, call.but(2, NODE))
    yield Refusal("RecordMismatch", None, game, call.but(5, auditor.machine.operator_record(1).as_tuple()))
    _, trainer, auditor, call = disputed(scene, "selectOperator", word_lie(6, 4, 0)[0])
    pad = padding(Tree_.TRACE, 0)
    other = call.but(2, pad).but(3, 1).but(4, [trainer.machine.trace(6)[4]])
    yield Refusal("NothingToContest", (), auditor.game, other)


@refuses("WrongLevel", "BadProof", "ElementOutOfLeaf", "NothingToContest")
def select_element(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "selectElement", word_lie(6, 0, 599)[0])
    game, words = auditor.game, call.args[3]
    yield Refusal("BadProof", None, game, call.but(3, bytes(512)))
    yield Refusal("BadProof", None, game, call.but(3, words[:-1]))
    for element in (0, 511, 640, 2**255):
        yield Refusal("ElementOutOfLeaf", (element, 4), game, call.but(2, element))
    for element in (600, 639):
        yield Refusal("NothingToContest", (), game, call.but(2, element))  # padding that is zero
    tree = trainer.tensor_tree(6, 0)
    path = Call("select", (play.id, 0, tree.node(0, 4), 0, []))
    yield Refusal("WrongLevel", (Level.TENSOR, 0), game, path)
    call.send(game)
    play.run_until("prove", trainer, auditor)


@refuses(
    "NotDecidedInBlocks", "DecidedInBlocks", "ChildCount", "NotTheClaimedSum", "NotTrainer", "OpeningSize", "WrongLevel"
)
def partial_sums(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "postPartials")
    partials, word = call.args[2], play.dispute().word
    yield Refusal("NotTrainer", (auditor.address.lower(),), auditor.game, call)
    for count in (0, 1, 2, 4):
        yield Refusal("ChildCount", (count, 3), trainer.game, call.but(2, [*partials, NODE][:count]))
    right = auditor.machine.partials(6, SUM, 4)
    yield Refusal("NotTheClaimedSum", (word ^ 1, word), trainer.game, call.but(2, right))
    yield Refusal("OpeningSize", (31, 32), trainer.game, call.but(2, [partials[0][:31], *partials[1:]]))
    prove = Call("prove", (play.id, 0, bytes(32), [], b""))
    yield Refusal("DecidedInBlocks", (3,), trainer.game, prove)
    play, trainer, *_ = disputed(scene, "prove", word_lie(6, 0, 599)[0])
    yield Refusal("NotDecidedInBlocks", (), trainer.game, call.but(0, play.id))
    play, trainer, _, _ = disputed(scene, "openLeaf")
    yield Refusal("WrongLevel", (Level.TENSOR, 0), trainer.game, call.but(0, play.id))


@refuses("NothingToContest", "BadProof", "PathLength", "NotAuditor", "NotYourTurn")
def select_block(scene: Scene) -> Iterator[Refusal]:
    _, trainer, auditor, call = disputed(scene, "selectBlock")
    game = auditor.game
    yield Refusal("NotAuditor", (trainer.address.lower(),), trainer.game, call)
    for index in (3, 4, 2**255):
        yield Refusal("NothingToContest", (), game, call.but(3, index))
    yield Refusal("BadProof", None, game, call.but(3, 0))
    yield Refusal("BadProof", None, game, call.but(2, NODE))
    yield Refusal("PathLength", (1, 2), game, call.but(4, call.args[4][:1]))
    call.send(game)
    yield Refusal("NotYourTurn", (Turn.TRAINER,), game, call)


@refuses("WrongLevel", "NotYourTurn", "BadProof", "WrongRoot", "OpeningSize", "HeaderMismatch", "PathLength")
def prove(scene: Scene) -> Iterator[Refusal]:
    """I10: a wrong witness decides nothing."""
    play, trainer, _, call = disputed(scene, "prove", word_lie(6, 1, 7)[0])
    game, honest = scene.game(), play.new_trainer().machine
    yield Refusal("BadProof", None, game, call.but(2, NODE))
    yield Refusal("PathLength", (1, 2), game, call.but(3, call.args[3][:1]))
    yield Refusal("WrongRoot", None, game, call.but(2, bytes(32)))  # the state before the step is not opened
    tree = trainer.trace_tree(6)
    other = honest.prove(6, 2, 7, None, lambda operator: tree.path(0, operator))
    yield Refusal("PathLength", None, game, call.but(4, honest.prove(6, 4, 7, None, lambda o: []).proof))
    yield Refusal("WrongRoot", None, game, call.but(4, other.proof))  # a witness for another operator
    wrong = honest.prove(5, 1, 7, None, lambda operator: []).proof
    yield Refusal("WrongRoot", None, game, call.but(4, wrong))  # of another step
    plain = honest.prove(6, 0, 7, None, lambda operator: []).proof
    yield Refusal("OpeningSize", (0, 512), game, call.but(4, plain))
    foreign = Setup(replace(SETUP.program, specials=(Special(6, 1, 7, 1),)), steps=8).honest
    yield Refusal("HeaderMismatch", None, game, call.but(4, foreign.prove(6, 1, 7, None, lambda operator: []).proof))
    play, *_ = disputed(scene, "selectElement")
    yield Refusal("NotYourTurn", (Turn.AUDITOR,), game, call.but(0, play.id))
    play, *_ = disputed(scene, "openLeaf")
    yield Refusal("WrongLevel", (Level.TENSOR, 0), game, Call("prove", (play.id, 0, bytes(32), [], b"")))


@refuses("NotExpired", "DisputeClosed", "WrongPhase")
def timeouts(scene: Scene) -> Iterator[Refusal]:
    play, *_, call = disputed(scene, "reveal")
    game, timeout = scene.game(), Call("timeout", (play.id, 0))
    yield Refusal("NotExpired", (Turn.TRAINER,), game, timeout)
    call.send(game)
    yield Refusal("NotExpired", (Turn.AUDITOR,), game, timeout)
    yield Refusal("DisputeClosed", (Status.NONE,), game, timeout.but(1, 1))
    play.advance(SETUP.spec.auditor_budget + 1)
    timeout.send(game)
    yield Refusal("DisputeClosed", (Status.DISMISSED,), game, timeout)
    play.pass_window()
    Call("finalize", (play.id,)).send(game)
    yield Refusal("WrongPhase", (Phase.FINAL, Phase.CLAIMED), game, timeout)


@refuses("NotYourTurn")
def moves_after_the_clock(scene: Scene) -> Iterator[Refusal]:
    """Once a clock has run out, the only call that the dispute accepts is `timeout`."""
    play, trainer, auditor, call = disputed(scene, "postSegment")
    play.advance(SETUP.spec.trainer_budget + 1)
    yield Refusal("NotYourTurn", (Turn.TRAINER_EXPIRED,), trainer.game, call)
    play, trainer, auditor, call = disputed(scene, "select")
    play.advance(SETUP.spec.auditor_budget + 1)
    yield Refusal("NotYourTurn", (Turn.AUDITOR_EXPIRED,), auditor.game, call)


# ---- money ----


class Other(Auditor):
    """It plays like an honest auditor, and has committed to a root that is not its own."""

    def __init__(self, *args: Any, tree: Tree) -> None:
        super().__init__(*args)
        self.tree = tree

    def commitment(self, root: bytes) -> bytes:
        return super().commitment(self.tree.root)

    def knowledge(self, claimed: Tree, leaf: int) -> tuple[Any, ...]:
        """struct Knowledge for a checkpoint."""
        own = self.tree
        return (
            self.salt(own.root), own.root, own.node(0, leaf), own.path(0, leaf), claimed.node(0, leaf), claimed.path(0, leaf),
        )  # fmt: skip


@refuses("WrongPhase", "TooLate", "TooEarly", "AlreadyPaid", "DisputeClosed", "BadProof", "NotEligible", "PathLength")
def after_a_conviction(scene: Scene) -> Iterator[Refusal]:
    """Rewarded is who knew: not who was dismissed, never moved, committed to the claim itself, or differs further left."""
    play = scene.claimed(SETUP, LIE)
    trainer, claimed = play.trainer, play.trainer.run_tree()
    dismissed, idle, winner = play.auditor(), play.auditor(), play.auditor()
    copy = play.auditor(cls=Other, tree=claimed)
    left = play.auditor(cls=Other, tree=play.new_trainer(word_lie(3, 0, 3)[0]).run_tree())
    due(dismissed).send(dismissed.game)
    trainer.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    trainer.step()
    due(idle).send(idle.game)
    play.run_until("postSegment", winner, copy, left, trainer)
    game = scene.game()
    for call in (Call("refund", (play.id, 0)), Call("payReward", (play.id,))):
        yield Refusal("WrongPhase", (Phase.CLAIMED, Phase.CONVICTED), game, call)
    play.run(trainer, winner)
    assert play.phase is Phase.CONVICTED
    show = Call("proveKnowledge", (play.id, 2, View(winner, play.job).knowledge(play.dispute(2))))
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CONVICTED), game, show.but(0, NODE))
    for number, status in ((0, Status.DISMISSED), (9, Status.NONE)):
        yield Refusal("DisputeClosed", (status,), game, show.but(1, number))
    for field in (0, 1, 2, 4):  # salt, own root, own node, their node
        yield Refusal("BadProof", None, game, struct(show, field, NODE))
    for field in (3, 5):
        yield Refusal("PathLength", (1, 2), game, struct(show, field, show.args[2][field][:1]))
    yield Refusal("BadProof", None, game, show.but(1, 1))  # somebody else's commitment
    yield Refusal(
        "NotEligible", (), game, Call("proveKnowledge", (play.id, 1, View(idle, play.job).knowledge(play.dispute(1))))
    )
    for number, other in ((3, copy), (4, left)):
        yield Refusal("NotEligible", (), game, Call("proveKnowledge", (play.id, number, other.knowledge(claimed, 1))))
    for number, status in ((0, Status.DISMISSED), (2, Status.WON), (9, Status.NONE)):
        yield Refusal("DisputeClosed", (status,), game, Call("refund", (play.id, number)))
    Call("refund", (play.id, 1)).send(game)
    yield Refusal("DisputeClosed", (Status.VOID,), game, Call("refund", (play.id, 1)))
    pay, until = Call("payReward", (play.id,)), play.job.since + SETUP.spec.reward_window
    yield Refusal("TooEarly", (scene.chain.now() + 1, until + 1), game, pay)
    play.advance(until - scene.chain.now())
    yield Refusal("TooLate", (until + 1, until), game, show)
    pay.send(game)
    yield Refusal("AlreadyPaid", (), game, pay)
    assert play.paid(winner) == SETUP.spec.auditor_bond + SETUP.spec.trainer_bond // 2


@refuses("NotEligible")
def knowledge_of_another_place(scene: Scene) -> Iterator[Refusal]:
    """A dispute about another segment, or another step's trace, has no share in the conviction."""
    play = scene.claimed(SETUP, Lies(shown={(2, 0, 7): 1, (8, 0, 7): 1}))
    forcers = [play.auditor(None, Forcer, step=step) for step in (2, 8)]
    play.run(play.trainer, *forcers)
    first, second = play.auditor(), play.auditor()
    for auditor, step in ((first, 2), (second, 8)):
        root = Tree(Tree_.TRACE, auditor.machine.trace(step)).root
        claimed = play.client.trace_root(play.id, step)
        arguments = (play.id, int(Level.TRACE), step, claimed, auditor.commitment(root))
        call = Call("challenge", arguments, SETUP.spec.auditor_bond)
        call.send(auditor.game)
        play.run_until("selectOperator", play.trainer, auditor).send(auditor.game)
    while play.phase is Phase.CLAIMED:
        play.trainer.step()
        call = due(first)
        if call:
            call.send(first.game)
    assert play.client.verdict(play.id).step == 2
    own, claimed = Tree(Tree_.TRACE, second.machine.trace(8)), play.trainer.trace_tree(8)
    k = (second.salt(own.root), own.root, own.node(0, 0), own.path(0, 0), claimed.node(0, 0), claimed.path(0, 0))
    yield Refusal("NotEligible", (), scene.game(), Call("proveKnowledge", (play.id, 3, k)))


@refuses("NothingToWithdraw", "FailedCall")
def withdraw(scene: Scene) -> Iterator[Refusal]:
    yield Refusal("NothingToWithdraw", (), scene.game(), Call("withdraw", ()))
    payee = payee_game(scene, "REFUSE")
    payee.send("createJob", astuple(SETUP.spec), 0, SETUP.program.header, value=SETUP.spec.reward)
    scene.chain.advance(SETUP.spec.accept_window + 1)
    scene.game().send("expire", payee.job_id(SETUP.spec, payee.wallet.address, 0))
    yield Refusal("FailedCall", (), payee, Call("withdraw", ()))
