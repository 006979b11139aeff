"""A bonus for a trained state with a high enough total on a test set: the calls of payer, trainer and other accounts
(docs/bonus.md).

In: bundles, runs, an escrow. Out: the order of the evaluation, checked against the promised one; the proof for the
escrow.
"""

from __future__ import annotations

import warnings
from dataclasses import astuple, fields, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch

from vgame.agents.named_jobs import Limits
from vgame.agents.order import find_order
from vgame.agents.staking import why_not_staked
from vgame.agents.times import local_time
from vgame.api import Job, Run, prepare
from vgame.api_evaluation import SIZES, evaluated, evaluation_job, evaluation_task
from vgame.chain.escrow import Bonus, BonusProof, BonusTerms, EscrowContract, Promised, entry_of
from vgame.chain.final import final_jobs
from vgame.chain.records import NOBODY, JobSpec
from vgame.chain.wallet import CALLDATA_CAP
from vgame.commit.merkle import Kind, Tree, tree_height
from vgame.commit.tensor import tensor_root, to_words
from vgame.commit.trees import run_tree
from vgame.delivery.buyer import FAILED
from vgame.errors import Abstain, ChainError, ContractError, NotYet, ProgramError, VgameError
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.job.file import Terms
from vgame.job.terms import INCLUSION, count_moves, trainer_shortcomings
from vgame.runs.logged_store import LoggedStore
from vgame.runs.pace import measure
from vgame.tasks.task import TOTALS, Task

INSIDE = "model."  # name of the trained model inside the module that an evaluation runs
HALF = 2  # the auditor of a dismissed dispute pays half of its bond to the trainer


def integer_totals(task: Task) -> list[str]:
    """The totals of a task's evaluation that are integers."""
    if task.evaluate is None:
        raise ProgramError("the task has no evaluation; write Task(..., evaluate=vgame.Evaluation(...))")
    return [name for name, _ in evaluation_task(task.evaluate, task.model).model.sizes.named_buffers()]


def counting(task: Task, total: str) -> Task:
    """The task with an evaluation that adds up this integer only. A second total that is a float could become
    infinite and end the evaluation, and a payer could arrange that."""
    if total not in (known := integer_totals(task)):
        raise ProgramError(
            f"total = {total!r}: an integer total of the evaluation is expected, one of {', '.join(known) or 'none'}; "
            "count a float as (1000 * x).long().sum()"
        )
    measure = task.evaluate.measure
    return replace(task, evaluate=replace(task.evaluate, measure=lambda m, b: {total: measure(m, b)[total]}))


def untrained_evaluation(task: Task, total: str, training: Bundle, amount: int, validate: float | None = 0) -> Bundle:
    """The evaluation of a training that has not begun. Only its initial state differs from the later evaluation.
    `validate`: as for `vgame.prepare`.

    It has the clocks of the training. Its trainer is paid only by the bonus, and its bond is at least twice the bonus.
    """
    old = training.terms
    bond = max(old.trainer_bond, 2 * amount)
    nothing = dict.fromkeys(("reward", "diverged_pay", "confirm_window", "key_window", "complaint_window"), 0)
    measured = evaluation_task(counting(task, total).evaluate, task.model)
    steps = measured.population // measured.batch
    terms = old.model_copy(update=nothing | {"trainer_bond": bond, "trainer": NOBODY})
    return prepare(Job(measured, steps=steps, interval=min(10, steps), seed=0, terms=terms), validate=validate)


def layout_of(training: Bundle, evaluation: Bundle) -> list[bytes]:
    """The sources of the evaluation's initial state: tensors of the training's final state, or tensors in the
    bundle."""
    places = {label.name: i for i, label in enumerate(training.program.labels.state)}
    entries = []
    for label, tensor in zip(evaluation.program.labels.state, evaluation.state, strict=True):
        name = label.name.removeprefix(INSIDE)
        if label.name.startswith(INSIDE) and name not in places:
            raise ProgramError(
                f"the evaluation reads {name}, which is not in the state of the training; measure the trained model"
            )
        entries.append(entry_of(places[name]) if label.name.startswith(INSIDE) else tensor_root(tensor))
    return entries


def place_of(evaluation: Bundle) -> tuple[int, int]:
    """Indices of the state tensors that hold the total and its size."""
    names = [label.name for label in evaluation.program.labels.state]
    size = next(name for name in names if name.startswith(f"{SIZES}."))
    return names.index(f"{TOTALS}.{size.removeprefix(f'{SIZES}.')}"), names.index(size)


