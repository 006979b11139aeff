"""Small games whose moves are recorded and replayed at other states: stories, their players, the money due to honest
players.

A story is one order of moves of one set of players. All stories of a base begin with the same order of a job and have
the same accounts, so a transaction that was signed in one of them can arrive in any other, as after a reorganisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from clock_moves import branch
from frauds import Bluffer, Curious, Forcer, Mistaken
from outcomes import prize
from scene import Call, Play, Scene, Setup, due
from toy import INFINITY, Kind, Lies, Operator, Program, Special, State, ToyMachine

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import LOST, Level, Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.dispute.trainer import Trainer
from vgame.errors import ContractError, VgameError

#: Two checkpoints of two steps; a carried tensor of two leaves, a long sum, an unchanged tensor.
SMALL = Setup(
    Program(
        (
            Operator(129),
            Operator(130, Kind.CARRY, finite=True, operand=0),
            Operator(2, Kind.SUM, operand=1, blocks=2),
        ),
        (State(130, 1), State(2, 2), State(3)),
    ),
    steps=4,
    interval=2,
)
#: The same, but step 3 diverges.
DIVERGING = replace(SMALL, program=replace(SMALL.program, specials=(Special(3, 1, 0, INFINITY),)))
SUM = 2

Make = Callable[[Play, Any], Player]
Each = Callable[[str, Player | None, Call | None], None]


def flipped(step: int, operator: int, element: int) -> dict[tuple[int, int, int], int]:
    return {(step, operator, element): int(SMALL.honest.output_words(step, operator)[element]) ^ 1}


def flipped_state(step: int, tensor: int, element: int) -> dict[tuple[int, int, int], int]:
    return {(step, tensor, element): int(SMALL.honest.state_words(step)[tensor][element]) ^ 1}


WORD = Lies(words=flipped(3, 1, 129))
EARLY = Lies(words=flipped(1, 1, 128))
LONG = Lies(words=flipped(2, SUM, 1), block=1)
STATE = Lies(state=flipped_state(4, 0, 7))
UNCHANGED = Lies(state=flipped_state(2, 2, 0))
BETWEEN = Lies(state=flipped_state(1, 0, 7))  # between two checkpoints
SHOWN = Lies(shown={(3, 0, 5): 1})


class Mixed:
    """A claim of one machine, whose segments and traces come from others."""

    def __init__(self, claim: ToyMachine, segments: ToyMachine | None = None, traces: ToyMachine | None = None) -> None:
        self.claim, self.segments, self.traces = claim, segments or claim, traces or claim

    def __getattr__(self, name: str) -> Any:
        return getattr(self.traces if name in ("words", "partials", "prove", "trace") else self.claim, name)

    def segment(self, c: int) -> list[bytes]:
        """Both ends are the claim's."""
        own = self.claim.segment(c)
        return [own[0], *self.segments.segment(c)[1:-1], own[-1]]

    def state(self, step: int) -> list[bytes]:
        return (self.segments if step % self.claim.interval else self.claim).state(step)


def trainer(machine: Any = None, cls: type[Trainer] = Trainer, **options: Any) -> Make:
    return lambda play, game: cls(game, play.id, machine or play.setup.honest, **options)


def auditor(lies: Lies | None = None, cls: type[Auditor] = Mistaken, **options: Any) -> Make:
    return lambda play, game: cls(game, play.id, play.setup.machine(lies), **options)


def cheat(lies: Lies, **options: Any) -> Make:
    return trainer(SMALL.machine(lies), Bluffer, **options)


HONEST: dict[str, Make] = {"auditor": auditor(cls=Curious)}  # enters at every place that the contract allows


@dataclass(frozen=True)
class Story:
    """Players by account, in their order; `turns`: they move in turn, else only the first with a move."""

    name: str
    players: dict[str, Make]
    setup: Setup = SMALL
    turns: bool = True

    @property
    def honest(self) -> str:
        """The player whose calls are recorded; it has to win."""
        return "auditor" if "auditor" in self.players else "trainer"


def orders(name: str, players: dict[str, Make], **options: Any) -> list[Story]:
    """The same players in both orders, in turn and one after the other."""
    both = (players, dict(reversed(players.items())))
    return [
        Story(
            f"{name}, {'in turn' if turns else 'one after the other'}, {' '.join(some)}", some, turns=turns, **options
        )
        for some in both
        for turns in (True, False)
    ]


