"""A client's calls on chain: post an order, and close it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from vgame.agents.order import is_ordered
from vgame.agents.status import JobState, read_game
from vgame.chain.agreed import agreed, agreed_of, agreed_soon, median_of, replies_of
from vgame.chain.anywhere import anywhere
from vgame.chain.final import final_jobs, most, most_answering
from vgame.chain.game import LOOKS, Game
from vgame.chain.records import JobSpec, Phase, Status, Turn
from vgame.chain.sending import send_until, withdraw
from vgame.delivery.buyer import late_trainer
from vgame.delivery.calls import CALL_GAS
from vgame.dispute.player import BATCH, lapsed
from vgame.errors import Abstain, ChainError, NotYet, VgameError
from vgame.job.bundle import Bundle, load_bundle
from vgame.runs.folder import store_of

OVER = -(2**63)  # in the place of seconds: no clock runs
ORDER_GAS = 360_000  # above the limit of `createJob` (docs/gas.json)


def off_chain(bundle: Bundle) -> str:
    """The reason why the contract cannot decide this job's elements; empty if it can."""
    if bundle.log:
        return bundle.log.off_chain(bundle.program)
    if bundle.mode == "correct":
        return ""
    return f"a job in mode {bundle.mode!r} cannot be disputed on chain; order mode = 'correct' or 'logged'"


def post_job(game: Game, bundle: Bundle, nonce: int) -> bytes:
    """Order the bundle's job, under its name, and pay its reward; returns the job's id."""
    assert game.wallet is not None
    if why := off_chain(bundle):
        raise VgameError(why)
    spec = JobSpec(**bundle.order)
    job = game.job_id(spec, game.wallet.address, nonce)
    exists = lambda: game.job(job).phase is not Phase.NONE  # noqa: E731
    if agreed(game.chain, "whether this order exists", exists, most_answering):
        raise ChainError(
            f"this order exists already, it is job {job.hex()}; to order the same job again give another --nonce"
        )
    _check_funds(game, spec)
    name = bundle.name.encode().ljust(32, b"\0")
    _send(game, exists, "createJob", astuple(spec), nonce, name, bundle.program.header, value=spec.reward)
    return job


def _check_funds(game: Game, spec: JobSpec) -> None:
    """ChainError unless the account holds the reward, and the gas for the calls that it may have to make."""
    assert game.wallet is not None
    base, tip = anywhere(game.chain, lambda: game.chain.fees(of_all=True))
    gas = ORDER_GAS + (CALL_GAS if spec.confirm_window else 0)
    needed, address = spec.reward + gas * (2 * base + tip), game.wallet.address
    owned = median_of(game.chain, lambda: game.chain.balance(address))
    if owned < needed:
        later = ", and to decline a delivery that does not come" if spec.confirm_window else ""
        raise ChainError(
            f"{game.wallet.address} has {owned} wei; {needed} are needed: the reward of {spec.reward}, and "
            f"{needed - spec.reward} for the gas to order{later}; send it some ether"
        )


def close_job(game: Game, job: bytes) -> tuple[Phase, int]:
    """End disputes in which a side is out of time, and the job if its time is over; withdraw the credits of this
    account. Returns the job's phase and the wei withdrawn. ChainError if there was nothing to do."""
    assert game.wallet is not None
    ended = _end_expired(game, job) | _end_delivery(game, job) | _end_phase(game, job)
    chain, account, amount = game.chain, game.wallet.address, 0

    def look() -> tuple[Phase, int]:
        with chain.pinned():
            return game.job(job).phase, game.credits(account)

    # A node that lags may not show yet what a call has credited: it shows another phase too.
    what = f"the job's phase and the credits of {account}"
    phase, owed = max((agreed_soon(chain, what, look) for _ in range(LOOKS)), key=lambda found: found[1])
    if owed:
        pay = lambda: game.send("withdraw", account)  # noqa: E731
        amount = withdraw(game.wallet, game.address, owed, pay, most_answering)
    if not (amount or ended):
        seconds = median_of(chain, lambda: max(_clocks(_state(game, job)), default=OVER))
        left = f" and cannot be ended yet (at least {max(seconds, 0)} s are left)" if seconds > OVER else ""
        raise ChainError(
            f"job {job.hex()[:16]} is {phase.name.lower()}{left}, and the contract owes {account} nothing; see "
            "`vgame status`"
        )
    return phase, amount


