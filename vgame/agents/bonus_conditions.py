"""The conditions under which a bonus can be earned and paid (docs/bonus.md, "Conditions").

In: an escrow, a promise, the bundles of training and evaluation. Out: Abstain with the first condition that fails.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from vgame.agents.named_jobs import Limits
from vgame.agents.order import find_order
from vgame.agents.staking import why_not_staked
from vgame.chain.agreed import agreed
from vgame.chain.connection import FINALITY
from vgame.chain.escrow import EscrowContract, Promised
from vgame.chain.records import ZERO_ADDRESS, JobSpec, Phase
from vgame.chain.wallet import CALLDATA_CAP
from vgame.commit.merkle import tree_height
from vgame.delivery.buyer import FAILED
from vgame.errors import Abstain, StoreError, VgameError
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.job.file import Terms
from vgame.job.terms import INCLUSION, Pace, count_moves, trainer_shortcomings
from vgame.runs.folder import store_type
from vgame.runs.forecast import refuse_small_disk
from vgame.runs.pace import checkpoint_seconds, measure
from vgame.runs.store import Store

LARGEST = 2**30  # AccuracyEscrow's TOO_LARGE
HALF = 2  # the auditor of a dismissed dispute pays half of its bond to the trainer
#: Words of a proof's calldata beside its lists: id, offset of the proof, its fields, and the lengths of six lists.
PROOF_WORDS = 2 + 11 + 6


def check_payable(
    escrow: EscrowContract, promised: Promised, training: Bundle, evaluation: Bundle, store: Path | None = None
) -> None:
    """Abstain unless the bonus can be earned and paid. `evaluation`: of the untrained state, with the interval of the
    promise. `store`: a folder on the disk of the role's store, given before the work; then this device is measured, and
    the terms of the evaluation are checked too. `promise`, `check` and `prepare` call this."""
    _check_held(escrow, promised)
    _check_training(escrow, promised, training)
    _check_interval(promised, evaluation)
    check_mark(promised.terms.least, name_of(promised))
    _check_size(promised, training, evaluation)
    if store is not None:
        pace = _measure(evaluation, store)
        _check_disputes(promised, evaluation, pace)
        _check_terms(promised, evaluation, pace, sum(escrow.game.chain.fees(of_all=True)))
        _check_window(promised, evaluation)


def _measure(evaluation: Bundle, store: Path) -> Pace:
    """The pace of this device with that disk; StoreError if a role's run of the evaluation does not fit the disk."""
    executor = Executor(evaluation.program, evaluation.data, evaluation.scalars, evaluation.seed, evaluation.mode)
    try:
        made = TemporaryDirectory(prefix=".measured-", dir=store)
    except OSError as error:
        raise StoreError(
            f"{store}: {error.strerror}; the folder of the role's store is expected, or another one on its disk "
            "(--store), for measuring a checkpoint there"
        ) from None
    with made as folder:
        refuse_small_disk(Store(Path(folder), evaluation), executor)
        pace = measure(evaluation, executor)
        return replace(pace, checkpoint=checkpoint_seconds(Path(folder), evaluation))


def name_of(promised: Promised) -> str:
    return f"bonus {promised.id.hex()[:16]}" if promised.id else "the bonus"


def _check_held(escrow: EscrowContract, promised: Promised) -> None:
    if promised.id and escrow.final(promised.id).settled_at:
        raise Abstain(f"{name_of(promised)} is settled; `vgame bonus close` prints the outcome")


def ordered_bundle(escrow: EscrowContract, promised: Promised, stored: Bundle) -> Bundle:
    """The bundle of a stored run with the terms of the bonus's training: the run may have begun for another order, and
    its files keep the terms of that order."""
    training = promised.terms.training
    spec = agreed(escrow.game.chain, "the training's order", lambda: escrow.game.job(training).spec)
    return replace(stored, terms=terms_of(spec), depth=spec.depth)


def _check_training(escrow: EscrowContract, promised: Promised, training: Bundle) -> None:
    """Abstain unless the bonus is for a job of this bundle that can still end with a trained state."""
    identity = promised.terms.training
    try:
        find_order(escrow.game, training, identity)
    except Abstain:
        raise Abstain(
            f"{name_of(promised)} is for job {identity.hex()[:16]}, whose order is not this bundle, and only the "
            "trainer of that job is paid: give its bundle, or ask the payer for a bonus for your job"
        ) from None
    ends = lambda: (escrow.game.job(identity).phase, escrow.game.job(identity).diverged_at)  # noqa: E731
    phase, diverged = agreed(escrow.game.chain, "the end of the training", ends)
    if phase in FAILED or (phase is Phase.FINAL and diverged):
        outcome = "diverged" if diverged else phase.name.lower()
        raise Abstain(
            f"{name_of(promised)} is for job {identity.hex()[:16]}, which has ended without a trained state "
            f"({outcome}), so it is never paid: ask the payer for a bonus for a new order"
        )


def _check_interval(promised: Promised, evaluation: Bundle) -> None:
    if not 1 <= (interval := promised.evaluation.interval) <= evaluation.steps:
        raise Abstain(
            f"{name_of(promised)}: the interval of its evaluation is {interval}, 1 to {evaluation.steps} (the steps) "
            "is expected: no such evaluation can be ordered; ask the payer for another bonus"
        )


