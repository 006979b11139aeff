"""A bonus for a trained state with a high enough total on a test set: the calls of payer, trainer and other accounts
(docs/bonus.md).

In: bundles, runs, an escrow. Out: the order of the evaluation, checked against the promised one; the proof for the
escrow.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from vgame.agents.bonus_conditions import (
    check_mark,
    check_payable,
    check_range,
    name_of,
    needed_window,
    ordered_bundle,
    template_of,
    terms_of,
    warn_of_delivery,
)
from vgame.agents.client import is_of_trainer
from vgame.agents.times import local_time
from vgame.api import Job, Run, prepare
from vgame.api_evaluation import SIZES, evaluated, evaluation_job, evaluation_task
from vgame.chain.agreed import agreed, median_of
from vgame.chain.connection import FINALITY
from vgame.chain.escrow import Bonus, BonusProof, BonusTerms, EscrowContract, Promised, entry_of, explained
from vgame.chain.final import final_jobs
from vgame.chain.game import LOOKS
from vgame.chain.records import ZERO_ADDRESS, JobSpec, Phase
from vgame.commit.merkle import Kind, Tree
from vgame.commit.tensor import tensor_root, to_words
from vgame.delivery.buyer import FAILED
from vgame.errors import Abstain, ContractError, NotYet, ProgramError, VgameError
from vgame.job.bundle import Bundle
from vgame.tasks.task import TOTALS, Task

MOST_WINDOW = 2**32 - 1  # seconds
MOST_KEPT = 2**32  # bytes of an evaluation's checkpoints, all of which a role keeps
INSIDE = "model."  # name of the trained model inside the module that an evaluation runs


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
    terms = old.model_copy(update=nothing | {"trainer_bond": bond, "trainer": ZERO_ADDRESS})
    kept = max(1, MOST_KEPT // sum(4 * t.numel() for t in (*task.model.parameters(), *task.model.buffers())))
    interval = min(max(10, -(-steps // kept)), steps)
    return prepare(Job(measured, steps=steps, interval=interval, seed=0, terms=terms), validate=validate)


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


def promise(
    escrow: EscrowContract, job: bytes, training: Bundle, task: Task, total: str, least: int, amount: int,
    window: int | None = None, nonce: int = 0, validate: float | None = None, store: Path | str = ".",
) -> bytes:  # fmt: skip
    """As a payer: promise `amount` wei to the trainer of a job if the total is at least `least`. ValidationError if the
    evaluation's program does not compute the task's measure; Abstain if `check` would refuse the bonus."""
    if not 0 < amount < 2**127:  # the bond of the evaluation is twice as much
        raise VgameError(f"amount = {amount} wei: more than 0 and less than 2^127 is expected")
    check_range("nonce", nonce, 0, 2**256 - 1)
    check_mark(least, "the bonus")
    warn_of_delivery(training)
    _check_names(training, task)
    evaluation = untrained_evaluation(task, total, training, amount, validate)
    if window is None and (window := needed_window(evaluation, amount)) > MOST_WINDOW:
        raise VgameError(
            f"the window would be {window} s, {MOST_WINDOW} s are the most: so long can disputes delay the evaluation, "
            f"since the auditor's bond is small beside the bonus; order the training with a larger auditor_bond than "
            f"{evaluation.terms.auditor_bond} wei"
        )
    check_range("window", window, 1, MOST_WINDOW)
    terms, order = BonusTerms(job, window, *place_of(evaluation), least), template_of(JobSpec(**evaluation.order))
    layout = layout_of(training, evaluation)
    assert escrow.game.wallet is not None
    _check_new(escrow, escrow.id_of(terms, order, layout, escrow.game.wallet.address, amount, nonce))
    drafted = Promised(b"", ZERO_ADDRESS, amount, terms, order, tuple(layout))
    check_payable(escrow, drafted, training, evaluation, Path(store))
    return escrow.open(terms, order, layout, amount, nonce)


def _check_new(escrow: EscrowContract, identity: bytes) -> None:
    """ContractError if the bonus exists already: a command that was killed may have opened it. The contract cannot
    report this to a payer whose money no longer suffices for the call."""
    if agreed(escrow.game.chain, "whether this bonus exists", lambda: escrow.exists(identity)):
        raise explained(ContractError("BonusExists", (identity,)))


def check(
    escrow: EscrowContract, promised: Promised, training: Bundle, task: Task, job: bytes | None = None,
    validate: float | None = None, store: Path | str = ".",
) -> str:  # fmt: skip
    """As a trainer, before the work: the name of the bonus's total. Abstain unless the bonus is for the task's measure,
    and can be earned and paid; ValidationError if the evaluation's program does not compute that measure. `job`: the
    one that this trainer wants to accept; an order may have been posted twice."""
    wanted = promised.terms.training
    if job is not None and job != wanted:
        raise Abstain(
            f"{name_of(promised)} is for job {wanted.hex()[:16]}, not for job {job.hex()[:16]}: ask the payer for a "
            "bonus for your job"
        )
    client = agreed(escrow.game.chain, "the client of the training", lambda: escrow.game.job(wanted).client)
    warn_of_delivery(training, promised.payer == client)
    total, own = _measured(promised, training, task)
    check_payable(escrow, promised, training, own, Path(store))
    untrained_evaluation(task, total, training, promised.amount, validate)
    return total


def _measured(promised: Promised, training: Bundle, task: Task) -> tuple[str, Bundle]:
    """The total of the bonus, and its evaluation before the training; Abstain if the task measures something else, or
    the bundle has other names: no root on chain covers them, and they decide which tensors are measured."""
    _check_names(training, task)
    found: list[list[str]] = []
    for total in integer_totals(task):
        own = untrained_evaluation(task, total, training, promised.amount)
        own = replace(own, interval=promised.evaluation.interval)
        found.append(_differences(promised, training, own))
        if not found[-1]:
            return total, own
    what = ", ".join(min(found, key=len)) if found else "total (the task counts no integer)"
    raise Abstain(f"{name_of(promised)} is not for the measure of this task: {what} differ")


def _check_names(training: Bundle, task: Task) -> None:
    own = prepare(Job(task, steps=training.steps, interval=training.interval, seed=training.seed), validate=0)
    names, expected = ([(x.name, x.shape) for x in b.program.labels.state] for b in (training, own))
    if names != expected:
        other = next((a, b) for a, b in zip_longest(names, expected, fillvalue=("nothing", ())) if a != b)
        raise Abstain(
            f"the bundle names a state tensor {other[0][0]} of shape {other[0][1]}, which is {other[1][0]} of shape "
            f"{other[1][1]} in the task, so that another tensor would be measured: take a bundle that you have "
            "prepared from the task"
        )


def _differences(promised: Promised, training: Bundle, own: Bundle) -> list[str]:
    found, expected = promised.evaluation, template_of(JobSpec(**own.order))
    other = [f.name for f in fields(JobSpec) if getattr(found, f.name) != getattr(expected, f.name)]
    other += ["layout"] * (list(promised.layout) != layout_of(training, own))
    return other + ["total"] * ((promised.terms.total, promised.terms.size) != place_of(own))


def _check_begun(bonus: Bonus, identity: bytes) -> None:
    """NotYet if the window of a bonus has not begun in a final state: after a reorganisation it may begin later."""
    if not bonus.since:
        raise NotYet(
            f"the window of bonus {identity.hex()[:16]} has not begun in a final block, and an evaluation that is "
            "claimed before it does not count: begin it with `vgame bonus close` when the training is final, and "
            f"prepare the evaluation {FINALITY // 60} minutes later"
        )


def trainer_of(escrow: EscrowContract, promised: Promised) -> str:
    """The account that has accepted the training, as more than half of the endpoints show it in their final states;
    NotYet until they do."""
    trainer = agreed(escrow.game.chain, "the trainer of the training", lambda: _final_trainer(escrow, promised))
    if trainer == ZERO_ADDRESS:
        raise NotYet(
            f"no final block shows the trainer of the training of bonus {promised.id.hex()[:16]}, and its evaluation "
            "must name that account: prepare the evaluation later"
        )
    return trainer


def _final_trainer(escrow: EscrowContract, promised: Promised) -> str:
    """The trainer in the final state of the endpoint in use, if the event of the acceptance agrees (otherwise NotYet);
    ZERO_ADDRESS if there is none."""
    found, _ = final_jobs(escrow.game, [promised.terms.training])
    if not found or (trainer := found[0].trainer) == ZERO_ADDRESS:
        return ZERO_ADDRESS
    theirs = lambda event: event.args["trainer"] == trainer or None  # noqa: E731
    escrow.game.content("JobAccepted", promised.terms.training, found[0].accepted_at, theirs, key=trainer)
    return trainer


def evaluation_bundle(
    escrow: EscrowContract, promised: Promised, run: Run | Path | str, task: Task, validate: float | None = None,
    early: bool = False,
) -> Bundle:  # fmt: skip
    """The evaluation of a trained run that the bonus requires, to be ordered in the game. Only the trainer of the
    training can accept it. ValidationError if its program does not compute the task's measure. NotYet until the
    bonus's window has begun, since an earlier claim does not count; `early`: at any time."""
    run = run if isinstance(run, Run) else Run.open(run)
    training = ordered_bundle(escrow, promised, run.bundle)
    total, own = _measured(promised, training, task)
    check_payable(escrow, promised, training, own)
    if not early:
        _check_begun(escrow.final(promised.id), promised.id)
    terms = terms_of(replace(promised.evaluation, trainer=trainer_of(escrow, promised)))
    job = evaluation_job(run, counting(task, total), interval=promised.evaluation.interval, terms=terms)
    _check_claimed(escrow, promised.terms.training, run)
    bundle = prepare(job, validate=validate)
    if template_of(JobSpec(**bundle.order)) != promised.evaluation:
        raise Abstain(
            "the evaluation of this run is not the promised one, though the task's is before the training: `measure` "
            "must be the same computation whatever the weights are"
        )
    return bundle


