"""The differences of two orders, by part: the optimizer, a module, a data tensor, a table of scalars.

In: two bundles. Out: phrases; none if and only if their identities and names are equal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from vgame.commit.tensor import tensor_root
from vgame.job.bundle import Bundle, ordered_differences
from vgame.program.program import Program, TensorLabel

MOST_NAMED = 3
REFERENCE = re.compile(r"Ref\([^)]*\)")  # operator numbers, which shift when an earlier operator is added
OWN = ("optimizer", "data", "clip", "average")  # first words of labels outside modules


def order_differences(order: Bundle, held: Bundle) -> list[str]:
    """Phrases for the differing fields that determine bits, and for differing names."""
    details = {
        "program": lambda: _programs(order.program, held.program),
        "data": lambda: _tensors(order.program.labels.data, order.data, held.program.labels.data, held.data),
        "initial state": lambda: _tensors(
            order.program.labels.state, order.state, held.program.labels.state, held.state
        ),
        "scalars": lambda: _scalars(order, held),
        "seed": lambda: [f"{held.seed}, not {order.seed}"],
        "steps": lambda: [f"{held.steps}, not {order.steps}"],
        "interval": lambda: [f"{held.interval}, not {order.interval}"],
        "mode": lambda: [f"{held.mode}, not {order.mode}"],
    }
    return [f"{part}{_few(details[part]())}" if part in details else part for part in ordered_differences(order, held)]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f" ({', '.join(names[:MOST_NAMED])}{more})" if names else ""


def _programs(order: Program, held: Program) -> list[str]:
    """The parts whose operators differ: the optimizer, data, clipping, averages, modules."""
    first, second = _parts(order), _parts(held)
    other = [part for part in {**first, **second} if first.get(part) != second.get(part)]
    return [f"the {part} differs" if part in OWN else part for part in sorted(other, key=lambda part: part not in OWN)]


def _parts(program: Program) -> Mapping[str, Counter[str]]:
    parts: dict[str, Counter[str]] = {}
    for label, operator in zip(program.labels.operators, program.operators, strict=False):
        first, _, rest = label.partition(" ")
        part = first if first in OWN and (rest or first in ("data", "clip")) else label.removesuffix(" backward")
        parts.setdefault(part, Counter())[REFERENCE.sub("", repr(operator))] += 1
    return parts


def _tensors(
    first: Iterable[TensorLabel],
    ours: Iterable[torch.Tensor],
    second: Iterable[TensorLabel],
    theirs: Iterable[torch.Tensor],
) -> list[str]:
    a, b = _roots(first, ours), _roots(second, theirs)
    return [name for name in {**a, **b} if a.get(name) != b.get(name)]


def _roots(labels: Iterable[TensorLabel], tensors: Iterable[torch.Tensor]) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {l.name: (l.shape, tensor_root(t)) for l, t in zip(labels, tensors, strict=True)}


def _scalars(order: Bundle, held: Bundle) -> list[str]:
    a, b = (dict(zip(x.program.labels.scalars, x.scalars.unbind(1), strict=False)) for x in (order, held))
    return [name for name in {**a, **b} if name not in a or name not in b or not torch.equal(a[name], b[name])]
