"""A Hypothesis state machine: any call, legal or illegal, by any account at any time; the ghost checks after each."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import cache
from typing import Any

import pytest
from eth_abi.exceptions import EncodingError
from frauds import SETUP, SUM, Arbitrary, Mistaken, state_lie, word_lie
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scene import Call, Play, Scene, due, fast_scene, watch
from toy import INFINITY, Lies, ToyMachine

from vgame.chain.abi import errors
from vgame.chain.records import Level, Phase, Status, Turn
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.errors import Abstain, ContractError, VgameError

CLAIMS = {
    "true": None,
    "word": word_lie(6, 1, 7)[0],
    "sum": word_lie(8, SUM, 2, 1)[0],
    "state": state_lie(3, 5, 0)[0],
    "unchecked": Lies(shown={(2, 0, 7): 1}),
    "diverged": Lies(words={(5, 1, 130): INFINITY}),
}
BELIEFS = {"honest": None, "word": word_lie(6, 0, 599)[0], "sum": word_lie(4, 1, 3)[0], "state": state_lie(8, 1, 0)[0]}
KNOWN = {name for name, _ in errors().values()} | {
    "RecordMismatch",
    "HeaderMismatch",
    "WrongRoot",
    "OpeningSize",
    "NotABlock",
}
EXPIRED = (Turn.TRAINER_EXPIRED, Turn.AUDITOR_EXPIRED)
ENDED = (Phase.FINAL, Phase.CONVICTED, Phase.EXPIRED)


@cache
def machine(lies_of: str, claim: bool) -> ToyMachine:
    """Computed once: machines do not change."""
    return SETUP.machine((CLAIMS if claim else BELIEFS)[lies_of])


@cache
def shared_scene() -> Scene:
    return fast_scene()


#: Calls of one key only. If the key sends a wrong call that its agent never decided and that the contract cannot check,
#: its owner is no longer honest, and the agent does not know the game's state.
COMMITMENTS = ("postSegment", "postTrace", "postPartials")
MOVES = ("select", "selectState", "selectOperator", "selectElement", "selectPartial")
SPOILT = "spoilt"


class AnyCalls(RuleBasedStateMachine):
    """Up to two jobs, four auditors each."""

    made = 0  # calls of all examples, accepted or refused

    def __init__(self) -> None:
        super().__init__()
        self.scene = shared_scene()
        self.node = self.scene.chain.node
        self.point, self.plain = self.node.snapshot(), self.node.methods["eth_sendTransaction"]
        self.scene.ghost = self.ghost = watch(self.scene)
        self.stranger = self.scene.game()
        self.plays: list[Play] = []
        self.claims: list[str] = []
        self.auditors: list[list[Auditor]] = []
        self.spoilt: set[str] = set()  # auditors, by address
        self.judged = 0

    # ---- the model ----

    @property
    def time(self) -> int:
        """The time of the next block."""
        return self.node.now + 1

    def expected(self, name: str, play: Play, number: int) -> str | None:
        """The error of another account's call."""
        job, spec = play.job, play.setup.spec
        d = play.dispute(number)
        if name == "expire":
            window = {Phase.CREATED: spec.accept_window, Phase.ACCEPTED: spec.claim_window}.get(job.phase)
            return "WrongPhase" if window is None else "TooEarly" if self.time <= job.since + window else None
        if name == "refund":
            if job.phase is not Phase.CONVICTED:
                return "WrongPhase"
            return None if d.status is Status.OPEN else "DisputeClosed"
        if job.phase is not Phase.CLAIMED:
            return "WrongPhase"
        if name == "finalize":
            early = self.time <= job.since + spec.challenge_window
            return "TooEarly" if early else "DisputesOpen" if job.open else None
        if name == "timeoutMany":
            late = [self.expected("timeout", play, n) is None for n in range(job.disputes)]
            return None if any(late) else "NoneExpired"
        if d.status is not Status.OPEN:
            return "DisputeClosed"
        turn = play.client.turn(play.id, number)[0]
        return None if turn in EXPIRED else "NotExpired"

    def meets(self, call: Call, game: Any, expected: str | None) -> None:
        """The call is accepted, or refused by exactly this error."""
        event(f"{call.name}: {expected or 'accepted'}")
        AnyCalls.made += 1
        if expected is None:
            call.send(game)
            return
        with pytest.raises(ContractError) as caught:
            call.send(game)
        assert caught.value.name == expected

    # ---- jobs ----

    @initialize(
        claim=st.sampled_from(list(CLAIMS)), belief=st.sampled_from([*BELIEFS, "arbitrary"]), rounds=st.integers(0, 12)
    )
    def first_job(self, claim: str, belief: str, rounds: int) -> None:
        """Somewhere in the middle of a game."""
        self._order(claim)
        for _ in range(2):
            self._trainer_moves(0)
        for joining in ("honest", belief):
            self._joins(0, joining, 1, 0)
        for choice in range(rounds):
            self.everybody_moves(0, choice)

    @precondition(lambda self: len(self.plays) < 2)
    @rule(claim=st.sampled_from(list(CLAIMS)))
    def order(self, claim: str) -> None:
        self._order(claim)

    def _order(self, claim: str) -> None:
        play = self.scene.post(SETUP)
        play.trainer = play.new_trainer(machine(claim, True))
        self.plays.append(play)
        self.claims.append(claim)
        self.auditors.append([])

    # ---- agents ----

    @rule(i=st.integers(0, 1))
    def trainer_moves(self, i: int) -> None:
        self._trainer_moves(i % len(self.plays))

    def _trainer_moves(self, i: int) -> None:
        play = self.plays[i]
        job, trainer, spec = play.job, play.trainer, play.setup.spec
        if job.phase is Phase.CREATED:
            late = self.time > job.since + spec.accept_window
            call = Call("acceptJob", (play.id,), spec.trainer_bond)
            return self.meets(call, trainer.game, "TooLate" if late else None)
        if self.claims[i] == SPOILT:
            call = self._due(trainer)
            return call and self._try(call, trainer)
        call = due(trainer)
        if call and call.name in ("postClaim", "postDiverged"):
            return self.meets(call, trainer.game, "TooLate" if self.time > job.since + spec.claim_window else None)
        if call:
            self.meets(call, trainer.game, None)
        return None

    @rule(
        i=st.integers(0, 1),
        belief=st.sampled_from([*BELIEFS, "arbitrary"]),
        level=st.sampled_from((1, 1, 1, 2, 4)),
        where=st.integers(0, 8),
    )
    def auditor_joins(self, i: int, belief: str, level: int, where: int) -> None:
        """Agents enter where they differ; the arbitrary one anywhere."""
        self._joins(i % len(self.plays), belief, level, where)

    def _joins(self, i: int, belief: str, level: int, where: int) -> None:
        play = self.plays[i]
        if len(self.auditors[i]) == 4:
            return
        if belief == "arbitrary":
            auditor: Auditor = play.auditor(machine("honest", False), Arbitrary)
            root = self._claimed_root(play, Level(level), where)
            call = Call(
                "challenge", (play.id, level, where, root, self._basis(play, level, where)), play.setup.spec.stake
            )
            error = self._challenge_error(play, Level(level), where)
        else:
            auditor = play.auditor(machine(belief, False), Auditor if belief == "honest" else Mistaken)
            found = due(auditor)
            if found is None or found.name != "challenge":
                return
            call, error = found, None
        self.meets(call, auditor.game, error)
        if error is None:
            self.auditors[i].append(auditor)

    def _basis(self, play: Play, level: int, where: int) -> tuple[int, bytes, bytes]:
        interval = play.setup.interval
        segment = play.client.segment_root(play.id, (where - 1) // interval + 1) if level == Level.TRACE else None
        return play.job.diverged_at, segment or bytes(32), bytes(32)

    def _claimed_root(self, play: Play, level: Level, where: int) -> bytes:
        match level:
            case Level.SEGMENT:
                return play.client.segment_root(play.id, where) or bytes(32)
            case Level.TRACE:
                return play.client.trace_root(play.id, where) or bytes(32)
        return play.job.run_root

    def _challenge_error(self, play: Play, level: Level, where: int) -> str | None:
        job = play.job
        if job.phase is not Phase.CLAIMED:
            return "WrongPhase"
        if self.time > job.since + play.setup.spec.challenge_window:
            return "TooLate"
        if level is Level.RUN:
            return None if job.checkpoints else "NothingToContest"
        read = play.client.segment_root if level is Level.SEGMENT else play.client.trace_root
        return None if read(play.id, where) else "NotPosted"

    @rule(i=st.integers(0, 1), j=st.integers(0, 3), choice=st.integers(0, 7))
    def auditor_moves(self, i: int, j: int, choice: int) -> None:
        i %= len(self.plays)
        if self.auditors[i]:
            self._auditor_moves(i, j % len(self.auditors[i]), choice)

    @rule(i=st.integers(0, 1), choice=st.integers(0, 7))
    def everybody_moves(self, i: int, choice: int) -> None:
        """A regular round of the game."""
        i %= len(self.plays)
        self._trainer_moves(i)
        for j in range(len(self.auditors[i])):
            self._auditor_moves(i, j, choice)

    def _auditor_moves(self, i: int, j: int, choice: int) -> None:
        auditor, play = self.auditors[i][j], self.plays[i]
        if auditor.address in self.spoilt:
            call = self._due(auditor)
            return call and self._try(call, auditor)
        if not isinstance(auditor, Arbitrary):
            ends = {d.status for d in play.disputes() if d.auditor == auditor.address}
            with suppress(Abstain) if ends & {Status.LAPSED, Status.DISMISSED} else nullcontext():  # it stakes no more
                if call := due(auditor):
                    self.meets(call, auditor.game, self._late(call, play))
            return
        for number, d in enumerate(play.disputes()):
            mine = d.auditor == auditor.address and d.status is Status.OPEN and play.phase is Phase.CLAIMED
            if mine and play.client.turn(play.id, number)[0] is Turn.AUDITOR:
                calls = list(auditor.options(number, d))
                self._try(calls[choice % len(calls)], auditor)

    @staticmethod
    def _late(call: Call, play: Play) -> str | None:
        """Make a move late that was decided in the last second of a clock."""
        timed = call.name not in ("challenge", "timeout", "timeoutMany", "withdraw", "refund")
        return "NotYourTurn" if timed and play.client.turn(play.id, call.args[1])[0] in EXPIRED else None

    def _try(self, call: Call, player: Player) -> str:
        AnyCalls.made += 1
        try:
            call.send(player.game)
        except ContractError as error:
            assert error.name in KNOWN, error
            return error.name
        return "accepted"

    # ---- other accounts ----

    @rule(
        i=st.integers(0, 1),
        name=st.sampled_from(("timeout", "timeoutMany", "finalize", "expire", "refund")),
        number=st.integers(0, 4),
    )
    def stranger_settles(self, i: int, name: str, number: int) -> None:
        play = self.plays[i % len(self.plays)]
        args = (play.id, number) if name in ("timeout", "refund") else (play.id,)
        if name == "timeoutMany":  # in any order, with an invalid one
            args = (play.id, [(number + n) % (play.job.disputes + 1) for n in range(play.job.disputes + 1)])
        self.meets(Call(name, args), self.stranger, self.expected(name, play, number))

    @rule(
        i=st.integers(0, 1), who=st.integers(0, 4), sender=st.integers(0, 5), position=st.integers(0, 5),
        damage=st.sampled_from(("as it is", "other job", "zero", "huge", "short", "long", "bit")),
    )  # fmt: skip
    def damaged_call(self, i: int, who: int, sender: int, position: int, damage: str) -> None:
        """An agent's next call, by another account or with an argument changed."""
        i %= len(self.plays)
        play, players = self.plays[i], [self.plays[i].trainer, *self.auditors[i]]
        owner, call = next(((p, c) for p in players[who % len(players) :] if (c := self._due(p))), (None, None))
        if call is None or call.name in ("withdraw", "challenge", "acceptJob", "postClaim", "postDiverged"):
            return
        AnyCalls.made += 1
        call = damaged(call, position % len(call.args), damage)
        games = [p.game for p in players] + [self.stranger]
        game = games[sender % len(games)]
        public = call.name in ("reveal", "openLeaf")
        before = [(d.node, d.status) for d in play.disputes()]
        try:
            call.send(game)
            event(f"damaged {call.name}, {damage}: accepted")
            if call.name in COMMITMENTS and damage != "as it is":
                self.claims[i] = SPOILT
            if call.name in MOVES and (damage != "as it is" or players[sender % len(games)] is not owner):
                self.spoilt.add(players[sender % len(games)].address)
        except ContractError as error:
            # solc's decoder gives no reason
            no_proof_at_all = call.name == "prove" and error.name == "unknown error 0x"
            assert error.name in KNOWN or no_proof_at_all, (error, call, damage)
            assert before == [(d.node, d.status) for d in play.disputes()]
        except EncodingError as error:  # no such call can be encoded
            event(f"not encoded: {type(error).__name__}")
        assert not public or before == [(d.node, d.status) for d in play.disputes()]

    def _due(self, player: Player) -> Call | None:
        try:
            return due(player)
        except VgameError:
            return None

    @rule(seconds=st.sampled_from((1, 10, 30, 59, 100)))
    def time_passes(self, seconds: int) -> None:
        self.scene.chain.advance(seconds)

    @precondition(lambda self: self.ghost.calls > 60)
    @rule(seconds=st.sampled_from((299, 301, 401, 501, 1000, 3001)))
    def ages_pass(self, seconds: int) -> None:
        self.scene.chain.advance(seconds)

    # ---- always ----

    @invariant()
    def the_honest_lose_by_their_clocks_only(self) -> None:
        for play, claim, auditors in zip(self.plays, self.claims, self.auditors, strict=True):
            honest = {
                a.address for a in auditors if type(a) is Auditor and a.machine is machine("honest", False)
            } - self.spoilt
            for verdict, number, cause in play.verdicts:
                if verdict == "Convicted" and claim == "true":
                    assert cause == "timeout"
                if verdict == "Dismissed" and play.dispute(number).auditor in honest:
                    assert cause == "timeout"

    def teardown(self) -> None:
        """F10: every state can be ended, and all money that is not burnt can be withdrawn."""
        try:
            self._settle_all()
        finally:
            vars(self.node).pop("send", None)
            self.node.methods["eth_sendTransaction"] = self.plain
            self.node.revert(self.point)

    def _settle_all(self) -> None:
        self.scene.chain.advance(10_000)
        for play in self.plays:
            for name in ("timeout", "refund"):
                for number in range(play.job.disputes):
                    if self.expected(name, play, number) is None:
                        self.stranger.send(name, play.id, number)
            for name in ("expire", "finalize"):
                if self.expected(name, play, 0) is None:
                    self.stranger.send(name, play.id)
        self.scene.chain.advance(10_000)
        for play, auditors in zip(self.plays, self.auditors, strict=True):
            assert play.phase in ENDED and play.job.open == 0
            for player in (play.trainer, *auditors, Player(play.client, play.id, machine("honest", False))):
                player.withdraw()
        assert self.scene.chain.balance(self.scene.address) == self.stranger.burnt()


def damaged(call: Call, position: int, damage: str) -> Call:
    """The call with one argument changed, as its type allows."""
    value = call.args[position]
    if damage == "other job":
        return call.but(0, b"\x99" * 32)
    if isinstance(value, bytes) and value:
        changed = {"zero": bytes(len(value)), "huge": b"\xff" * len(value), "bit": bytes([value[0] ^ 1]) + value[1:]}
        changed |= {"short": value[:-1], "long": value + b"\0"}
    elif isinstance(value, int):
        changed = {"zero": 0, "huge": 2**200, "short": max(value - 1, 0), "long": value + 1, "bit": value ^ 1}
    elif isinstance(value, list) and value:
        changed = {
            "zero": [b"\0" * 32] * len(value),
            "huge": [*value, *value],
            "short": value[:-1],
            "long": [*value, value[0]],
            "bit": value[::-1],
        }
    else:
        return call
    return call.but(position, changed.get(damage, value))
