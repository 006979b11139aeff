"""Illegal challenges, openings, selections, proofs and timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from frauds import SETUP, SUM, state_lie, word_lie
from refusals import NODE, RECORD, Refusal, disputed, diverged_play, refuses, struct
from scene import Call, Scene, Setup
from toy import Special

from vgame.chain.records import Level, Phase, Status, Turn
from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import padding


@refuses("WrongPhase", "TooLate", "WrongValue", "WrongLevel", "NotPosted", "NothingToContest", "BadProof")
def challenge(scene: Scene) -> Iterator[Refusal]:
    play, game, bond = scene.post(SETUP), scene.game(), SETUP.spec.auditor_bond
    call = Call("challenge", (play.id, int(Level.RUN), 0, NODE, NODE), bond)
    yield Refusal("WrongPhase", (Phase.CREATED, Phase.CLAIMED), game, call)
    trainer = play.new_trainer()
    trainer.accept()
    trainer.claim()
    for value in (0, bond - 1, bond + 1):
        yield Refusal("WrongValue", (value, bond), game, replace(call, value=value))
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
    other, post = play.new_trainer().segment_post(play.job, 2), call.args[2]  # whole, but it ends in another state
    yield Refusal("BadProof", None, game, call.but(2, (other[0], *post[1:3], *other[3:])))
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
    prior, prior_path = trainer.prior(6)
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
    # S_0
    yield Refusal("NothingToContest", (), game, Call("select", (play.id, 0, tree.node(0, 0), 0, tree.path(0, 0))))
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


@refuses("NotExpired", "NoneExpired", "DisputeClosed", "WrongPhase")
def timeouts(scene: Scene) -> Iterator[Refusal]:
    play, *_, call = disputed(scene, "reveal")
    game, timeout = scene.game(), Call("timeout", (play.id, 0))
    yield Refusal("NotExpired", (Turn.TRAINER,), game, timeout)
    many = Call("timeoutMany", (play.id, [0, 1, 2**256 - 1]))
    yield Refusal("NoneExpired", (), game, many)
    yield Refusal("NoneExpired", (), game, many.but(1, []))
    call.send(game)
    yield Refusal("NotExpired", (Turn.AUDITOR,), game, timeout)
    yield Refusal("DisputeClosed", (Status.NONE,), game, timeout.but(1, 1))
    play.advance(SETUP.spec.auditor_budget + 1)
    timeout.send(game)
    yield Refusal("DisputeClosed", (Status.DISMISSED,), game, timeout)
    yield Refusal("NoneExpired", (), game, many)
    play.pass_window()
    Call("finalize", (play.id,)).send(game)
    yield Refusal("WrongPhase", (Phase.FINAL, Phase.CLAIMED), game, many)
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