def check_mark(least: int, name: str) -> None:
    """The contract pays only if the total's size, which is the total's maximum, is below LARGEST."""
    if type(least) is not int or not -LARGEST < least < LARGEST:
        raise Abstain(
            f"{name}: its mark is {least!r}, but a whole number above -2^30 and below 2^30 is expected: no other total "
            "is paid"
        )


def proof_size(training: Bundle, evaluation: Bundle) -> int:
    """Bytes of calldata of the escrow's `pay`."""
    states = [len(b.program.sources) for b in (training, evaluation)]
    paths = sum(store_type(b).path_length(b) for b in (training, evaluation)) + 2 * tree_height(states[1])
    return 4 + 32 * (PROOF_WORDS + sum(states) + paths)


def _check_size(promised: Promised, training: Bundle, evaluation: Bundle) -> None:
    if (size := proof_size(training, evaluation)) > CALLDATA_CAP:
        raise Abstain(
            f"{name_of(promised)}: its proof has {size:,} bytes, {CALLDATA_CAP:,} are the most in a transaction, so it "
            f"cannot be paid: training and evaluation have {len(training.program.sources):,} and "
            f"{len(evaluation.program.sources):,} state tensors; use a model with fewer tensors"
        )


def _check_disputes(promised: Promised, own: Bundle, pace: Pace) -> None:
    """Abstain unless this device can dispute a false evaluation. If no other auditor does, this trainer must: the payer
    gets its money back if there is no true evaluation. The auditor prepares the evaluation from a final state that
    shows the trainer; an evaluation that counts ends no sooner than two challenge windows after the acceptance."""
    why = why_not_staked(own, JobSpec(**own.order), pace, Limits())
    dispute = count_moves(own).auditor * INCLUSION + own.terms.slot + int(pace.run(own, 1))
    least = max(dispute, -(-(FINALITY + dispute) // 2))
    if not why and own.terms.challenge_window < least:
        why = f"challenge_window is {own.terms.challenge_window}, at least {least} is needed"
    if why:
        raise Abstain(f"{name_of(promised)}: an auditor would not dispute a false evaluation: {why}")


def _check_terms(promised: Promised, own: Bundle, pace: Pace, gas_price: int) -> None:
    """Abstain if `vgame trainer` would refuse the evaluation on this device."""
    if short := trainer_shortcomings(own, pace, gas_price):
        raise Abstain(
            f"{name_of(promised)}: `vgame trainer` would refuse its evaluation of {own.steps} steps, {pace.step:.2f} s "
            f"each and {pace.checkpoint:.2f} s a checkpoint on this device: {'; '.join(short)}. The evaluation has "
            "the terms of the training: order that with larger ones"
        )


def needed_window(evaluation: Bundle, amount: int) -> int:
    """Seconds until an evaluation is final and shown, also if the payer disputes it. For a longer delay the payer must
    lose so many disputes that the trainer's half of their bonds is at least the bonus. Three times a state has to
    become final: before `vgame trainer` ends, for the training and for the evaluation, and before `prepare` begins."""
    terms, moves = evaluation.terms, count_moves(evaluation)
    crowd = -(-HALF * amount // terms.auditor_bond)
    dispute = terms.trainer_budget + terms.auditor_budget + moves.trainer * terms.slot * crowd
    return terms.claim_window + terms.challenge_window + dispute + 3 * FINALITY


def _check_window(promised: Promised, own: Bundle) -> None:
    if (least := needed_window(own, promised.amount)) > promised.terms.window:
        raise Abstain(
            f"{name_of(promised)}: its window of {promised.terms.window} s is too short, {least} s are needed: so long "
            "an evaluation can be delayed cheaply; ask the payer for a longer window"
        )


def terms_of(spec: JobSpec) -> Terms:
    """The terms of an order; Abstain if the game does not accept them."""
    try:
        return Terms(**{name: getattr(spec, name) for name in Terms.model_fields})
    except ValueError as error:
        raise Abstain(f"the game does not accept the terms of the order: {error}") from None


def template_of(spec: JobSpec) -> JobSpec:
    """An evaluation's order without initial root and trainer, as a bonus promises it."""
    return replace(spec, initial_root=bytes(32), trainer=ZERO_ADDRESS)


def check_range(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise VgameError(f"{name} = {value!r}: a whole number from {least} to {most} is expected")


def warn_of_delivery(training: Bundle, by_client: bool = False) -> None:
    """Warn if the training has no delivery: it can be final while only its trainer has the state, and an auditor of the
    evaluation would have to repeat the training. With delivery a client that pays the bonus too (`by_client`) saves it
    by declining."""
    if training.terms.confirm_window and by_client:
        warnings.warn(
            "the client of the training pays this bonus, and can decline the delivery: then the bonus returns to it, "
            "and the trainer has a quarter of the reward (docs/delivery.md)",
            stacklevel=3,
        )
    if not training.terms.confirm_window:
        warnings.warn(
            "the training's order has no delivery, so the trained state need not be public when the bonus's window "
            "begins, and a false evaluation may stay undisputed; give its [terms] confirm_window, key_window and "
            "complaint_window",
            stacklevel=3,
        )
