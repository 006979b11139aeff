"""Roles as processes: each connects to a chain, computes on its device, and plays until there is nothing left to do.

Everything a role decides follows from the chain and its store; a role that was killed goes on when it is started again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from functools import cached_property, partial
from pathlib import Path

from vgame.agents.delivery import delivered_folder, seller_of
from vgame.agents.order import find_order, matches
from vgame.agents.retry import Deferred, Patience
from vgame.agents.status import read_game
from vgame.attacks.adversaries import ATTACKS
from vgame.chain.connection import Chain, Wallet, connect, keystore_key
from vgame.chain.game import ENDED, PAGE, STANDING, Game, Job, JobSpec, Phase, Turn
from vgame.delivery.buyer import late_trainer
from vgame.dispute.auditor import Auditor
from vgame.dispute.delegate import Delegate
from vgame.dispute.player import each
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain, ChainError, NotYet, VgameError
from vgame.execute.devices import fingerprint, settle
from vgame.execute.work import operations
from vgame.job.bundle import Bundle, load_bundle
from vgame.job.terms import Pace, auditor_shortcomings, trainer_shortcomings
from vgame.runs.local import link_bundle
from vgame.runs.logged_store import LoggedStore
from vgame.runs.pace import measure
from vgame.runs.published_log import PublishedLog
from vgame.runs.store import Store
from vgame.system.progress import Reporter

KEY_VARIABLE = "VGAME_KEY"
KEYSTORE_VARIABLE = "VGAME_KEYSTORE"
PASSWORD_VARIABLE = "VGAME_PASSWORD"


@dataclass(frozen=True)
class Seat:
    """Where a role sits: endpoint, contract, bundle, store and device."""

    rpc: str
    game: str
    bundle: Path
    store: Path
    device: str = "default"
    keep: int = 1
    poll: float = 0.2
    log: Path | None = None  # an auditor's: the trainer's run folder, in mode `logged`
    chain_id: int | None = None  # the chain that is signed for


def wallet_from_environment(chain: Chain) -> Wallet:
    """The key is never on a command line: it comes from VGAME_KEY, or from an encrypted keystore file."""
    if path := os.environ.get(KEYSTORE_VARIABLE):
        return Wallet(chain, _from_keystore(Path(path)))
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        raise ChainError(
            f"no key: put the account's private key into the environment variable {KEY_VARIABLE}, or the path of its keystore file "
            f"into {KEYSTORE_VARIABLE} and the password into {PASSWORD_VARIABLE}"
        )
    try:
        return Wallet(chain, key)
    except (ValueError, TypeError):
        raise ChainError(f"{KEY_VARIABLE} does not hold a private key (32 bytes in hex)") from None


def _from_keystore(path: Path) -> bytes:
    """The key in a keystore file (Web3 Secret Storage, version 3)."""
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        raise ChainError(f"the keystore {path} needs its password in the environment variable {PASSWORD_VARIABLE}")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ChainError(f"the keystore {path} cannot be read: {error}") from None
    try:
        return keystore_key(text, password)
    except Exception:  # a file can hold anything, so reading it can raise anything
        raise ChainError(f"{path} is no keystore file, or {PASSWORD_VARIABLE} is not its password") from None


def open_game(seat: Seat, reporter: Reporter | None = None) -> Game:
    """The contract at the seat, all its parts checked, with the wallet of the environment."""
    chain = connect(seat.rpc, seat.chain_id)
    if reporter:
        chain.tell = lambda text: reporter.emit("waiting", text, message=text)
    game = Game(chain, seat.game, wallet_from_environment(chain))
    game.check_machine()
    chain.checks.append(game.check_machine)
    return game


def off_chain(bundle: Bundle) -> str:
    """Why the contract cannot decide this job's elements; empty if it can."""
    if bundle.mode == "correct":
        return ""
    if bundle.log is None:
        return f"a job in mode {bundle.mode!r} cannot be disputed on chain; order mode = 'correct' or 'logged'"
    from vgame.arithmetic.functions import ELEMENTARY
    from vgame.logged.sums import PROVEN
    from vgame.program.operators import Map

    if any(window < PROVEN for window in bundle.log.windows):
        return "with calibrated thresholds an honest trainer may lose, for replication is only likely; order [log] thresholds = 'proven'"
    functions = {op.function for op in bundle.program.operators if isinstance(op, Map)} & set(ELEMENTARY)
    if bundle.log.bits < 32 and functions:
        names = ", ".join(sorted(function.name.lower() for function in functions))
        return f"the contract has no {names} with {bundle.log.bits} bits; order [log] bits = 32"
    return ""