def needed_window(evaluation: Bundle, amount: int) -> int:
    """Seconds until an evaluation is final, also if the payer disputes it. For a longer delay the payer must lose so
    many disputes that the trainer's half of their bonds is at least the bonus."""
    terms, moves = evaluation.terms, count_moves(evaluation)
    crowd = -(-HALF * amount // terms.auditor_bond)
    dispute = terms.trainer_budget + terms.auditor_budget + moves.trainer * terms.slot * crowd
    return terms.claim_window + terms.challenge_window + dispute


def promise(
    escrow: EscrowContract, job: bytes, training: Bundle, task: Task, total: str, least: int, amount: int,
    window: int | None = None, nonce: int = 0, validate: float | None = None,
) -> bytes:  # fmt: skip
    """As a payer: promise `amount` wei to the trainer of a job if the total is at least `least`. ValidationError if the
    evaluation's program does not compute the task's measure."""
    if not 0 < amount < 2**128:
        raise VgameError(f"amount = {amount} wei: more than 0 is expected")
    _check_mark(least)
    _warn_of_delivery(training)
    evaluation = untrained_evaluation(task, total, training, amount, validate)
    _check_earnable(escrow, "this bonus", job, training, evaluation)
    window = needed_window(evaluation, amount) if window is None else window
    terms = BonusTerms(job, window, *place_of(evaluation), least)
    return escrow.open(terms, _template(evaluation), layout_of(training, evaluation), amount, nonce)


def _warn_of_delivery(training: Bundle) -> None:
    """Warn if the training has no delivery. Such a training can be final while only its trainer has the state, and an
    auditor of the evaluation would have to repeat the training."""
    if not training.terms.confirm_window:
        warnings.warn(
            "the training's order has no delivery, so the trained state need not be public when the bonus's window "
            "begins, and a false evaluation may stay undisputed; give its [terms] confirm_window, key_window and "
            "complaint_window",
            stacklevel=3,
        )


def _check_mark(least: int) -> None:
    if type(least) is not int or not -(2**31) <= least < 2**31:
        raise VgameError(f"least = {least!r}: a whole number of 32 bits is expected")


def _template(evaluation: Bundle) -> JobSpec:
    """The order of an evaluation, without initial root and trainer."""
    return replace(JobSpec(**evaluation.order), initial_root=bytes(32), trainer=NOBODY)


def check(escrow: EscrowContract, promised: Promised, training: Bundle, task: Task) -> None:
    """As a trainer, before the work: Abstain unless the bonus is for this training and the task's measure, can be
    earned and paid, and an auditor on this device would dispute a false evaluation in time."""
    _warn_of_delivery(training)
    _, own = _measured(promised, training, task)
    _check_earnable(escrow, f"bonus {promised.id.hex()[:16]}", promised.terms.training, training, own)
    _check_window(promised, own)


def _measured(promised: Promised, training: Bundle, task: Task) -> tuple[str, Bundle]:
    """The total of the bonus, and its evaluation before the training; Abstain if the task measures something else."""
    found: list[list[str]] = []
    for total in integer_totals(task):
        own = untrained_evaluation(task, total, training, promised.amount)
        if not 0 < promised.evaluation.interval <= own.steps:
            raise Abstain(
                f"bonus {promised.id.hex()[:16]}: the interval of its evaluation is {promised.evaluation.interval}, 1 "
                f"to {own.steps} are possible, so no evaluation would be the promised one"
            )
        own = replace(own, interval=promised.evaluation.interval)
        found.append(_differences(promised, training, own))
        if not found[-1]:
            return total, own
    what = ", ".join(min(found, key=len)) if found else "total (the task counts no integer)"
    raise Abstain(f"bonus {promised.id.hex()[:16]} is not for the measure of this task: {what} differ")


def _differences(promised: Promised, training: Bundle, own: Bundle) -> list[str]:
    found, expected = promised.evaluation, _template(own)
    other = [f.name for f in fields(JobSpec) if getattr(found, f.name) != getattr(expected, f.name)]
    other += ["layout"] * (list(promised.layout) != layout_of(training, own))
    return other + ["total"] * ((promised.terms.total, promised.terms.size) != place_of(own))


def _check_earnable(escrow: EscrowContract, name: str, job: bytes, training: Bundle, own: Bundle) -> None:
    """Abstain unless a bonus for a training can be earned and paid: the job orders this training and has not failed,
    its evaluation (`own`) suffices for trainer and auditor on this device, and the proof fits into a transaction. If no
    other auditor disputes a false evaluation, its trainer must: the payer gets its money back if there is no true
    one."""
    if (phase := find_order(escrow.game, training, job).phase) in FAILED:
        raise Abstain(f"{name}: its training, job {job.hex()[:16]}, is {phase.name.lower()}, so nothing can be paid")
    pace = measure(own, Executor(own.program, own.data, own.scalars, own.seed, own.mode))
    why = why_not_staked(own, JobSpec(**own.order), pace, Limits())
    least = max(count_moves(own).auditor * INCLUSION + own.terms.slot, ceil(pace.run(own, 2)))
    if not why and own.terms.challenge_window < least:
        why = f"challenge_window is {own.terms.challenge_window}, at least {least} is needed"
    if why:
        raise Abstain(f"{name}: an auditor would not dispute a false evaluation: {why}")
    if short := trainer_shortcomings(own, pace, sum(escrow.game.chain.fees())):
        raise Abstain(
            f"{name}: a trainer would refuse its evaluation: {'; '.join(short)}; its windows are those of the training"
        )
    if (size := _proof_size(escrow, training, own)) > CALLDATA_CAP:
        raise Abstain(
            f"{name}: its proof has {size:,} bytes, a transaction at most {CALLDATA_CAP:,}; each tensor in the states "
            "of training and evaluation takes 32: it could not be paid"
        )


def _proof_size(escrow: EscrowContract, training: Bundle, own: Bundle) -> int:
    """Bytes of the call that pays, at most."""
    states = [len(bundle.program.labels.state) for bundle in (training, own)]
    runs = [tree_height(bundle.checkpoints) + 1 for bundle in (training, own)]  # one more in mode `logged`
    root, path = bytes(32), [bytes(32)] * tree_height(states[1])
    proof = BonusProof(
        root, [root] * states[1], root, [root] * runs[0], [root] * states[0], root, [root] * runs[1], 0, path, 0, path,
    )  # fmt: skip
    return len(escrow.encoded("pay", root, astuple(proof)))


def _check_window(promised: Promised, own: Bundle) -> None:
    if (least := needed_window(own, promised.amount)) > promised.terms.window:
        raise Abstain(
            f"bonus {promised.id.hex()[:16]}: its window of {promised.terms.window} s is too short, {least} s are "
            "needed: so long an evaluation can be delayed cheaply; ask the payer for a longer window"
        )


def _terms(spec: JobSpec) -> Terms:
    try:
        return Terms(**{name: getattr(spec, name) for name in Terms.model_fields})
    except ValueError as error:
        raise Abstain(f"the game does not accept the terms of the evaluation: {error}") from None


def trainer_of(escrow: EscrowContract, promised: Promised) -> str:
    """The account that has accepted the training, from a final state and the event; NotYet until both show it."""
    found, _ = final_jobs(escrow.game, [promised.terms.training])
    if not found or found[0].trainer == NOBODY:
        raise NotYet(
            f"no final block shows the trainer of the training of bonus {promised.id.hex()[:16]}, and its evaluation "
            "must name that account: prepare the evaluation later"
        )
    trainer = found[0].trainer
    theirs = lambda event: event.args["trainer"] == trainer or None  # noqa: E731
    escrow.game.content("JobAccepted", promised.terms.training, found[0].accepted_at, theirs, key=trainer)
    return trainer


def evaluation_bundle(
    escrow: EscrowContract, promised: Promised, run: Run | Path | str, task: Task, validate: float | None = None
) -> Bundle:
    """The evaluation of a trained run that the bonus requires, to be ordered in the game. Only the trainer of the
    training can accept it. ValidationError if its program does not compute the task's measure."""
    run = run if isinstance(run, Run) else Run.open(run)
    total, own = _measured(promised, run.bundle, task)
    _check_earnable(escrow, f"bonus {promised.id.hex()[:16]}", promised.terms.training, run.bundle, own)
    terms = _terms(replace(promised.evaluation, trainer=trainer_of(escrow, promised)))
    job = evaluation_job(run, counting(task, total), interval=promised.evaluation.interval, terms=terms)
    bundle = prepare(job, validate=validate)
    if astuple(_template(bundle)) != astuple(promised.evaluation):
        raise Abstain("the evaluation of this run is not the promised one; give the run of the bonus's training job")
    return bundle


def proof_of(promised: Promised, job: bytes, run: Run | Path | str, evaluation: Run | Path | str) -> BonusProof:
    """The proof for the escrow, from both runs; `job`: the final evaluation job. StoreError if a run has not ended."""
    run, measured = (r if isinstance(r, Run) else Run.open(r) for r in (run, evaluation))
    evaluated(measured)
    trained, after = (_final_tensors(r) for r in (run, measured))
    states = Tree(Kind.STATE, [tensor_root(t) for t in after])
    opened: list[Any] = []
    for place in (promised.terms.total, promised.terms.size):
        opened += [int(to_words(after[place])[0]), states.path(0, place)]
    roots = [tensor_root(t) for t in trained]
    shown = (Tree(Kind.STATE, roots).root, _final_path(run), roots, states.root, _final_path(measured))
    return BonusProof(job, list(promised.layout), *shown, *opened)


def _final_tensors(run: Run) -> list[torch.Tensor]:
    state = run.start().state
    return [state[label.name].reshape(-1) for label in run.bundle.program.labels.state]


def _final_path(run: Run) -> list[bytes]:
    """Path from the final state to the run root; in mode `logged` the root of its log comes first."""
    store, count = run._store, len(run._store.roots)
    logs = store.log_roots[:count] if isinstance(store, LoggedStore) else None
    path = run_tree(store.roots, count, logs).path(0, count - 1)
    return path if logs is None else [logs[-1], *path]


def pay(
    escrow: EscrowContract, identity: bytes, job: bytes, run: Run | Path | str, evaluation: Run | Path | str
) -> int:
    """Prove that the total is high enough; returns the wei paid to the trainer. Abstain if the evaluation was claimed
    before the bonus's window began."""
    promised = escrow.promised(identity)
    _check_time(escrow, identity, job)
    escrow.send("pay", identity, astuple(proof_of(promised, job, run, evaluation)))
    return promised.amount


def _check_time(escrow: EscrowContract, identity: bytes, evaluation: bytes) -> None:
    """Abstain if the evaluation was claimed before the bonus's window began: auditors may not have had its initial
    state then."""
    bonus, claimed = escrow.bonus(identity), escrow.game.job(evaluation).claimed_at
    if bonus is not None and claimed and (not bonus.since or claimed < bonus.since):
        began = f"began {local_time(bonus.since)}" if bonus.since else "has not begun (`vgame bonus close` begins it)"
        raise Abstain(
            f"evaluation {evaluation.hex()[:16]} was claimed {local_time(claimed)}, but the window of the bonus "
            f"{began}: no bonus is paid for it, because no auditor could check it; order the evaluation again"
        )


def close(escrow: EscrowContract, identity: bytes) -> str:
    """Take the steps of a bonus that are due. Returns `paid`, `returned`, `started` (the window began now, or runs) or
    `waiting` (for the training). Credits of the caller are withdrawn."""
    outcome = _settled(escrow, identity)
    wallet = escrow.game.wallet
    assert wallet is not None
    if escrow.credits(wallet.address):
        escrow.send("withdraw", wallet.address)
    return outcome


def _refuse_own_loss(escrow: EscrowContract, bonus: Bonus) -> None:
    """ChainError for the trainer, once the window is over: its evaluation is paid until the bonus is given back."""
    game, over = escrow.game, bonus.since + bonus.window
    assert game.wallet is not None
    mine = game.wallet.address == game.job(bonus.training).trainer != bonus.payer
    if mine and game.chain.now() > over:
        raise ChainError(
            f"the window of this bonus ended at second {over}; closing it would return the bonus to its payer; run "
            "`vgame bonus pay`, which still counts"
        )


def _settled(escrow: EscrowContract, identity: bytes) -> str:
    bonus = escrow.held(identity)
    if bonus.settled_at:
        return "paid" if bonus.paid else "returned"
    if bonus.since == 0 and escrow.game.job(bonus.training).phase not in FAILED:
        try:
            escrow.send("start", identity)
        except ContractError as error:
            if error.name != "NotTrained":
                raise
            if escrow.game.job(bonus.training).diverged_at == 0:
                return "waiting"
        else:
            return "started"
    if bonus.since:
        _refuse_own_loss(escrow, bonus)
    try:
        escrow.send("giveBack", identity)
    except ContractError as error:
        if error.name != "NotOver":
            raise
        return "waiting" if bonus.since == 0 else "started"
    return "returned"
