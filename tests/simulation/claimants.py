"""All other accounts around a bonus: a payer that sets traps, a trainer that earns nothing, and strangers that call the
escrow first.

In: a world, a story. Out: transactions in its mempool.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import cache
from typing import Any

from accuracy import ETHER, FUNCTIONS, INPUTS, SELECTORS, SimEscrow, deployed, work
from branches import Block, Tx
from eth_abi import encode
from evaluations import CLAIMS, LIES, RIGHT, measured
from market import Vendor
from revm_calls import calldata
from scene import Call
from strangers import GAS, QUIET, Hand, Puppet, Strangers

import vgame.agents.bonus as agents
from vgame.agents.bonus_conditions import needed_window, template_of
from vgame.attacks.adversaries import CheatingTrainer, FalseAccuser
from vgame.chain.escrow import Bonus, BonusTerms, Promised
from vgame.chain.records import ZERO_ADDRESS, JobSpec, Phase

AMOUNT = ETHER
NAME = b"a trained model".ljust(32, b"\0")
WRONG = b"\x66" * 32
#: Faults of a bonus, for each of which `check` has to refuse it.
TRAPS = ("mark", "low mark", "window", "interval", "job", "places", "clocks", "data", "layout", "size", "bond")
MANNERS = ("plain", "nothing", "trains", "early", "late", "gives up")
AUDITED = ("plain", "late", "early")


def call_data(name: str, args: Any) -> bytes:
    """The data of a call of the escrow."""
    assert name in FUNCTIONS
    return SELECTORS[name] + encode(INPUTS[name], args)


def order(spec: JobSpec, nonce: int, measures: bool) -> Call:
    """The order of a training or of an evaluation."""
    program = (work().measured if measures else work().run).bundle.program
    return Call("createJob", (astuple(spec), nonce, NAME, program.header), spec.reward)


def trapped(trap: str, training: Any, job: bytes, other: bytes, least: int) -> tuple[Any, ...]:
    """The arguments of a bonus with this trap: terms, order, layout and nonce."""
    own = agents.untrained_evaluation(work().task, "correct", training, AMOUNT)
    total, size = agents.place_of(own)
    terms = BonusTerms(other if trap == "job" else job, needed_window(own, AMOUNT), total, size, least)
    spec, layout = template_of(JobSpec(**own.order)), agents.layout_of(training, own)
    match trap:
        case "mark" | "low mark":
            terms = replace(terms, least=2**30 if trap == "mark" else -(2**30))
        case "window":
            terms = replace(terms, window=terms.window - 1)
        case "interval":
            spec = replace(spec, interval=spec.steps + 1)
        case "places" | "size":
            terms = replace(terms, total=size) if trap == "places" else replace(terms, size=total)
        case "clocks":
            spec = replace(spec, challenge_window=spec.challenge_window // 2)
        case "data":
            spec = replace(spec, data_root=WRONG)
        case "bond":
            spec = replace(spec, auditor_bond=1)
        case "layout":
            layout = [*layout[:-1], WRONG]
    return astuple(terms), astuple(spec), layout, 0


class Giver:
    """A hostile payer: it opens a bonus, begins its window at once, and takes the money back as soon as it can."""

    def __init__(self, others: Claimants, hand: Hand) -> None:
        self.others, self.hand, self.opened = others, hand, False

    def act(self) -> None:
        others, story = self.others, self.others.story
        if self.hand.address.lower() in others.waiting:
            return
        if not self.opened:
            self.opened = True
            for nonce in range(2):
                others.send(self.hand, order(story.spec, nonce, False))
            made = trapped(story.trap, story.training, *story.jobs, story.least)
            others.tell(self.hand, "open", made, AMOUNT)
        elif story.offered is None:
            story.offered = others.promised_id(self.hand.address)
        elif not story.lazy:
            others.close(self.hand)


class Worker:
    """A trainer that is hostile to an honest payer. If the payer has an auditor, evaluations are false."""

    def __init__(self, others: Claimants, hand: Hand) -> None:
        tape, audited = others.world.tape, "auditor" in others.story.roles
        self.others, self.hand, self.manner = others, hand, tape.pick(AUDITED if audited else MANNERS)
        self.patience = 600 * tape.below(48)  # seconds after the evaluation is final, for the manner "late"
        self.lies = [self._lie() for _ in range(1 + tape.below(CLAIMS))] if audited else [RIGHT]
        self.evaluations: list[bytes] = []
        self.begun, self.final = False, 0.0

    def _lie(self) -> int:
        return self.others.world.tape.below(len(LIES)) if self.others.world.tape.chance(75) else RIGHT

    def act(self) -> None:
        others, story = self.others, self.others.story
        if story.offered is None or self.manner == "nothing":
            return
        if not self.begun:
            self.begun = True
            silent = frozenset({"postClaim"}) if self.manner == "gives up" else frozenset()
            others.play(self.hand, story.jobs[0], story.spec, 0, silent)
        if self.hand.address.lower() in others.waiting or self.manner in ("trains", "gives up"):
            return
        bonus, job = others.held(), others.job(story.jobs[0])
        ready = job.phase is Phase.ACCEPTED if self.manner == "early" else bonus is not None and bonus.since > 0
        first, more = not self.evaluations, len(self.evaluations) < len(self.lies)
        if more and ready and job.trainer == self.hand.address and (first or others.world.tape.chance(10)):
            self._order()
            return
        ended = [evaluation for evaluation in self.evaluations if others.job(evaluation).phase is Phase.FINAL]
        if ended:
            self.final = self.final or others.world.now
            late = self.patience if self.manner == "late" else 0
            if others.world.now >= self.final + late and others.world.tape.chance(20):
                others.prove(self.hand, others.world.tape.pick(ended), story.offered)

    def _order(self) -> None:
        others, number = self.others, len(self.evaluations)
        spec = replace(
            others.promise().evaluation, trainer=self.hand.address, initial_root=work().measured.bundle.initial_root
        )
        evaluation = others.view.job_id(spec, self.hand.address, number)
        self.evaluations.append(evaluation)
        others.lies[evaluation] = self.lies[number]
        others.evaluations.append(evaluation)
        silent = others.world.tape.pick(QUIET) if others.world.on("withhold", 100) else frozenset()
        others.send(self.hand, order(spec, number, True))
        others.play(self.hand, evaluation, spec, 1, silent)
        others.jobs.append(evaluation)


class Claimants(Strangers):
    """All other accounts of a bonus."""

    def __init__(self, world: Any, hands: int, story: Any) -> None:
        super().__init__(world, hands)
        self.story, self.actors = story, list[Giver | Worker]()
        self.which: dict[bytes, int] = {}  # by job: 1 for an evaluation, 0 for the training
        self.evaluations: list[bytes] = []  # of the hostile trainer
        self.bonuses: tuple[Block | None, Bonus | None] = (None, None)

    def begin(self) -> None:
        super().begin()
        self.escrow = SimEscrow(self.view)

    # ---- the escrow ----

    def held(self) -> Bonus | None:
        """The bonus in the state of the newest block."""
        made = self.world.tree.head.made
        if self.bonuses[0] is not made:
            found = Bonus(*self.escrow._call("getBonus", self.story.offered)) if self.story.offered else None
            self.bonuses = made, found if found and found.amount else None
        return self.bonuses[1]

    def promise(self, identity: bytes | None = None) -> Promised:
        return self.escrow.promised(identity or self.story.offered)

    def promised_id(self, payer: str) -> bytes | None:
        """The id of the payer's first bonus on chain."""
        return next(iter(self.promised_ids(payer)), None)

    def promised_ids(self, payer: str) -> list[bytes]:
        return [bytes(e.args["id"]) for e in self.events() if e.name == "Promised" and e.args["payer"] == payer]

    def events(self) -> list[Any]:
        """The events of the escrow."""
        logs = self.world.tree.logs(self.world.tree.head)
        mine = [log for log in logs if log["address"].lower() == deployed()[2].lower()]
        return [event for event in map(self.escrow._decode, mine) if event is not None]

    def tell(self, hand: Hand, name: str, args: Any, value: int = 0, tip: int = 0) -> None:
        self.post(hand, deployed()[2], call_data(name, args), value, tip)

    def put(self, hand: Hand, data: bytes, value: int = 0, tip: int = 0) -> None:
        self.post(hand, self.view.address, data, value, tip)

    def post(self, hand: Hand, to: str, data: bytes, value: int, tip: int) -> None:
        """A transaction to any recipient, not only to the game."""
        world, sender = self.world, hand.address.lower()
        nonce = world.tree.nonce(sender)
        while (sender, nonce) in world.tree.pool:
            nonce += 1
        world.moved = True
        most = 20 * world.least + tip
        world.tree.pool[sender, nonce] = Tx(sender, to, value, GAS, nonce, data, tip or 2 * world.tip, most)

    def close(self, hand: Hand) -> None:
        """Call `start` or `giveBack` in the first block that allows it."""
        bonus = self.held()
        if bonus is None or bonus.settled_at or hand.address.lower() in self.waiting:
            return
        job = self.job(bonus.training)
        time, name = self.world.tree.head.time, ""
        if job.phase is Phase.FINAL and not job.diverged_at and not bonus.since:
            name = "start"
        elif job.phase in agents.FAILED or (bonus.since and time + 12 > bonus.since + bonus.window):
            name = "giveBack"
        if name:
            self.world.log(f"another account: {name}")
            self.tell(hand, name, (self.story.offered,), tip=9 * self.world.tip)

    def prove(self, hand: Hand, evaluation: bytes, identity: bytes) -> None:
        """Call `pay` of a bonus, with or without a chance of success."""
        run = measured(self.lies.get(evaluation, RIGHT))[0]
        shown = agents.proof_of(self.promise(identity), evaluation, work().run, run)
        self.tell(hand, "pay", (identity, astuple(shown)))

    # ---- at each block ----

    def play(self, hand: Hand, job: bytes, spec: JobSpec, measures: int, silent: frozenset[str] = frozenset()) -> None:
        """A puppet that trains or evaluates."""
        history = measured(self.lies.get(job, RIGHT))[1] if measures else work().histories[0]
        player = CheatingTrainer(self.game(hand), job, history, silent)
        player.terms = spec
        self.which[job] = measures
        self.puppets.append(Vendor(self, f"worker {measures}", player, self.world.tape.pick((100, 60, 25))))

    def act(self) -> None:
        world = self.world
        self.waiting = {sender for sender, _ in world.tree.pool}
        if world.on("copies", 50):
            self.copy()
        for actor in (*self.actors, *self.puppets):
            actor.act()
        if self.jobs and world.on("accusers", 10):
            self.accuse(world.tape.pick(self.jobs))
        if self.jobs and world.on("endings", 5):
            self.end_disputes(world.tape.pick(self.jobs))
        if self.story.offered and world.on("closings", 20):
            self.close(self.hands[0])
        if self.story.offered and world.on("junk", 4):
            self.junk()

    def accuse(self, job: bytes) -> None:
        """A false accuser, perhaps the payer's."""
        tape, state = self.world.tape, self.job(job)
        if state.phase is not Phase.CLAIMED or self.accused >= 2 or not self.free:
            return
        if self.world.tree.head.time > state.since + state.spec.challenge_window:
            return
        idle = self.world.on("idle", 50) or self.story.sharp
        history = work().histories[self.which.get(job, int(job != self.story.jobs[0]))]
        step, pace = tape.below(history.steps + 1), tape.pick((100, 100, 60, 20))
        player = FalseAccuser(self.game(self.free.pop()), job, history, idle=idle, step_wanted=step)
        self.accused += 1
        self.puppets.append(Puppet(self, f"accuser {self.accused}{' idle' if idle else ''}", player, pace))

    def copy(self) -> None:
        """Copy a transaction of an honest player, with a higher tip."""
        pool = [tx for tx in self.world.tree.pool.values() if tx.sender in self.world.honest]
        if not pool or not self.free or self.free[0].address.lower() in self.waiting:
            return
        tx = self.world.tape.pick(pool)
        if tx.data[:4] == _selector("acceptJob") and tx.to == self.view.address:
            return  # any account may accept an order that names no trainer
        self.world.log("a stranger copies a transaction")
        self.post(self.free[0], tx.to, tx.data, tx.value, tip=4 * self.world.tip + tx.tip)

    def junk(self) -> None:
        """An evaluation that does not count, a call that the escrow refuses, or another bonus for the training, and
        calls of it."""
        hand, tape = self.hands[2], self.world.tape
        if hand.address.lower() in self.waiting:
            return
        kind, others = tape.below(5), self.promised_ids(hand.address)
        identity = tape.pick([self.story.offered, *others])
        if kind < 2:
            self.tell(hand, ("start", "giveBack")[kind], (identity,))
        elif kind == 2 and (jobs := self.jobs[1:]):
            self.prove(hand, tape.pick(jobs), identity)
        elif kind == 4 and len(others) < 2:
            terms, spec, layout, _ = trapped("", self.story.training, *self.story.jobs, self.story.least)
            self.tell(hand, "open", (terms, spec, layout, len(others)), AMOUNT // 2)
        else:
            self._evaluation(hand)

    def _evaluation(self, hand: Hand) -> None:
        """An order of the promised evaluation, for this account as its trainer or for any trainer; the account accepts
        it and makes a claim."""
        if hand in (p.player.game.wallet for p in self.puppets if hasattr(p.player.game, "wallet")):
            return
        trainer = self.world.tape.pick((ZERO_ADDRESS, hand.address))
        root = work().measured.bundle.initial_root
        spec = replace(self.promise().evaluation, trainer=trainer, initial_root=root)
        job = self.view.job_id(spec, hand.address, 7)
        self.send(hand, order(spec, 7, True))
        self.play(hand, job, spec, 1)


@cache
def _selector(name: str) -> bytes:
    return bytes.fromhex(_EMPTY[name][2:10])


_EMPTY: dict[str, str] = {"acceptJob": calldata("acceptJob", (bytes(32),))}

__all__ = ["AMOUNT", "TRAPS", "Claimants", "Giver", "Worker"]
