"""Compare the first losses of the user's own training loop with the program's (docs/validation.md).

In: losses as numbers or from a CSV file, and the order. Out: a note for validation.json; ValidationError for the first
loss whose difference exceeds rounding.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import torch

from vgame.errors import ValidationError, VgameError
from vgame.program.operators import Ref, RefClass, Shuffle
from vgame.system.files import read_file
from vgame.validation.budget import Budget, Exhausted
from vgame.validation.evaluate import Evaluation
from vgame.validation.report import Order

T = torch.Tensor
Loss = tuple[float, float]  # (value, half a unit of its last printed digit)
MOST, MOST_BYTES = 20, 1 << 26  # compared losses, bytes of a file
UNIT, NOISE = 2.0**-24, 64.0  # relative error of a rounding to binary32; the bound as a multiple of the spread
PATHS = (None, 1, 2)  # one evaluation without rounding, two with results perturbed by the size of roundings


def losses_of(given: Sequence[float] | str | Path) -> list[Loss]:
    """The first losses, from numbers or a CSV file: one number per line, or a column named `loss`."""
    if isinstance(given, str | Path):
        return _read(Path(given))
    found = [(float(x), 0.0) for x in given][:MOST]
    _check(found, "against")
    return found


def _read(path: Path) -> list[Loss]:
    try:
        text = read_file(path, MOST_BYTES, follow=True).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise VgameError(f"{path} cannot be read: {error}; a CSV file with a column `loss` is expected") from None
    rows = [row for row in csv.reader(text.splitlines()) if row]
    names = [name.strip() for name in rows[0]] if rows else []
    if "loss" in names:
        place = names.index("loss")
        texts = [row[place] if place < len(row) else "" for row in rows[1:]]
    else:
        texts = [",".join(row) for row in rows]
    found = [_number(path, n, text.strip()) for n, text in enumerate(texts[:MOST], 1)]
    _check(found, str(path))
    return found


def _number(path: Path, place: int, text: str) -> Loss:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise VgameError(
            f"{path}: loss {place} is {text!r}; one number per line is expected, or a header with a column `loss`"
        ) from None
    exponent = value.as_tuple().exponent
    return float(value), 0.5 * 10.0**exponent if isinstance(exponent, int) else 0.0


def _check(found: Sequence[Loss], where: str) -> None:
    if not found:
        raise VgameError(f"{where} has no losses; the losses of the first steps of your own loop are expected")
    if wrong := [n for n, (x, _) in enumerate(found, 1) if x - x != 0]:
        raise VgameError(f"{where}: loss {wrong[0]} is {found[wrong[0] - 1][0]}; finite numbers are expected")


def compare_losses(order: Order, theirs: Sequence[Loss], seconds: float) -> dict[str, Any]:
    """Compare losses; returns the note: numbers of losses compared and given, largest ratio of a difference to its
    bound."""
    budget, spread, taken, compared = Budget(seconds), 0.0, 0.0, 0
    paths = zip(*(_losses(order, len(theirs), moved, budget) for moved in PATHS), strict=True)
    try:
        for (loss, unit), (mine, *moved) in zip(theirs, paths, strict=False):
            spread = max(spread, *(abs(x - mine) for x in moved), UNIT * abs(mine))
            bound, far = NOISE * spread + unit, abs(loss - mine)
            compared += 1
            if not far <= bound:
                raise ValidationError(
                    f"step {order.before + compared}: your loop's loss is {loss:.9g}, the program's is {mine:.9g}; "
                    f"rounding explains a difference of at most {bound:.2g}{_hint(order)}"
                )
            taken = max(taken, far / bound if bound else 0.0)
    except Exhausted:
        pass  # the note has the number of losses compared so far
    return {"losses": compared, "given": len(theirs), "share_of_bound": round(taken, 4)}


def _losses(order: Order, count: int, moved: int | None, budget: Budget) -> Iterator[float]:
    """The program's loss of each step. `moved`: perturb results by the size of roundings, with this seed."""
    program, marks, state = order.lowered.program, order.lowered.marks, list(order.state)
    loss, after = Ref(RefClass.OPERATOR, program.loss), [source.ref for source in program.sources]
    for step in range(order.before + 1, min(order.before + count, order.steps) + 1):
        seed = None if moved is None else 1000 * step + moved
        evaluation = Evaluation(
            program, marks, order.lowered.data, state, order.seed, step, budget, moved=seed, part=UNIT
        )
        found = evaluation.wanted([loss, *after])
        yield float(found[loss])
        state = [found[ref] for ref in after]


def _hint(order: Order) -> str:
    """A hint if the job draws from its seed, because a loop in torch cannot draw the same numbers."""
    draws = any(turn.draws and any(turn.draws) for turn in order.lowered.marks.turns)
    shuffles = order.task.weights is not None or order.task.order == "replacement"
    shuffles = shuffles or any(isinstance(operator, Shuffle) for operator in order.lowered.program.operators)
    if not (draws or shuffles):
        return ""
    what = "samples" if shuffles else "random numbers"
    return (
        f"; the job draws its {what} from its seed, so a loop that draws them from torch has other losses: compare "
        'with order="sequential" and without dropout'
    )