def _check_claimed(escrow: EscrowContract, training: bytes, run: Run) -> None:
    """Abstain if a claim of the training has another root than the run: the evaluation would begin with another
    state."""
    claimed = agreed(escrow.game.chain, "the claim of the training", lambda: escrow.game.job(training).run_root)
    if claimed != bytes(32) and (own := run._store.run_tree.root) != claimed:
        raise Abstain(
            f"{run.folder} is not the run of the training's claim: its root is {own.hex()[:16]}, that of the claim "
            f"{claimed.hex()[:16]}; give the store with which job {training.hex()[:16]} was trained or audited"
        )


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
    paths = [r._store.final_path for r in (run, measured)]
    shown = (Tree(Kind.STATE, roots).root, paths[0], roots, states.root, paths[1])
    return BonusProof(job, list(promised.layout), *shown, *opened)


def _final_tensors(run: Run) -> list[torch.Tensor]:
    state = run.start().state
    return [state[label.name].reshape(-1) for label in run.bundle.program.labels.state]


def pay(
    escrow: EscrowContract, identity: bytes, job: bytes, run: Run | Path | str, evaluation: Run | Path | str
) -> int:
    """Prove that the total is high enough; returns the wei paid to the trainer. Abstain if the evaluation was claimed
    before the bonus's window began."""
    held = agreed(escrow.game.chain, "the bonus", lambda: escrow.held(identity))
    if held.settled_at:
        raise explained(ContractError("NoBonus", (identity,)))
    promised = escrow.promised(identity, held)
    _check_time(escrow, identity, job)
    escrow.pay_by(identity, proof_of(promised, job, run, evaluation))
    return promised.amount