def set_delegate(game: Game, job: bytes, account: str, allowed: bool) -> None:
    """As the job's trainer, let an account answer in disputes, or no longer."""
    assert game.wallet is not None
    caller, call = game.wallet.address, ("setDelegate", job, account, allowed)

    def is_set(sent: Sequence[bytes]) -> bool:  # not before a transaction: most accounts are no delegates
        return bool(sent) and game.job(job).trainer == caller and game.is_delegate(job, account) is allowed

    send_until(game.wallet, "setDelegate", lambda: game.send(*call), is_set, most_answering)


def _send(game: Game, effect: Callable[[], bool], name: str, *args: Any, value: int = 0) -> None:
    """Send a call until most of the endpoints that answer show its effect, which may also come from another account's
    transaction. No call used here has its effect twice."""
    assert game.wallet is not None
    send_until(game.wallet, name, lambda: game.send(name, *args, value=value), lambda _: effect(), most_answering)


def _state(game: Game, job: bytes) -> JobState:
    """The job's state, as the endpoint in use shows it."""
    with game.chain.pinned():
        return read_game(game, job)[0]


def _clocks(state: JobState) -> list[int]:
    return [left for left in (state.seconds_left, *(d.seconds_left for d in state.disputes)) if left is not None]


def _over(state: JobState) -> tuple[str, bool]:
    """The phase, and whether its time is over without an effect."""
    return state.phase, state.phase in ("created", "accepted", "claimed") and max(_clocks(state), default=0) < 0


def _end_phase(game: Game, job: bytes) -> bool:
    """End the job if the time of its phase is over without an effect. True if it was."""
    phase, over = agreed(game.chain, "the job's phase and time", lambda: _over(_state(game, job)), most_answering)
    if over:
        name = "finalize" if phase == "claimed" else "expire"
        _send(game, lambda: game.job(job).phase > Phase[phase.upper()], name, job)
    return over


def _end_expired(game: Game, job: bytes) -> bool:
    """End each dispute in which a side is out of time; True if there was one. If the trainer is out of time in a
    dispute, only that one is ended, one of the caller's if there is one: it convicts the trainer, pays its auditor, and
    returns the bonds of all other disputes. A dispute that few endpoints show as another account's is ended only if no
    other dispute is open or can be opened: so a false reply burns no bond of the caller."""
    chain, replies = game.chain, replies_of(game.chain, lambda: _expired(game, job))
    convicts, over, _ = agreed_of(chain, "the disputes out of time", replies, most_answering)
    if convicts:
        _refuse_own_conviction(game, job)
        _send(game, lambda: game.job(job).phase > Phase.CLAIMED, "timeout", job, convicts[0])
        return True
    others = tuple(n for n in over if sum(n in ended and n not in own for _, ended, own in replies) >= most(chain))
    if len(others) < len(over) and not _are_alone(game, job, len(over) - len(others)):
        over = others
    for first in range(0, len(over), BATCH):
        batch = over[first : first + BATCH]
        _send(game, lambda b=batch: _are_ended(game, job, b), "timeoutMany", job, batch)
    return bool(over)


def _are_ended(game: Game, job: bytes, numbers: tuple[int, ...]) -> bool:
    """Are these disputes ended, by themselves or with the claim?"""
    if game.job(job).phase > Phase.CLAIMED:
        return True
    return all(game.dispute(job, number).status is not Status.OPEN for number in numbers)


def _expired(game: Game, job: bytes) -> tuple[tuple[int, ...], tuple[int, ...], frozenset[int]]:
    """The disputes in which the trainer is out of time, the caller's first; those that have lapsed; the caller's among
    these."""
    assert game.wallet is not None
    with game.chain.pinned():
        if (state := game.job(job)).phase is not Phase.CLAIMED:
            return (), (), frozenset()
        found, now = list(game.all_disputes(job, state.disputes)), game.chain.now()
    over = lapsed(game.wallet.address, state, now, found)
    own = {s.number for s in found if s.dispute.auditor == game.wallet.address}
    convicts = sorted((s.number for s in found if s.turn is Turn.TRAINER_EXPIRED), key=lambda n: n not in own)
    return tuple(convicts), tuple(over), frozenset(own.intersection(over))


def _are_alone(game: Game, job: bytes, count: int) -> bool:
    """Do the final states of more than half of the endpoints show a claim with `count` open disputes, and a challenge
    window that is over?"""

    def shown() -> bool:
        final, second = final_jobs(game, [job])
        if final is None or final[0].phase is not Phase.CLAIMED:
            return False
        return final[0].open == count and second > final[0].since + final[0].spec.challenge_window

    return sum(replies_of(game.chain, shown)) >= most(game.chain)