TRUE = trainer()
ACCUSED = [
    *orders("word and sum", {"trainer": TRUE, "X": auditor(WORD), "Y": auditor(LONG)}),
    *orders("sum and tensor left alone", {"trainer": TRUE, "X": auditor(LONG), "Y": auditor(UNCHANGED)}),
    *orders("state and early word", {"trainer": TRUE, "X": auditor(STATE), "Y": auditor(EARLY)}),
    Story("idle", {"X": auditor(cls=FalseAccuser, idle=True), "Y": auditor(WORD), "trainer": TRUE}),
]
ACCUSED_AT_ITS_END = orders("diverged", {"trainer": TRUE, "X": auditor(EARLY), "Y": auditor(SHOWN)}, setup=DIVERGING)
#: The lying trace, or that of an honest step from which the claimed state does not follow.
TRACES = {
    "its own trace": SMALL.machine(WORD),
    "a right trace": Mixed(SMALL.machine(WORD), traces=SMALL.honest),
}
#: Right checkpoints, and a trace that is right below one of two segments.
SEGMENTS = {
    "a right segment": Mixed(SMALL.honest, traces=SMALL.machine(BETWEEN)),
    "another segment": Mixed(SMALL.honest, SMALL.machine(BETWEEN), SMALL.machine(BETWEEN)),
}
FRAUDS = [
    *(
        story
        for name, machine in TRACES.items()
        for story in orders(name, HONEST | {"trainer": trainer(machine, Bluffer), "X": auditor(LONG)})
    ),
    *(
        Story(name, {"trainer": trainer(machine, Bluffer), "X": auditor(cls=Forcer, step=2)} | HONEST)
        for name, machine in SEGMENTS.items()
    ),
    *orders("long sum", HONEST | {"trainer": cheat(LONG), "X": auditor(WORD)}),
    Story("silent", {"trainer": cheat(WORD, silent={"postTrace"}), "X": auditor(LONG)} | HONEST),
    Story("state", {"trainer": cheat(STATE)} | HONEST),
    Story("tensor left alone", {"trainer": cheat(UNCHANGED)} | HONEST),
    Story("diverged", {"trainer": cheat(Lies(words={(2, 1, 0): INFINITY}))} | HONEST),
    Story("diverged later", {"trainer": cheat(Lies(words={(4, 1, 0): INFINITY}))} | HONEST),
]


class Stop(Exception):
    """A player is about to make the awaited call."""


class Harm(AssertionError):
    """An honest player has less than its due."""


