"""All other accounts: cheats, accusers, idle crowds, copiers. They see the newest block and the mempool, and are late
only on purpose.

In: a world. Out: transactions in its mempool.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from branches import Block, Tx
from endpoint import Eth, SimChain, SimGame
from frauds import HONEST, SETUP, SUM, state_lie, word_lie
from revm_calls import SELECTORS, calldata
from scene import Call, Sending
from seats import table
from toy import NAN, Lies, Stop
from world import Account, World

from vgame.attacks.adversaries import CheatingTrainer, FalseAccuser
from vgame.chain.records import Job, Phase, Standing, Turn
from vgame.commit.merkle import Kind
from vgame.commit.trees import run_tree
from vgame.errors import VgameError

GAS = 6_000_000
OVER = (Turn.TRAINER_EXPIRED, Turn.AUDITOR_EXPIRED)
CROWD = 20  # accounts of strangers that accuse, at most
#: Wrong at each level: words, long sums and their blocks, states, the first state, traces that are shown, an end.
LIES = [
    *(word_lie(step, operator, element)[0] for step, operator, element in [
        (1, 0, 0), (2, 1, 299), (3, 2, 128), (4, 4, 0), (8, 0, 599), (6, 1, 7), (5, 2, 0),
    ]),
    *(word_lie(step, SUM, element, block)[0] for step, element, block in [(6, 4, 1), (2, 0, 0), (7, 2, 2)]),
    *(state_lie(step, tensor, 0)[0] for step, tensor in [(1, 5), (3, 5), (3, 0), (4, 2), (8, 4)]),
    Lies(initial={(0, 3): int(HONEST.state_words(0)[0][3]) ^ 1}),
    Lies(words={(5, 1, 9): NAN}),
    Lies(stop=Stop(4, 1, 2)),
]  # fmt: skip
QUIET = (frozenset(), frozenset({"prove"}), frozenset({"openLeaf", "prove"}), frozenset({"postTrace"}),
         frozenset({"postSegment"}), frozenset({"reveal"}))  # fmt: skip
COPIED = {SELECTORS[name]: name for name in SELECTORS}


class Puppet:
    """A player of vgame for a stranger, which intercepts its moves and sends them at any time."""

    def __init__(self, strangers: Strangers, name: str, player: Any, pace: int) -> None:
        self.strangers, self.name, self.player, self.pace = strangers, name, player, pace
        self.still: Block | None = None  # the block in whose state it had no move

    def due(self) -> Call | None:
        """The call that it would send now."""

        def caught(name: str, *args: Any, value: int = 0) -> None:
            raise Sending(Call(name, args, value))

        self.player.game.send = self.player.game.move = caught
        try:
            self.player.step()
        except Sending as sending:
            return sending.args[0]
        except VgameError:
            pass
        return None

    def waits(self) -> bool:
        """Whether this is an accuser without a move or a dispute to end, so that a look would be useless."""
        player = self.player
        if not getattr(player, "accused", False) or self.strangers.job(player.id).phase is not Phase.CLAIMED:
            return False
        standings = self.strangers.disputes(player.id)
        mine = any(s.turn is Turn.AUDITOR and s.dispute.auditor == player.address for s in standings)
        return player.idle or not (mine or any(s.turn in OVER for s in standings))

    def act(self) -> None:
        world = self.strangers.world
        made = world.tree.head.made
        if self.still is made or self.player.address.lower() in self.strangers.waiting:
            return
        if not world.tape.chance(self.pace) and self.pace < 100:
            return
        call = None if self.waits() else self.due()
        if call is None:
            self.still = made
            return
        world.log(f"{self.name}: {call.name}")
        if call.name == "challenge":
            self.player.accused = True
        self.strangers.send(self.player.game.wallet, call)


class Hand:
    """An account of a stranger's; twin: vgame's wallet."""

    def __init__(self, account: Account) -> None:
        self.account, self.address, self.key = account, account.address, account.key
        self.pauses = SimpleNamespace(waits=lambda *call: False)


class Strangers:
    """`jobs`: jobs in which they accuse and interfere; `lies`: the cheats' jobs; `stolen`: honest players' jobs that a
    stranger accepted."""

    def __init__(self, world: World, hands: int) -> None:
        self.world = world
        self.hands = [Hand(Account(world, 1000 + n)) for n in range(hands)]
        self.free = self.hands[1:]
        self.lies: dict[bytes, int] = {}  # index of the lie by a cheat's job; -1: a right claim
        self.jobs: list[bytes] = []
        self.puppets: list[Puppet] = []
        self.stolen: list[bytes] = []  # jobs of honest trainers that a stranger accepted
        self.waiting: set[str] = set()
        self.accused = 0
        self.states: dict[bytes, tuple[Block, Job]] = {}
        self.standings: dict[bytes, tuple[Block, list[Standing]]] = {}

    def begin(self) -> None:
        self.eth = Eth(self.world, direct=True)
        self.view = SimGame(SimChain(self.world, self.eth))

    def game(self, hand: Hand) -> SimGame:
        return SimGame(SimChain(self.world, self.eth), hand)

    def job(self, job: bytes) -> Job:
        """The job in the state of the newest block."""
        made = self.world.tree.head.made
        if self.states.get(job, (None,))[0] is not made:
            self.states[job] = made, self.view.job(job)
        return self.states[job][1]

    def disputes(self, job: bytes) -> list[Standing]:
        """The job's disputes in the state of the newest block."""
        head = self.world.tree.head
        if self.standings.get(job, (None,))[0] is not head:
            self.standings[job] = head, self.view.disputes(job)
        return self.standings[job][1]

    # ---- sending ----

    def send(self, hand: Hand, call: Call, tip: int = 0) -> None:
        self.put(hand, bytes.fromhex(calldata(call.name, call.args)[2:]), call.value, tip)

    def put(self, hand: Hand, data: bytes, value: int = 0, tip: int = 0) -> None:
        world, sender = self.world, hand.address.lower()
        nonce = world.tree.nonce(sender)
        while (sender, nonce) in world.tree.pool:
            nonce += 1
        tx = Tx(sender, self.view.address, value, GAS, nonce, data, tip or 2 * world.tip, 10 * world.least)
        world.moved = True
        world.tree.pool[sender, nonce] = tx

    # ---- at each block ----

    def act(self) -> None:
        world = self.world
        self.waiting = {sender for sender, _ in world.tree.pool}
        if world.on("copies", 50):
            self.copy()
        for puppet in self.puppets:
            puppet.act()
        jobs = self.jobs
        if jobs and world.on("accusers", 25):
            self.accuse(world.tape.pick(jobs))
        if jobs and world.on("endings", 5):
            self.end_disputes(world.tape.pick(jobs))
        if jobs and world.on("openings", 4):
            self.open(world.tape.pick(jobs))
        if world.quiet >= 3:
            for job in (*self.lies, *self.stolen):
                self.end(job)

    def end(self, job: bytes) -> None:
        """End a cheat's job whose time is over, as any account may. Disputes with the auditor are left to the
        auditor."""
        state, now, hand = self.job(job), self.world.tree.head.time, self.hands[0]
        windows = {Phase.CREATED: "accept_window", Phase.ACCEPTED: "claim_window", Phase.CLAIMED: "challenge_window"}
        if state.phase not in windows or hand.address.lower() in self.waiting:
            return
        over = now > state.since + getattr(state.spec, windows[state.phase])
        if state.phase is Phase.CLAIMED and state.open:
            self.end_disputes(job, leave=True)
        elif over and state.phase is not Phase.CREATED:
            self.send(hand, Call("finalize" if state.phase is Phase.CLAIMED else "expire", (job,)))

    def accuse(self, job: bytes) -> None:
        """One more false accuser, or a crowd of them that never moves."""
        tape, world = self.world.tape, self.world
        state = self.job(job)
        if state.phase is not Phase.CLAIMED or self.accused >= CROWD or not self.free:
            return
        if world.tree.head.time > state.since + state.spec.challenge_window:
            return
        idle = world.on("idle", 50)
        for _ in range(1 + tape.below(6) if idle else 1):
            if not self.free:
                return
            hand, step, pace = self.free.pop(), tape.below(SETUP.steps + 1), tape.pick((100, 100, 60, 20))
            player = FalseAccuser(self.game(hand), job, table(), idle=idle, step_wanted=step)
            self.accused += 1
            self.puppets.append(Puppet(self, f"accuser {self.accused}{' idle' if idle else ''}", player, pace))
            self.puppets[-1].act()

    def copy(self) -> None:
        """Copy a transaction of an honest player, with a higher tip."""
        pool = [tx for tx in self.world.tree.pool.values() if tx.sender in self.world.honest]
        if not pool or not self.free:
            return
        tx = self.world.tape.pick(pool)
        hand, name = self.free[0], COPIED.get(tx.data[:4])
        if hand.address.lower() in self.waiting or (name == "acceptJob" and not self.world.tape.chance(20)):
            return
        self.world.log(f"a stranger copies {name}")
        self.put(hand, tx.data, tx.value, tip=4 * self.world.tip + tx.tip)

    def end_disputes(self, job: bytes, leave: bool = False) -> None:
        """End a dispute whose clock is over; `leave`: except those of honest players."""
        state = self.job(job)
        standings = self.disputes(job) if state.open else []
        left = self.world.honest if leave else ()
        over = [s.number for s in standings if s.turn in OVER and s.dispute.auditor.lower() not in left]
        if over:
            self.world.log(f"a stranger ends dispute {over[0]}")
            self.send(self.hands[0], Call("timeout", (job, over[0])))

    def open(self, job: bytes) -> None:
        """Open nodes of the run tree that no dispute contests."""
        if self.job(job).phase is not Phase.CLAIMED or not self.free:
            return
        tree = run_tree(table().checkpoints, len(table().checkpoints), None)
        self.world.log("a stranger opens the run")
        children = tree.descendants(tree.height, 0, min(2, tree.height))
        self.send(self.free[0], Call("reveal", (job, int(Kind.RUN), tree.height, children)))

    # ---- orders of cheats ----

    def cheat(self, job: bytes) -> None:
        """Add a trainer for this job, with a lie or with the right run."""
        tape, world = self.world.tape, self.world
        lie = len(LIES) - tape.below(len(LIES) + 1)
        lie = lie if lie < len(LIES) else -1
        silent = tape.pick(QUIET) if "withhold" in world.enabled else frozenset()
        hand, self.lies[job] = self.free.pop(), lie
        player = CheatingTrainer(self.game(hand), job, table(lie), silent)
        player.terms = world.spec
        pace = tape.pick((100, 100, 60, 25))
        self.puppets.append(Puppet(self, f"cheat {lie} {'/'.join(sorted(silent))}", player, pace))


__all__ = ["LIES", "Hand", "Puppet", "Strangers"]
