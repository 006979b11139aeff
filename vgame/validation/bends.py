"""Choose the steps of an optimizer to compare: a wrong number of a later step is visible only in that step.

In: an optimizer and those that it is coupled with, its schedule, its steps. Out: the steps at which the slope of the
learning rates changes most, and the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vgame.program.coupled import Coupled
from vgame.program.optimizers import has_rule
from vgame.program.play import scheduled

MOST = 3  # bends, each with the step before it
LATEST, PLAYED = 1_000, 50  # last compared step: with a rule, and without one, where all earlier steps are played


def steps_of_rates(
    coupled: Coupled, optimizer: torch.optim.Optimizer, rates: Callable[[int], Sequence[float]] | None, steps: int
) -> set[int]:
    """The steps to compare. `rates`: the learning rate of each group at a step, by the job's schedule."""
    last = min(steps, LATEST if has_rule(optimizer) else PLAYED)
    if coupled.schedulers or not coupled.alone:
        line = [float(groups[0].get("lr", 0.0)) for groups in scheduled(coupled, last)] if coupled.alone else []
        if len(line) < last:  # the numbers depend on more than the schedulers: all steps are played
            return {1, min(2, steps), min(PLAYED, steps)}
    elif rates is not None:
        line = [rates(step)[0] for step in range(1, last + 1)]
    else:
        return {last}
    bends = {t: abs(line[t - 1] - 2 * line[t - 2] + line[t - 3]) for t in range(3, last + 1)}
    most = sorted((t for t, size in bends.items() if size), key=lambda t: -bends[t])[: 2 * MOST]
    return {last, *most, *(t - 1 for t in most)}