def post_job(game: Game, bundle: Bundle, nonce: int) -> bytes:
    """Order the bundle's job and pay its reward; its identity."""
    assert game.wallet is not None
    if why := off_chain(bundle):
        raise VgameError(why)
    spec = JobSpec(**bundle.order)
    job = game.job_id(spec, game.wallet.address, nonce)
    if game.job(job).phase is not Phase.NONE:
        raise ChainError(
            f"this order stands already, it is job {job.hex()}; to order the same once more give another --nonce"
        )
    game.send("createJob", astuple(spec), nonce, bundle.program.header, value=spec.reward)
    return job


def close_job(game: Game, job: bytes) -> tuple[Phase, int]:
    """End disputes that nobody plays any more, and the job if its time is over; withdraw what this account is owed: the job's phase, and
    wei. ChainError if there is neither."""
    assert game.wallet is not None
    _end_expired(game, job)
    _end_delivery(game, job)
    state = read_game(game, job)[0]
    clocks = [left for left in (state.seconds_left, *(d.seconds_left for d in state.disputes)) if left is not None]
    done = state.phase in ("created", "accepted", "claimed") and max(clocks, default=0) < 0
    if done:
        game.send("finalize" if game.job(job).phase is Phase.CLAIMED else "expire", job)
    amount = game.credits(game.wallet.address)
    if amount:
        game.send("withdraw", game.wallet.address)
    elif not done:
        left = f" and cannot be ended yet ({max(clocks)} s are left at least)" if clocks else ""
        raise ChainError(
            f"job {job.hex()[:16]} is {state.phase}{left}, and the contract owes {game.wallet.address} nothing; `vgame status` tells more"
        )
    return game.job(job).phase, amount


def _end_expired(game: Game, job: bytes) -> None:
    """End every dispute in which a side is out of time; one of the trainer's ends all."""
    for first in range(0, game.job(job).disputes, PAGE):
        found = game.disputes(job, first)
        over = [s.number for s in found if s.turn in (Turn.TRAINER_EXPIRED, Turn.AUDITOR_EXPIRED)]
        if over and game.job(job).phase is Phase.CLAIMED:
            game.send("timeoutMany", job, over)


def _end_delivery(game: Game, job: bytes) -> None:
    """What time has decided about a delivery: no key, so the reward comes back; or no complaint, so it is paid."""
    if overdue := late_trainer(game, job):
        game.send(*overdue)
    elif game.job(job).phase is Phase.REVEALED and read_game(game, job)[0].seconds_left < 0:
        game.send("closeDelivery", job)


def forecast(game: Game, bundle_folder: Path, store_folder: Path) -> dict[str, str]:
    """Own run root, hex, of every job that orders the bundle; the own run must have ended."""
    from vgame.commit.trees import run_tree

    bundle = load_bundle(bundle_folder)
    folder = store_folder / bundle.identity.hex()[:16]
    if not folder.is_dir():
        raise Abstain(
            f"{store_folder} holds no run of this bundle; start `vgame auditor` or `vgame trainer` with it first"
        )
    store = LoggedStore(folder, bundle) if bundle.mode == "logged" else Store(folder, bundle)
    if store.divergence is None and store.step < bundle.steps:
        raise Abstain(
            f"the run in {store_folder} is at step {store.step} of {bundle.steps}; look again when it has ended"
        )
    logs = store.log_roots if isinstance(store, LoggedStore) else None
    root = run_tree(store.roots, len(store.roots), logs).root.hex()
    return {e.args["job"].hex(): root for e in game.events("JobCreated") if matches(game, bundle, e)}