def _check_time(escrow: EscrowContract, identity: bytes, evaluation: bytes) -> None:
    """Abstain if the evaluation was claimed before the bonus's window began: auditors may not have had its initial
    state then."""
    times = lambda: (escrow.held(identity).since, escrow.game.job(evaluation).claimed_at)  # noqa: E731
    since, claimed = agreed(escrow.game.chain, "the times of bonus and evaluation", times)
    if claimed and (not since or claimed < since):
        began = f"began {local_time(since)}" if since else "has not begun (`vgame bonus close` begins it)"
        raise Abstain(
            f"evaluation {evaluation.hex()[:16]} was claimed {local_time(claimed)}, but the window of the bonus "
            f"{began}: no bonus is paid for it, because no auditor could check it; order the evaluation again"
        )


def close(escrow: EscrowContract, identity: bytes) -> str:
    """Take the steps of a bonus that are due. Returns `paid`, `returned`, `started` (the window has begun), `waiting`
    (for the training) or `kept` (for the payer, after a failed training). Credits of the caller are withdrawn. The
    trainer and its delegates return no bonus."""
    wallet = escrow.game.wallet
    assert wallet is not None

    def held() -> tuple[Bonus, int]:
        with escrow.game.chain.pinned():  # a node that lags may show no credits of a bonus that is settled
            return escrow.held(identity), escrow.credits(wallet.address)

    bonus, owed = agreed(escrow.game.chain, "the bonus and what the escrow owes this account", held)
    outcome = _settled(escrow, identity, bonus)
    if owed := owed or _owed(escrow, outcome == "returned" and not bonus.settled_at and wallet.address == bonus.payer):
        escrow.withdraw(owed)
    return outcome