def _end_delivery(game: Game, job: bytes) -> bool:
    """End a delivery whose time is over: without a key the reward is refunded, without a complaint it is paid. True if
    a transaction was sent."""
    call = agreed(game.chain, "the end of the delivery", lambda: _ending(game, job), most_answering)
    if call is None:
        return False
    if call != _unanswered(job):
        _refuse_own_loss(game, job)
    _send(game, lambda: game.job(job).phase not in (Phase.DELIVERING, Phase.REVEALED), *call)
    return True


def _unanswered(job: bytes) -> tuple[Any, ...]:
    """The call by which a key without a complaint is paid."""
    return "closeDelivery", job, int(Phase.REVEALED)


def _ending(game: Game, job: bytes) -> tuple[Any, ...] | None:
    """The call that ends a delivery, as the endpoint in use shows it; None if there is none."""
    if overdue := late_trainer(game, job):
        return overdue
    state = _state(game, job)
    return _unanswered(job) if state.phase == "revealed" and (state.seconds_left or 0) < 0 else None


def _refuse_own_loss(game: Game, job: bytes) -> None:
    """ChainError for the trainer and its delegates, unless the account is also the client: a late key or answer counts
    until a delivery is ended. NotYet if too few endpoints show the account's role."""
    roles, needed = _roles(game, job), most(game.chain)
    if (harmless := sum(client or not role for client, role in roles)) >= needed:
        return
    if harmless == len(roles):
        raise NotYet(
            f"{harmless} of the endpoints show that this account is not the trainer of job {job.hex()[:16]}, {needed} "
            "are needed, so that none decides alone: give other endpoints"
        )
    trainers, delegates = (sum(role == name for _, role in roles) for name in ("trainer", "delegate"))
    raise ChainError(
        f"the trainer of job {job.hex()[:16]} is late with the key or an answer, which still counts until the "
        "delivery is ended, and ending it would refund the client; run "
        f"`vgame trainer{'' if trainers >= delegates else ' --delegate'}` now, with the store of the claim"
    )


def _refuse_own_conviction(game: Game, job: bytes) -> None:
    """ChainError for the trainer and its delegates, also if the trainer is the client: its bond would be lost."""
    if is_of_trainer(game, job):
        raise ChainError(
            f"the trainer of job {job.hex()[:16]} is out of time in a dispute, and ending it would cost its bond: most "
            "endpoints do not show that this account is neither the trainer nor its delegate, so nothing is sent"
        )


def _roles(game: Game, job: bytes) -> list[tuple[bool, str]]:
    """The caller's roles in a job, as each endpoint shows them: is it the client? Is it the "trainer", a "delegate", or
    neither ("")?"""
    assert game.wallet is not None
    caller = game.wallet.address

    def shown() -> tuple[bool, str]:
        state = game.job(job)
        if state.trainer == caller:
            return state.client == caller, "trainer"
        return state.client == caller, "delegate" if game.is_delegate(job, caller) else ""

    return replies_of(game.chain, shown)


def is_of_trainer(game: Game, job: bytes) -> bool:
    """Is the caller the trainer or its delegate? True unless most endpoints show that it is neither."""
    return sum(not role for _, role in _roles(game, job)) < most(game.chain)


def forecast(game: Game, bundle_folder: Path, store_folder: Path) -> Callable[[], dict[str, str]]:
    """A function that returns, for every claimed job with this bundle, the own run root in hex. Abstain unless the own
    run has ended."""
    from vgame.commit.trees import run_tree

    bundle = load_bundle(bundle_folder)
    folder = store_folder / bundle.identity.hex()[:16]
    if not folder.is_dir():
        raise Abstain(
            f"{store_folder} holds no run of this bundle; start `vgame auditor` or `vgame trainer` with it first"
        )
    store = store_of(folder, bundle)
    if store.divergence is None and store.step < bundle.steps:
        raise Abstain(
            f"the run in {store_folder} is at step {store.step} of {bundle.steps}; try again when it has ended"
        )
    root = run_tree(store.roots, len(store.roots), store.log_roots).root.hex()
    ordered: set[bytes] = set()

    def read() -> dict[str, str]:
        claimed = game.claims_of(JobSpec(**bundle.order).program_root)
        new = [job for job in claimed if job not in ordered]
        ordered.update(job for job, s in zip(new, game.jobs(new), strict=True) if is_ordered(game, bundle, job, s))
        return {job.hex(): root for job in claimed if job in ordered}

    return read
