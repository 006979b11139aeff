"""The mode `logged` as a rounding mode: Algorithm 1 (the trainer records) and Algorithm 2 (the auditor follows), every
operator of a step.

In: a program, bits, a window per sum operator; for an auditor the step's entries. Out: the same values on both sides,
the trainer's entries, the auditor's corrections. Devices differ in sums only; every other operator has one binary64
value on all IEEE devices (elementary functions are our own code), so it needs no entry: its RN_b, rounded once.
Operators that select or move values do not round.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.indexed_matrix import IndexedMatrix, Matrix, PlacedMatrix
from vgame.arithmetic.torch import elementary
from vgame.arithmetic.torch.products import unfolded
from vgame.errors import VgameError
from vgame.execute.executor import Executor, StepResult, Tap
from vgame.execute.kernels import Correct
from vgame.logged import products, row_sums
from vgame.logged.admissible import Enclosure
from vgame.logged.compiled_moments import moments
from vgame.logged.rounding import Direction, round_tensor
from vgame.logged.spec import PROVEN
from vgame.logged.sums import Entries, Site
from vgame.program.operators import Contract
from vgame.program.program import Program
from vgame.system.threads import Runner, each

StepEntries = Mapping[int, Entries]  # by operator
Enclose = Callable[[int], Enclosure | None]  # by flat position
Look = Callable[[int, Tensor, Tensor, Tensor], None]  # (operator, positions, sums, bounds)

WIDE: dict[Function, Callable[..., Tensor]] = {
    Function.SQRT: lambda x: x.sqrt_(),
    Function.ADD: torch.add,
    Function.SUB: torch.sub,
    Function.MUL: torch.mul,
    Function.DIV: torch.div,
}


NARROW = "validity refuses bfloat16 in this mode"


class TamperedLog(VgameError):
    """A log entry changes a value that the arithmetic determines. The verdict is "cheated"."""

    exit_code = 2


@dataclass(slots=True)
class Tally:
    """Counts of steps, by operator: corrections, elements summed exactly, entries followed or made."""

    corrections: dict[int, int] = field(default_factory=dict)
    exact: dict[int, int] = field(default_factory=dict)
    entries: dict[int, int] = field(default_factory=dict)

    def add(self, operator: int, site: Site, entries: int) -> None:
        """Count one sum operator of one step."""
        for counts, number in (
            (self.corrections, len(site.corrections)),
            (self.exact, site.exact),
            (self.entries, entries),
        ):
            counts[operator] = counts.get(operator, 0) + number


def sum_operators(program: Program) -> tuple[int, ...]:
    """The operators that may have entries, in program order: contractions of more than one term."""
    return tuple(i for i, op in enumerate(program.operators) if isinstance(op, Contract) and op.k > 1)


class Logged(Correct):
    """Kernels of one run. The executor calls one sum kernel per contraction, in program order."""

    def __init__(self, program: Program, bits: int, windows: Mapping[int, float]) -> None:
        self.fuses = bits == 32  # then maps round as in mode `correct`
        self.program, self.bits, self.windows, self.tally = program, bits, windows, Tally()
        #: Hooks for measurements: receive the sums of every operator; receive the enclosure of an element.
        self.look: Look | None = None
        #: Whether an inadmissible entry is an error; if not, the entry is ignored.
        self.strict = True
        self.survey: Callable[[int, Enclose], None] | None = None
        self._contractions: Sequence[int] = [i for i, op in enumerate(program.operators) if isinstance(op, Contract)]
        self.begin(0, None)

    def begin(self, step: int, given: StepEntries | None) -> None:
        """Begin a step: to be recorded, or with the entries to follow."""
        self.step, self.given, self.made, self._next = step, given, {}, 0

    def map(self, function: Function, *operands: Tensor, bfloat16: bool = False) -> Tensor:
        assert not bfloat16, NARROW
        if self.bits == 32:  # these functions, rounded from binary64, are correctly rounded: 53 >= 2 * 24 + 2
            return super().map(function, *operands)
        if function in ELEMENTARY:
            return self._elementary(function, *operands)
        if function in WIDE:
            return round_tensor(WIDE[function](*(x.double() for x in operands)), self.bits)
        result = super().map(function, *operands)
        return round_tensor(result.double(), self.bits) if function in (Function.ITOF, Function.FMOD) else result

    def _elementary(self, function: Function, x: Tensor) -> Tensor:
        flat = x.contiguous().view(-1)
        if x.device.type != "cpu":
            return round_tensor(elementary.evaluate_wide(function, flat), self.bits).view(x.shape)
        from vgame.arithmetic.numba import elementary as elementary_kernel

        wide = torch.empty(flat.shape, dtype=torch.float64)
        elementary_kernel.fill(function, flat.numpy(), wide.numpy())
        return round_tensor(wide, self.bits).view(x.shape)

    @property
    def _current(self) -> Contract:
        """The next contraction. Each of its batches has entries of its own, even if all have the same operands."""
        return self.program.operators[self._contractions[self._next]]

    def dot(self, a: Matrix, b: Matrix, run: Runner = each, bfloat16: bool = False, halves: bool = False) -> Tensor:
        """Computed at once, not by `run`: entries are made in program order."""
        assert not bfloat16, NARROW
        a, b = (unfolded(x) if isinstance(x, PlacedMatrix) else x for x in (a, b))
        if max(a.shape[0], b.shape[0]) < self._current.batch:
            a = unfolded(a).expand(self._current.batch, -1, -1)
        return self._sum(lambda site: products.dot(a, b, site), lambda flat: self._enclose_product(a, b, flat))

    def sum_rows(self, a: Matrix, bfloat16: bool = False) -> Tensor:
        assert not bfloat16, NARROW
        a = unfolded(a)[0]
        if a.shape[0] < self._current.batch * self._current.m:
            a = a.repeat(self._current.batch, 1)
        return self._sum(lambda site: row_sums.sum_rows(a, site), lambda flat: self._enclose(a[flat]))

    def one_hot_sum(self, index: Tensor, b: Tensor, m: int, bfloat16: bool = False) -> Tensor:
        assert not bfloat16, NARROW
        if max(len(index), len(b)) < self._current.batch:
            index = index.expand(self._current.batch, -1)

        def enclose(flat: int) -> Enclosure | None:
            batch, j, n = flat // (m * b.shape[1]), flat // b.shape[1] % m, flat % b.shape[1]
            chosen = _batch(index, batch) == j
            return self._enclose(_batch(b, batch)[n][chosen], length=b.shape[2])

        return self._sum(lambda site: row_sums.one_hot_sum(index, b, m, site), enclose)

    def _enclose_product(self, a: Tensor | IndexedMatrix, b: Tensor | IndexedMatrix, flat: int) -> Enclosure | None:
        rows, columns = a.shape[1], b.shape[1]
        batch, m, n = flat // (rows * columns), flat // columns % rows, flat % columns
        return self._enclose(_row(a, batch, m), _row(b, batch, n))

    def _enclose(self, x: Tensor, y: Tensor | None = None, length: int | None = None) -> Enclosure | None:
        """The enclosure of sum_k x[k] y[k], or of sum_k x[k]; `length`: K in the program, if only some terms were
        selected."""
        found = moments(x, torch.ones_like(x) if y is None else y)
        return found and found.enclosure(length or x.numel(), self.bits)

    def _sum(self, compute: Callable[[Site], Tensor], enclose: Enclose) -> Tensor:
        operator = self._contractions[self._next]
        self._next += 1
        given = None if self.given is None else self.given.get(operator, Entries())
        look = self.look and (lambda positions, s, e: self.look(operator, positions, s, e))
        site = Site(self.bits, self.windows.get(operator, PROVEN), given, look)
        if given is not None and len(given):
            self._refuse_outside(operator, given)
        out = compute(site)
        if given is None:
            entries = site.entries()
            if len(entries):
                self.made[operator] = entries
        else:
            entries = given
            self._judge(operator, site, enclose, out)
        self.tally.add(operator, site, len(entries))
        if self.survey:
            self.survey(operator, enclose)
        return out

    def _refuse_outside(self, operator: int, given: Entries) -> None:
        if int(given.positions[-1]) >= self.program.operators[operator].elements or int(given.positions[0]) < 0:
            raise TamperedLog(
                f"step {self.step}, operator {self.program.operator_name(operator)}: the log has an entry beyond its "
                "elements"
            )

    def _judge(self, operator: int, site: Site, enclose: Enclose, out: Tensor) -> None:
        """Decide doubtful entries by integers; all other entries are right by construction."""
        if site.refused:
            self._refuse(operator, site.refused[0], site.given.direction(site.refused[0]))
        for position in [*site.doubtful, *(site.beside if self.strict else [])]:
            enclosure, entry = enclose(position), site.given.direction(position)
            if enclosure is None:
                continue
            if not enclosure.allows(entry):
                self._refuse(operator, position, entry)
                entry = Direction.NONE
            out.view(-1)[position] = _value(enclosure.end(entry))

    def _refuse(self, operator: int, position: int, entry: Direction) -> None:
        if self.strict:
            raise TamperedLog(
                f"step {self.step}, operator {self.program.operator_name(operator)}, element {position}: the log has "
                f"{entry.name.lower()}, but the arithmetic does not admit it: the log was tampered with"
            )


def _value(word: int) -> float:
    """The binary32 value of a word."""
    return struct.unpack("<f", struct.pack("<I", word))[0]


def _batch(x: Tensor, batch: int) -> Tensor:
    return x[0 if x.shape[0] == 1 else batch]


def _row(x: Tensor | IndexedMatrix, batch: int, row: int) -> Tensor:
    if isinstance(x, IndexedMatrix):
        one = slice(batch, batch + 1) if len(x.rows) > 1 else slice(0, 1)
        return x.tile(one, slice(row, row + 1)).whole()[0, 0]
    return _batch(x, batch)[row]


class LoggedExecutor(Executor):
    """Steps in mode `logged`: those whose entries are known are followed, the others recorded."""

    def __init__(
        self, program, data, scalars, seed: int, bits: int, windows: Mapping[int, float], device: str = "cpu"
    ) -> None:
        super().__init__(program, data, scalars, seed, device=device)
        self.kernels = Logged(program, bits, windows)
        #: Entries of a step, None if it is to be recorded.
        self.read: Callable[[int], StepEntries | None] = lambda step: None
        #: Entries of recorded steps that have not been taken yet.
        self.made: dict[int, StepEntries] = {}

    def step(self, step: int, state: Sequence[Tensor], tap: Tap | None = None) -> StepResult:
        given = self.read(step)
        self.kernels.begin(step, given)
        result = super().step(step, state, tap)
        if given is None:
            self.made[step] = self.kernels.made
        return result