def _settled(escrow: EscrowContract, identity: bytes, bonus: Bonus) -> str:
    if bonus.settled_at:
        return "paid" if bonus.paid else "returned"
    phase, diverged_at = agreed(escrow.game.chain, "the end of the training", lambda: _end_of(escrow, bonus))
    if bonus.since == 0 and phase not in FAILED:
        try:
            escrow.start(identity)
        except ContractError as error:
            if error.name != "NotTrained":
                raise
            if diverged_at == 0:
                return "waiting"
        else:
            return "started"
    if _is_for_caller(escrow, bonus):
        return "started" if bonus.since else "kept"  # only the payer gains by the return; until then `pay` is possible
    try:
        escrow.give_back(identity)
    except ContractError as error:
        if error.name != "NotOver":
            raise
        return "waiting" if bonus.since == 0 else "started"
    return "returned"


def _end_of(escrow: EscrowContract, bonus: Bonus) -> tuple[Phase, int]:
    job = escrow.game.job(bonus.training)
    return job.phase, job.diverged_at


def _owed(escrow: EscrowContract, given: bool) -> int:
    """The caller's credits. `given`: the caller has just returned a bonus to itself; then NotYet if no state shows
    credits, because the money would stay in the escrow."""
    wallet = escrow.game.wallet
    assert wallet is not None
    shown = lambda: median_of(escrow.game.chain, lambda: escrow.credits(wallet.address))  # noqa: E731
    found = max(shown() for _ in range(LOOKS))
    if given and not found:
        raise NotYet(
            f"{escrow.game.chain.url} shows a receipt of `giveBack`, but no credits of {wallet.address}: the endpoint "
            "lags; run `vgame bonus close` again to withdraw them"
        )
    return found


def _is_for_caller(escrow: EscrowContract, bonus: Bonus) -> bool:
    """Is the caller the trainer or its delegate, and not the payer too?"""
    assert escrow.game.wallet is not None
    return escrow.game.wallet.address != bonus.payer and is_of_trainer(escrow.game, bonus.training)