@dataclass
class Stage:
    """A job that was ordered, and the accounts that play it."""

    scene: Scene
    setup: Setup
    play: Play = field(init=False)
    games: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.play = self.scene.post(self.setup)
        self.games = {name: self.scene.game() for name in ("trainer", "auditor", "X", "Y")}

    def players(self, story: Story) -> dict[str, Player]:
        return {name: make(self.play, self.games[name]) for name, make in story.players.items()}

    def run(self, story: Story, each: Each | None = None, rounds: int = 300) -> None:
        """Play a story from the chain's current state to its end; `each` is called before every move, with the player
        that is in turn and its call, and at the end."""
        players = self.players(story)
        for _ in range(rounds):
            moved = (self._moves(name, player, each, story) for name, player in players.items())
            if not any(list(moved) if story.turns else moved):
                if self.play.phase not in (Phase.CREATED, Phase.ACCEPTED, Phase.CLAIMED):
                    return each("", None, None) if each else None
                self.play.wait_for_clocks()
        raise AssertionError(f"still moving: {story.name}")

    def until(self, story: Story, wanted: str) -> Call:
        """Play a story until the honest player is about to make a call of that name: that call."""

        def each(name: str, player: Player | None, call: Call | None) -> None:
            if call and (name, call.name) == (story.honest, wanted):
                raise Stop(call)

        try:
            self.run(story, each)
        except Stop as stop:
            return stop.args[0]
        raise AssertionError(f"{story.honest} never sends {wanted}")

    def _moves(self, name: str, player: Player, each: Each | None, story: Story) -> bool:
        """Make one move, if the player has one that the contract accepts."""
        if (call := self.due(player)) is None:
            return False
        if each:
            each(name, player, call)
        try:
            call.send(player.game)
        except ContractError:  # a cheat's own witness
            if name == story.honest:
                raise
            return False
        player.accused = getattr(player, "accused", False) or call.name == "challenge"  # a Forcer does that once
        return True

    def due(self, player: Player) -> Call | None:
        """An agent that abstains waits."""
        try:
            return due(player)
        except VgameError:
            return None

    def judge(self, story: Story) -> None:
        """Harm, unless the honest player has exactly its due."""
        play, spec = self.play, self.setup.spec
        lost = [d for d in play.disputes() if d.status in LOST]
        paid = play.paid(self.players(story)[story.honest])
        if story.honest == "trainer":
            reward = spec.diverged_pay if play.job.diverged_at else spec.reward
            right = play.phase is Phase.FINAL and len(lost) == play.job.disputes
            owed = reward + spec.trainer_bond + len(lost) * (spec.auditor_bond // 2)
        else:
            own = [d for d in play.disputes() if d.auditor == self.games["auditor"].wallet.address]
            right = play.phase is Phase.CONVICTED and not set(lost) & set(own)
            verdict = play.client.verdict(play.id)
            won = prize(spec, verdict.cause) if verdict.winner == self.games["auditor"].wallet.address else 0
            owed = len(own) * spec.stake + won
        if not right or paid != owed:
            raise Harm(f"{play.phase.name}, {paid} wei instead of {owed}: {play.verdicts}")


@dataclass(frozen=True)
class Signed:
    """A call that an honest player has decided."""

    owner: str
    call: Call

    @property
    def key(self) -> str:
        return f"{self.owner} {self.call}"


def record(stage: Stage, stories: Iterable[Story]) -> dict[str, Signed]:
    """Every call that the honest player decides in any of the stories."""
    found: dict[str, Signed] = {}
    for story in stories:

        def each(name: str, player: Player | None, call: Call | None, story: Story = story) -> None:
            if call and name == story.honest:
                signed = Signed(name, call)
                found.setdefault(signed.key, signed)

        with branch(stage.scene):
            stage.run(story, each)
            stage.judge(story)
    return found


CONTENT = ("reveal", "openLeaf")  # moves stored by content


@dataclass
class Replay:
    """The recorded calls at every state of a story. `altered`: the call as read by a contract with fewer checks."""

    stage: Stage
    story: Story
    signed: dict[str, Signed]
    altered: Callable[[Play, Call], Call] = lambda play, call: call
    singly: bool = False
    states: int = 0
    refused: int = 0
    accepted: dict[str, int] = field(default_factory=dict)
    judged: set[Any] = field(default_factory=set)

    def run(self) -> None:
        with branch(self.stage.scene):
            self.stage.run(self.story, self.at_state)

    def at_state(self, name: str, player: Player | None, call: Call | None) -> None:
        """Each call that is not decided here is refused, or does no harm."""
        self.states += 1
        content = []
        for signed in self.signed.values():
            if signed.key == f"{name} {call}" or not (other := self.taken(signed)):
                continue
            self.accepted[other.call.name] = self.accepted.get(other.call.name, 0) + 1
            if other.call.name in CONTENT and not self.singly:
                content.append(other)
            else:
                self.harmless([other])
        if content:
            self.harmless(content)

    def taken(self, signed: Signed) -> Signed | None:
        """The call, if the contract accepts it here."""
        try:
            altered = replace(signed, call=self.altered(self.stage.play, signed.call))
            request = self.stage.games[signed.owner]._request(altered.call.name, altered.call.args, altered.call.value)
            self.stage.games[signed.owner]._run(request)
        except ContractError:
            self.refused += 1
            return None
        return altered

    def harmless(self, calls: list[Signed]) -> None:
        with branch(self.stage.scene):
            for signed in calls:
                signed.call.send(self.stage.games[signed.owner])
            if (key := self.key()) in self.judged:
                return
            self.judged.add(key)
            self.stage.run(self.story)
            try:
                self.stage.judge(self.story)
            except Harm as harm:
                raise Harm(f"{self.story.name}: after {[s.call for s in calls]} {harm}") from None

    def key(self) -> Any:
        """The state without times and money."""
        play = self.stage.play
        opened = frozenset(repr(e) for e in play.events("Revealed", "LeafOpened", "SegmentPosted", "TracePosted"))
        return play.phase, tuple((d.node, d.position, d.status) for d in play.disputes()), opened


__all__ = [
    "ACCUSED",
    "ACCUSED_AT_ITS_END",
    "DIVERGING",
    "FRAUDS",
    "HONEST",
    "SEGMENTS",
    "SMALL",
    "TRACES",
    "Harm",
    "Level",
    "Replay",
    "Stage",
    "Story",
    "auditor",
    "cheat",
    "flipped",
    "record",
    "trainer",
]