# ---- computing ----


class Computation:
    """One bundle on one device: its store and its history; in mode `logged` also the log that an auditor follows."""

    published: PublishedLog | None = None

    def __init__(self, seat: Seat, kind: str, reporter: Reporter, attack: tuple[str, int] | None = None) -> None:
        self.reporter, self.patience = reporter, Patience(reporter, seat.poll, bears=VgameError)
        reporter.stage("reads the bundle, and hashes its state and data")
        self.bundle = load_bundle(seat.bundle)
        if why := off_chain(self.bundle):
            raise Abstain(why)
        if self.bundle.mode == "logged":
            self._start_logged(seat, kind, attack)
        else:
            self._start(seat, kind, attack)

    def _start(self, seat: Seat, kind: str, attack: tuple[str, int] | None) -> None:
        from vgame.attacks import computation as attacks
        from vgame.execute.executor import Executor
        from vgame.runs.history import History

        executor = Executor(
            self.bundle.program, self.bundle.data, self.bundle.scalars, self.bundle.seed, self.bundle.mode, kind
        )
        folder = seat.store / self.bundle.identity.hex()[:16]
        self.store = Store(folder, self.bundle, seat.keep)
        link_bundle(seat.bundle, folder)
        self.stepper, history = executor, History
        if attack:
            name, step = attack
            patch = getattr(attacks, ATTACKS[name].patch)(self.bundle, step)
            self.store = self.store.fork(seat.store / name, (patch.first - 1) // self.bundle.interval)
            self.stepper, history = attacks.PatchedExecutor(executor, patch), attacks.CheatingHistory
        self.history = history(self.store, self.stepper)

    def _start_logged(self, seat: Seat, kind: str, attack: tuple[str, int] | None) -> None:
        """The trainer records its log in its run folder; an auditor follows a copy of it, in a run of its own."""
        from vgame.attacks.tampered_log import steer
        from vgame.runs.logged_history import LoggedHistory
        from vgame.runs.logged_store import make_executor

        self.stepper, identity = make_executor(self.bundle, kind), self.bundle.identity.hex()[:16]
        if attack:
            steer(self.stepper, attack[1])
        if seat.log is None:
            self.store = log = LoggedStore(seat.store / identity, self.bundle, seat.keep)
            link_bundle(seat.bundle, seat.store / identity)
            log.record(self.stepper)
        else:
            self.published = log = self._await_log(seat, seat.log)
            self.store = Store(seat.store / f"{identity}-{log.run_root.hex()[:16]}", self.bundle, seat.keep)
            log.follow(self.stepper)
        self.history = LoggedHistory(self.store, self.stepper, log)

    def _await_log(self, seat: Seat, source: Path) -> PublishedLog:
        """The log of the trainer's whole run; of each source a copy of its own."""
        name = hashlib.sha256(f"{source.resolve()}".encode()).hexdigest()[:16]
        copy = seat.store / f"{self.bundle.identity.hex()[:16]}-log-{name}"

        def whole() -> PublishedLog:
            log = PublishedLog(source, copy, self.bundle)
            if log.ended:
                return log
            raise NotYet(f"the log in {source} ends after step {log.store.step} of {self.bundle.steps}")

        return self.patience.insist(whole)

    def hold(self) -> None:
        """StoreError where another process computes this run: asked before a bond is put on it."""
        if not self.store.done:
            self.store.hold()

    def run(self, hurry: Callable[[], str] = lambda: "") -> None:
        """Train or re-train to the end; a disk that takes nothing is waited for, while a clock may run (`hurry`)."""
        from vgame.runs.training import train

        bundle, begin = self.bundle, time.monotonic()

        def progress(step: int, loss: float) -> None:
            self.reporter.progress("training", step, bundle.steps, f"loss {loss:.4f}")

        self.patience.hurry = hurry
        train(self.store, self.stepper, progress, self.patience.insist)
        stop, root = self.store.divergence, self.store.roots[-1].hex() if self.store.roots else ""
        seconds = time.monotonic() - begin
        fields = {"root": root, "step": self.store.step, "stop": asdict(stop) if stop else None, "seconds": seconds}
        text = f"finished step {self.store.step} in {seconds:.1f} s, state root {root[:16]}"
        if stop:
            name = bundle.program.operator_name(stop.operator)
            text = f"step {stop.step} is not finite: element {stop.element} of operator {name}; nothing after it is committed"
        self.reporter.emit("computed", text, **fields)

    @cached_property
    def pace(self) -> Pace:
        """How fast this device is."""
        self.reporter.stage(f"measures a few steps of {operations(self.bundle.program):.1e} operations each")
        pace = measure(self.bundle, self.stepper, self.reporter)
        if isinstance(self.store, LoggedStore):
            self.stepper.made.clear()  # what was measured is no step of the run
        return pace

    def rehearse(self) -> None:
        """Do a dispute's work once: who has too little memory for it ends before it stakes anything."""
        self.reporter.stage("rehearses a dispute")
        self.history.rehearse()
        if isinstance(self.store, LoggedStore):
            self.stepper.made.clear()  # what was rehearsed is no step of the run

    def refuse_bad_terms(self, gas_price: int) -> None:
        """Abstain from an order on which an honest trainer could lose."""
        if short := trainer_shortcomings(self.bundle, self.pace, gas_price):
            raise Abstain(
                f"a step takes {self.pace.step:.2f} s here, {self.pace.worst:.2f} s at worst; {'; '.join(short)} "
                "(--any-terms accepts the order)"
            )

    @property
    def run_root(self) -> bytes:
        """Root over the checkpoints that were reached."""
        from vgame.commit.trees import run_tree

        return run_tree(self.store.roots, len(self.store.roots), self.history.logs).root

    def why_foreign(self, game: Game, job: bytes, claim: Job) -> str:
        """Why the log that this run follows is not the claim's; empty if it is, or if there is none."""
        if self.published is None:
            return ""
        stopped = claim.diverged_at
        partial = game.log_root(job, (stopped - 1) // self.bundle.interval + 1) if stopped else None
        return self.published.why_foreign(claim.run_root, partial)


def hello(reporter: Reporter, role: str, device: str) -> None:
    """Say which device this process is."""
    marks = fingerprint()
    reporter.emit(
        "hello",
        f"plays the {role} on device {device} (binary64 product {marks['binary64 product']})",
        device=device,
        **marks,
    )


# ---- the roles ----


def run_trainer(seat: Seat, job: bytes, reporter: Reporter, any_terms: bool = False) -> Phase:
    """Accept a job, train it, claim, defend, finalize, withdraw; the phase in which it ended."""
    game = open_game(seat, reporter)
    with settle(seat.device) as kind:
        hello(reporter, "trainer", seat.device)
        computation = Computation(seat, kind, reporter)
        return play(trainer_of(game, job, computation, any_terms), computation, reporter, seat.poll)


def trainer_of(game: Game, job: bytes, computation: Computation, any_terms: bool = False) -> Trainer:
    """The trainer of a job that it has accepted and computed."""
    find_order(game, computation.bundle, job)
    if not any_terms and game.job(job).phase is Phase.CREATED:
        computation.refuse_bad_terms(sum(game.chain.fees()))
    if game.job(job).phase is Phase.CREATED:
        computation.rehearse()
    trainer = Trainer(game, job, computation.history)
    trainer.terms = JobSpec(**computation.bundle.order)
    if trainer.terms.confirm_window:
        trainer.seller = seller_of(computation.bundle, computation.history, computation.store.folder.parent, job)
    computation.hold()
    trainer.accept()
    computation.reporter.emit("accepted", f"accepted job {job.hex()[:16]}", job=job.hex())
    computation.run(trainer.hurry)
    return trainer


def run_delegate(seat: Seat, job: bytes, reporter: Reporter) -> Phase:
    """Compute a job, then answer for its trainer, which has named this account; the phase in which it ended."""
    game = open_game(seat, reporter)
    with settle(seat.device) as kind:
        hello(reporter, "trainer's delegate", seat.device)
        computation = Computation(seat, kind, reporter)
        find_order(game, computation.bundle, job)
        delegate = Delegate(game, job, computation.history)
        delegate.terms = JobSpec(**computation.bundle.order)
        store = computation.store.folder.parent
        if delegate.terms.confirm_window and (delivered_folder(store, job) / "key").exists():
            delegate.seller = seller_of(computation.bundle, computation.history, store, job)
        computation.hold()
        computation.run(delegate.hurry)
        return play(delegate, computation, reporter, seat.poll)


def play(trainer: Trainer, computation: Computation, reporter: Reporter, poll: float) -> Phase:
    """Claim what was computed, then make moves until the job has ended and there is nothing left to do."""
    patience, claimed, looks = Patience(reporter, poll, hurry=trainer.hurry), False, 0
    while True:
        with patience:
            acted, phase = trainer.step(), trainer.look().phase
            if not claimed and phase in {Phase.CLAIMED, Phase.CONVICTED, *STANDING}:
                claimed = True
                text, root = "posted its claim" if trainer.windows else "sees the claim", computation.run_root.hex()
                reporter.emit("claimed", f"{text}, run root {root}, run in {computation.store.folder}", run_root=root)
            looks = looks + 1 if phase in {Phase.CONVICTED, *ENDED} and not acted else 0
            if looks == patience.LOOKS:
                name, paid = phase.name.lower(), trainer.withdrawn
                reporter.emit("ended", f"the job ended: {name}{_withdrawn(paid)}", phase=name, withdrawn=paid)
                return phase
            if not acted:
                time.sleep(poll)


def _withdrawn(wei: int) -> str:
    return f", {wei / 10**18:.6f} ether withdrawn" if wei else ""


def run_auditor(seat: Seat, reporter: Reporter, limits: Limits, once: bool = False) -> None:
    """Re-execute the bundle, then watch every job that orders it; `once`: until all such jobs have ended."""
    if seat.log is None and load_bundle(seat.bundle).mode == "logged":
        raise Abstain("a run in mode 'logged' is audited by its log: give the trainer's run folder with --log")
    game = open_game(seat, reporter)
    with settle(seat.device) as kind:
        hello(reporter, "auditor", seat.device)
        computation = Computation(seat, kind, reporter)
        computation.run()
        computation.rehearse()
        watch = Watch(game, computation, reporter, seat.poll, limits)
        patience = Patience(reporter, seat.poll)
        while not (once and watch.finished):
            with patience:
                if not watch.round():
                    time.sleep(seat.poll)


@dataclass(frozen=True)
class Limits:
    """What an auditor stakes: `bond` wei at most, by default never more than the trainer does; `any_clocks`: also on short ones."""

    bond: int | None = None
    any_clocks: bool = False


class Watch:
    """An auditor's view of all jobs that order its bundle.

    INVARIANT: no answer ends a job for good. What orders other bundles is known by the whole event, whose hash is the job; that a job has
    ended has to be said LOOKS times in a row, and is asked again every AGAIN seconds.
    """

    AGAIN = 60.0
    OLD = 16  # jobs that have ended are looked at in one round, at most: a chain may have thousands
    LONGEST = 5.0  # seconds between two tries of a job with a problem

    def __init__(self, game: Game, computation: Computation, reporter: Reporter, poll: float, limits: Limits) -> None:
        self.game, self.computation, self.reporter, self.poll, self.limits = game, computation, reporter, poll, limits
        self.auditors: dict[bytes, Auditor] = {}
        self.patience: dict[bytes, Deferred] = {}
        self.foreign: set[tuple[object, ...]] = set()
        self.said: set[tuple[bytes, bytes]] = set()  # job, and root of the claim
        self.ended: dict[bytes, tuple[int, float]] = {}  # looks in a row that said so, time of the last one
        self.old = 0  # final claims that match, not yet told

    @property
    def finished(self) -> bool:
        return bool(self.auditors) and all(map(self._over, self.auditors))

    def _over(self, job: bytes) -> bool:
        return self.ended.get(job, (0, 0.0))[0] >= Patience.LOOKS

    def round(self) -> bool:
        """One round over all jobs; a problem with one of them, or with finding new ones, is none for the others."""
        return each([self.look, self.play])

    def look(self) -> bool:
        """New jobs that order this bundle."""
        for event in self.game.events("JobCreated"):
            job, told = event.args["job"], tuple(event.args[k] for k in ("job", "client", "nonce"))
            if job in self.auditors or told in self.foreign:
                continue
            if not matches(self.game, self.computation.bundle, event):
                self.foreign.add(told)
                continue
            self.auditors[job] = Auditor(self.game, job, self.computation.history)
            self.auditors[job].terms = JobSpec(**self.computation.bundle.order)
            self.auditors[job].refusal = self.refusal
            self.patience[job] = Deferred(self.reporter, self.poll, self.LONGEST, self.auditors[job].hurry)
        return False

    def play(self) -> bool:
        """What is due in each job."""
        acted, now = False, time.monotonic()
        due = [job for job, patience in self.patience.items() if patience.due]
        old = [job for job in due if self._over(job) and now - self.ended[job][1] > self.AGAIN][: self.OLD]
        for job in [*(job for job in due if not self._over(job)), *old]:
            with self.patience[job]:
                acted |= self._round(job, self.auditors[job])
        if self.old:
            root = self.computation.run_root.hex()
            text = f"final before this auditor looked, and a MATCH: {self.old} jobs, own root {root[:16]}"
            self.reporter.emit("audited_final", text, agree=self.old, run_root=root)
            self.old = 0
        return acted

    def _round(self, job: bytes, auditor: Auditor) -> bool:
        state = self.game.job(job)
        phase = state.phase
        duties = [auditor.step]
        if phase is Phase.NONE:  # a reorganisation, or there never was one
            del self.auditors[job], self.patience[job]
            return False
        if phase in {Phase.CLAIMED, *STANDING} and (job, state.run_root) not in self.said:
            if foreign := self.computation.why_foreign(self.game, job, state):
                self._note(job, True)
                raise Abstain(f"job {job.hex()[:16]} is not audited: {foreign}")
            duties.insert(0, partial(self.compare, job, auditor, state))
        acted = each(duties)
        self._note(job, not acted and self._nothing_left(job, state))
        return acted

    def _nothing_left(self, job: bytes, state: Job) -> bool:
        if state.phase is not Phase.CONVICTED:
            return state.phase in {Phase.EXPIRED, *STANDING}
        verdict = self.game.verdict(job)
        return verdict.paid or (not verdict.best and self.game.chain.now() > state.since + state.spec.reward_window)

    def _note(self, job: bytes, over: bool) -> None:
        """What this look said."""
        looks = self.ended.pop(job, (0, 0.0))[0]
        if over:
            self.ended[job] = (looks + 1, time.monotonic())

    def compare(self, job: bytes, auditor: Auditor, state: Job) -> bool:
        """Say once whether the claim is the own run; also where it is too late to dispute it."""
        agrees, root = auditor.agrees(), self.computation.run_root.hex()
        old = state.phase in STANDING
        late = "; the claim is final, it can be disputed no more" if old else ""
        text = f"job {job.hex()[:16]}: {'MATCH' if agrees else 'NO MATCH'}, own root {root[:16]}{late}"
        self.reporter.emit("audited", "" if agrees and old else text, job=job.hex(), agrees=agrees, run_root=root)
        self.old += agrees and old
        self.said.add((job, state.run_root))
        return False

    def refusal(self, state: Job) -> str:
        """Why even the right side would lose its bond, or stakes more than it was told to; empty if neither."""
        most = state.spec.trainer_bond if self.limits.bond is None else self.limits.bond
        if state.spec.auditor_bond > most:
            return f"the auditor's bond is {state.spec.auditor_bond} wei, more than {most} (--max-bond allows more)"
        short = auditor_shortcomings(self.computation.bundle, self.computation.pace)
        return "" if self.limits.any_clocks or not short else f"{'; '.join(short)} (--any-terms disputes all the same)"
