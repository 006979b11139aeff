"""Illegal challenges, openings, selections, proofs and timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from frauds import SETUP, SUM, Curious, Forcer, state_lie, word_lie
from refusals import (
    NO_BASIS,
    NODE,
    RECORD,
    Refusal,
    disputed,
    diverged_play,
    elsewhere,
    here,
    place_beside,
    refuses,
    struct,
)
from scene import Call, Scene, Setup, due
from toy import Lies, Special

from vgame.chain.records import Level, Phase, Status, Turn
from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import padding


@refuses(
    "WrongPhase", "TooLate", "WrongValue", "WrongLevel", "NotPosted", "NothingToContest", "BadProof", "WrongDivergence"
)
def challenge(scene: Scene) -> Iterator[Refusal]:
    play, game, bond = scene.post(SETUP), scene.game(), SETUP.spec.auditor_bond
    call = Call("challenge", (play.id, int(Level.RUN), 0, NODE, NO_BASIS), bond)
    yield Refusal("WrongPhase", (Phase.CREATED, Phase.CLAIMED), game, call)
    trainer = play.new_trainer()
    trainer.accept()
    trainer.claim()
    for value in (0, bond - 1, bond + 1):
        yield Refusal("WrongValue", (value, bond), game, replace(call, value=value))
    for level in (Level.NONE, Level.STATE, Level.TENSOR, Level.ELEMENT, Level.PARTIAL):
        yield Refusal("WrongLevel", (level, 0), game, call.but(1, int(level)))
    for level in (Level.SEGMENT, Level.TRACE):
        for where in (0, 1, 2**200):
            yield Refusal("NotPosted", (), game, call.but(1, int(level)).but(2, where))
    yield Refusal("BadProof", (NODE, play.job.run_root), game, call)  # another claim than the current one
    right = call.but(3, play.job.run_root)
    yield Refusal("WrongDivergence", (0, 5), game, struct(right, 0, 5))  # another claim with the same checkpoints
    until = play.job.since + SETUP.spec.challenge_window
    play.advance(until - scene.chain.now())
    yield Refusal("TooLate", (until + 1, until), game, call)
    first, claim = diverged_play(scene, 1)
    claim.send(first.trainer.game)
    yield Refusal("NothingToContest", (), game, call.but(0, first.id))  # no checkpoint before step 1
    yield Refusal("NothingToContest", (), game, call.but(0, first.id).but(1, int(Level.SEGMENT)).but(2, 1))  # only S_0
    trace = call.but(0, first.id).but(1, int(Level.TRACE)).but(2, 1).but(3, first.client.trace_root(first.id, 1))
    for step in (0, 2):
        yield Refusal("WrongDivergence", (1, step), game, struct(trace, 0, step))


@refuses("BadProof", "AlreadyDisputed")
def challenge_of_a_piece(scene: Scene) -> Iterator[Refusal]:
    """Below a segment or trace the words depend on the posts above, so a challenge names them too. An account
    disputes a claim once."""
    play = scene.claimed(SETUP, Lies(shown={(2, 0, 7): 1}))
    play.run(play.trainer, play.auditor(None, Forcer, step=2))
    curious = Curious(scene.game(), play.id, play.machine(None))
    call, segment = due(curious), play.client.segment_root(play.id, 1)
    assert call.args[1:3] == (Level.TRACE, 2) and call.args[4] == (0, segment, bytes(32))
    for other in (NODE, bytes(32)):
        yield Refusal("BadProof", (other, segment), curious.game, struct(call, 1, other))
    call.send(curious.game)
    yield Refusal("AlreadyDisputed", (), curious.game, call)
    run = Call("challenge", (play.id, int(Level.RUN), 0, play.job.run_root, NO_BASIS), SETUP.spec.stake)
    yield Refusal("AlreadyDisputed", (), curious.game, run)


@refuses("WrongPhase", "WrongLevel", "ChildCount", "LeafSize")
def openings(scene: Scene) -> Iterator[Refusal]:
    play, game = scene.claimed(SETUP), scene.game()
    reveal = Call("reveal", (play.id, int(Level.RUN), 2, [NODE] * 4))
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CLAIMED), game, reveal.but(0, NODE))
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CLAIMED), game, Call("openLeaf", (NODE, bytes(512))))
    for level in (Level.NONE, Level.ELEMENT, Level.PARTIAL):
        yield Refusal("WrongLevel", (level, 2), game, reveal.but(1, int(level)))
    for height in (0, 65, 2**255):
        yield Refusal("WrongLevel", (Level.RUN, height), game, reveal.but(2, height))
    for count in (0, 1, 2, 3, 5, 8):
        yield Refusal("ChildCount", (count, 4), game, reveal.but(3, [NODE] * count))
    yield Refusal("ChildCount", (4, 2), game, reveal.but(2, 1))
    for size in (0, 511, 513):
        yield Refusal("LeafSize", (size,), game, Call("openLeaf", (play.id, bytes(size))))


@refuses(
    "NotTrainer", "WrongLevel", "NotYourTurn", "BadProof", "PathLength", "ChildCount", "DisputeClosed", "WrongPhase",
    "Elsewhere",
)  # fmt: skip
def post_segment(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "postSegment")
    game = trainer.game
    yield Refusal("NotTrainer", (auditor.address.lower(),), auditor.game, call)
    yield Refusal("DisputeClosed", (Status.NONE,), game, call.but(1, 1))
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CLAIMED), game, call.but(0, NODE))
    for field in (0, 1):  # the state of the checkpoint, that before it
        yield Refusal("BadProof", None, game, struct(call, field, NODE))
    other, post = play.new_trainer().segment_post(play.job, 2), call.args[3]  # whole, but it ends in another state
    yield Refusal("BadProof", None, game, call.but(3, (other[0], *post[1:3], *other[3:])))
    honest, forged = list(call.args[3][3]), SETUP.honest.segment(2)
    for place in (0, 3):  # I8: both ends
        children = [*honest[:place], NODE, *honest[place + 1 :]]
        yield Refusal("BadProof", None, game, struct(call, 3, children))
    yield Refusal("BadProof", None, game, struct(call, 3, forged[::-1]))
    yield Refusal("ChildCount", (2, 4), game, struct(call, 3, honest[:2]))
    for field in (2, 4, 5):
        yield Refusal("PathLength", None, game, struct(call, field, [*call.args[3][field], NODE]))
    yield elsewhere(play, game, call.but(2, place_beside(play, 1)))  # of the checkpoint after
    above, *_ = disputed(scene, "select")  # at the root of the run
    yield Refusal("WrongLevel", (Level.RUN, 2), game, here(above, call.but(0, above.id)))
    call.send(game)
    yield Refusal("NotYourTurn", (Turn.AUDITOR,), game, call)
    play.run_until("postTrace", trainer, auditor)
    yield elsewhere(play, game, call)
    yield Refusal("WrongLevel", (Level.SEGMENT, 0), game, here(play, call))


@refuses("NotTrainer", "NotYourTurn", "WrongLevel", "ChildCount", "Elsewhere")
def post_trace(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "postTrace")
    yield Refusal("NotTrainer", (auditor.address.lower(),), auditor.game, call)
    yield Refusal("ChildCount", (2, 4), trainer.game, call.but(3, call.args[3][:2]))
    yield elsewhere(play, trainer.game, call.but(2, place_beside(play, -1)))  # of the step before
    call.send(trainer.game)
    yield Refusal("NotYourTurn", (Turn.AUDITOR,), trainer.game, call)
    play.run_until("select", trainer, auditor).send(auditor.game)
    yield elsewhere(play, trainer.game, call)
    yield Refusal("WrongLevel", (Level.TRACE, 1), trainer.game, here(play, call))


@refuses("NotAuditor", "NotYourTurn", "WrongLevel", "DisputeClosed", "Elsewhere", "BadProof")
def select_state(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, post = disputed(scene, "postTrace", state_lie(6, SUM, 0)[0])
    call = Call("selectState", (play.id, 0, post.args[2], trainer.trace_tree(6).root))
    yield Refusal("NotYourTurn", (Turn.TRAINER,), auditor.game, call)
    post.send(trainer.game)
    yield elsewhere(play, auditor.game, call.but(2, place_beside(play, -1)))
    for root in (NODE, bytes(32)):  # another trace of the same step
        yield Refusal("BadProof", (root, trainer.trace_tree(6).root), auditor.game, call.but(3, root))
    yield Refusal("NotAuditor", (trainer.address.lower(),), trainer.game, call)
    yield Refusal("DisputeClosed", (Status.NONE,), auditor.game, call.but(1, 1))
    call.send(auditor.game)
    yield elsewhere(play, auditor.game, call)
    yield Refusal("NotYourTurn", (Turn.TRAINER,), auditor.game, here(play, call))
    play.run_until("reveal", trainer, auditor).send(trainer.game)
    yield Refusal("WrongLevel", (Level.STATE, 3), auditor.game, here(play, call))


@refuses("WrongSource", "BadProof", "PathLength", "WrongPhase", "WrongLevel", "RecordMismatch", "Elsewhere")
def ties(scene: Scene) -> Iterator[Refusal]:
    play, trainer, _, call = disputed(scene, "tie", state_lie(6, SUM, 0)[0])
    game, machine = trainer.game, trainer.machine
    record = machine.source_record(SUM).as_tuple()
    at = play.dispute().position
    tie = Call("tie", (play.id, 0, at, record, machine.trace(6)[SUM], trainer.trace_tree(6).path(0, SUM)))
    prior, prior_path = trainer.prior(6)
    unchanged = Call("tieUnchanged", (play.id, 0, at, record, prior, prior_path, NODE, [NODE] * 3))
    assert tie == call
    yield Refusal("WrongSource", (), game, unchanged)
    yield Refusal("BadProof", None, game, tie.but(4, NODE))
    yield Refusal("BadProof", None, game, tie.but(4, machine.trace(6)[0]).but(5, trainer.trace_tree(6).path(0, 0)))
    yield Refusal("PathLength", (2, 3), game, tie.but(5, tie.args[5][:2]))
    yield Refusal("RecordMismatch", None, game, tie.but(3, machine.source_record(0).as_tuple()))
    for call in (tie, unchanged):
        yield elsewhere(play, game, call.but(2, place_beside(play, 1)))  # of the tensor after
    tie.send(game)
    for call in (tie, unchanged):
        yield Refusal("WrongPhase", (Phase.CONVICTED, Phase.CLAIMED), game, call)
    play, trainer, *_ = disputed(scene, "openLeaf")
    for call in (tie, unchanged):
        yield Refusal("WrongLevel", (Level.TENSOR, 0), trainer.game, here(play, call.but(0, play.id)))
    _, trainer, _, call = disputed(scene, "tieUnchanged", state_lie(6, 5, 0)[0])
    yield Refusal("BadProof", None, trainer.game, call.but(4, NODE))
    yield Refusal("BadProof", None, trainer.game, call.but(6, NODE))
    yield Refusal("PathLength", None, trainer.game, call.but(5, []))
    yield Refusal("WrongSource", (), trainer.game, Call("tie", (*call.args[:4], NODE, [])))


@refuses(
    "NotAuditor",
    "NotYourTurn",
    "BadProof",
    "PathLength",
    "IndexOutOfRange",
    "NothingToContest",
    "WrongLevel",
    "DisputeClosed",
    "Elsewhere",
)
def selects(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "select")
    game = auditor.game
    yield Refusal("NotAuditor", (trainer.address.lower(),), trainer.game, call)
    yield Refusal("DisputeClosed", (Status.NONE,), game, call.but(1, 1))
    yield elsewhere(play, game, call.but(2, place_beside(play, 1)))
    yield Refusal("BadProof", None, game, call.but(3, NODE))
    yield Refusal("BadProof", None, game, call.but(4, call.args[4] ^ 1))
    yield Refusal("BadProof", None, game, call.but(5, call.args[5][::-1]))
    yield Refusal("PathLength", (1, 2), game, call.but(5, call.args[5][:1]))
    yield Refusal("PathLength", (3, 2), game, call.but(5, [*call.args[5], NODE]))
    for index in (4, 2**48, 2**256 - 1):
        yield Refusal("IndexOutOfRange", (index, 2), game, call.but(4, index))
    children = trainer.run_tree().descendants(2, 0, 2)
    path = [children[2], trainer.run_tree().node(1, 0)]
    at = call.args[:3]
    yield Refusal("NothingToContest", (), game, Call("select", (*at, children[3], 3, path)))  # padding
    yield Refusal("WrongLevel", (Level.RUN, 0), game, Call("selectOperator", (*call.args, RECORD)))
    yield Refusal("WrongLevel", (Level.RUN, 2), game, Call("selectElement", (*at, 0, bytes(512))))
    yield Refusal("WrongLevel", (Level.RUN, 2), game, Call("selectPartial", call.args))
    call.send(game)
    yield elsewhere(play, game, call)
    yield Refusal("NotYourTurn", (Turn.TRAINER,), game, here(play, call))
    segment = play.run_until("select", trainer, auditor)
    tree = trainer.segment_tree(2)
    # S_0
    own = (tree.node(0, 0), 0, tree.path(0, 0))
    yield Refusal("NothingToContest", (), game, Call("select", (*segment.args[:3], *own)))
    segment.send(game)


@refuses("WrongLevel", "NothingToContest", "BadProof", "RecordMismatch", "Elsewhere")
def select_operator(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "selectOperator")
    game = auditor.game
    yield Refusal("WrongLevel", (Level.TRACE, 0), game, Call("select", call.args[:-1]))
    yield elsewhere(play, game, call.but(2, place_beside(play, 1)))
    yield Refusal("BadProof", None, game, call.but(3, NODE))
    yield Refusal("RecordMismatch", None, game, call.but(6, auditor.machine.operator_record(1).as_tuple()))
    _, trainer, auditor, call = disputed(scene, "selectOperator", word_lie(6, 4, 0)[0])
    pad = padding(Tree_.TRACE, 0)
    other = call.but(3, pad).but(4, 1).but(5, [trainer.machine.trace(6)[4]])
    yield Refusal("NothingToContest", (), auditor.game, other)


@refuses("WrongLevel", "BadProof", "ElementOutOfLeaf", "NothingToContest", "Elsewhere")
def select_element(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "selectElement", word_lie(6, 0, 599)[0])
    game, words = auditor.game, call.args[4]
    yield elsewhere(play, game, call.but(2, place_beside(play, -1)))  # of the leaf before
    yield Refusal("BadProof", None, game, call.but(4, bytes(512)))
    yield Refusal("BadProof", None, game, call.but(4, words[:-1]))
    for element in (0, 511, 640, 2**255):
        yield Refusal("ElementOutOfLeaf", (element, 4), game, call.but(3, element))
    for element in (600, 639):
        yield Refusal("NothingToContest", (), game, call.but(3, element))  # padding that is zero
    tree = trainer.tensor_tree(6, 0)
    path = Call("select", (*call.args[:3], tree.node(0, 4), 0, []))
    yield Refusal("WrongLevel", (Level.TENSOR, 0), game, path)
    call.send(game)
    play.run_until("prove", trainer, auditor)


@refuses(
    "NotDecidedInBlocks", "DecidedInBlocks", "ChildCount", "NotTheClaimedSum", "NotTrainer", "OpeningSize",
    "WrongLevel", "Elsewhere",
)  # fmt: skip
def partial_sums(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "postPartials")
    partials, word = call.args[3], play.dispute().word
    yield elsewhere(play, trainer.game, call.but(2, place_beside(play, -1)))  # of the element before
    yield Refusal("NotTrainer", (auditor.address.lower(),), auditor.game, call)
    for count in (0, 1, 2, 4):
        yield Refusal("ChildCount", (count, 3), trainer.game, call.but(3, [*partials, NODE][:count]))
    right = auditor.machine.partials(6, SUM, 4)
    yield Refusal("NotTheClaimedSum", (word ^ 1, word), trainer.game, call.but(3, right))
    yield Refusal("OpeningSize", (31, 32), trainer.game, call.but(3, [partials[0][:31], *partials[1:]]))
    prove = Call("prove", (*call.args[:3], bytes(32), [], b""))
    yield Refusal("DecidedInBlocks", (3,), trainer.game, prove)
    play, trainer, *_ = disputed(scene, "prove", word_lie(6, 0, 599)[0])
    yield Refusal("NotDecidedInBlocks", (), trainer.game, here(play, call.but(0, play.id)))
    play, trainer, _, _ = disputed(scene, "openLeaf")
    yield Refusal("WrongLevel", (Level.TENSOR, 0), trainer.game, here(play, call.but(0, play.id)))


@refuses("NothingToContest", "BadProof", "PathLength", "NotAuditor", "NotYourTurn", "Elsewhere")
def select_partial(scene: Scene) -> Iterator[Refusal]:
    play, trainer, auditor, call = disputed(scene, "selectPartial")
    game = auditor.game
    yield Refusal("NotAuditor", (trainer.address.lower(),), trainer.game, call)
    yield elsewhere(play, game, call.but(2, place_beside(play, 1)))
    for index in (3, 4, 2**255):
        yield Refusal("NothingToContest", (), game, call.but(4, index))
    yield Refusal("BadProof", None, game, call.but(4, 0))
    yield Refusal("BadProof", None, game, call.but(3, NODE))
    yield Refusal("PathLength", (1, 2), game, call.but(5, call.args[5][:1]))
    call.send(game)
    yield elsewhere(play, game, call)
    yield Refusal("NotYourTurn", (Turn.TRAINER,), game, here(play, call))


@refuses(
    "WrongLevel", "NotYourTurn", "BadProof", "WrongRoot", "OpeningSize", "HeaderMismatch", "PathLength", "Elsewhere"
)
def prove(scene: Scene) -> Iterator[Refusal]:
    """I10: a wrong witness decides nothing."""
    play, trainer, _, call = disputed(scene, "prove", word_lie(6, 1, 7)[0])
    game, honest = scene.game(), play.new_trainer().machine
    yield elsewhere(play, game, call.but(2, place_beside(play, 1)))
    yield Refusal("BadProof", None, game, call.but(3, NODE))
    yield Refusal("PathLength", (1, 2), game, call.but(4, call.args[4][:1]))
    yield Refusal("WrongRoot", None, game, call.but(3, bytes(32)))  # the state before the step is not opened
    tree = trainer.trace_tree(6)
    other = honest.prove(6, 2, 7, None, lambda operator: tree.path(0, operator))
    yield Refusal("PathLength", None, game, call.but(5, honest.prove(6, 4, 7, None, lambda o: []).proof))
    yield Refusal("WrongRoot", None, game, call.but(5, other.proof))  # a witness for another operator
    wrong = honest.prove(5, 1, 7, None, lambda operator: []).proof
    yield Refusal("WrongRoot", None, game, call.but(5, wrong))  # of another step
    plain = honest.prove(6, 0, 7, None, lambda operator: []).proof
    yield Refusal("OpeningSize", (0, 512), game, call.but(5, plain))
    foreign = Setup(replace(SETUP.program, specials=(Special(6, 1, 7, 1),)), steps=8).honest
    yield Refusal("HeaderMismatch", None, game, call.but(5, foreign.prove(6, 1, 7, None, lambda operator: []).proof))
    play, *_ = disputed(scene, "selectElement")
    yield Refusal("NotYourTurn", (Turn.AUDITOR,), game, here(play, call.but(0, play.id)))
    play, *_ = disputed(scene, "openLeaf")
    prove = here(play, Call("prove", (play.id, 0, 0, bytes(32), [], b"")))
    yield Refusal("WrongLevel", (Level.TENSOR, 0), game, prove)


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
    yield Refusal("DisputeClosed", (Status.LAPSED,), game, timeout)
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
