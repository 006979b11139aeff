"""Compare which results are bfloat16. A missing rounding is not visible in binary64, so types are compared separately.

In: the results of the user's operators, the program's tensors of the same step. Out: the first result that only one
side rounds to bfloat16. Results are identified by sums that do not depend on the order of their elements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch

from vgame.arithmetic.functions import Function
from vgame.program.operators import Access, Copy, Gather, Map, Operator, ReduceMax, Ref, RefClass
from vgame.program.program import Program
from vgame.validation.compare import Differs, Tally
from vgame.validation.places import SAME, Result, Sums, is_short, same_sums, sums_of

T = torch.Tensor
STAGE = "bfloat16 results"
WIDE, MOVED, ROUNDED = range(3)  # binary32; bfloat16 words in any type; rounded to bfloat16 by its operator
MOVING = (Function.NEG, Function.ABS, Function.MAX, Function.MIN, Function.SELECT)


class Known:
    """An index of tensors by their numbers, with the kind of each."""

    def __init__(self) -> None:
        self._rows: dict[int, list[tuple[float, Sums, int]]] = defaultdict(list)  # by number of elements
        self._sorted = False

    def add(self, elements: int, sums: Sums, kind: int) -> None:
        self._rows[elements].append((sums[1], sums, kind))

    def kinds(self, result: Result) -> set[int]:
        """The kinds of the tensors with the same numbers as this result."""
        if not self._sorted:
            self._sorted = True
            for row in self._rows.values():
                row.sort(key=lambda each: each[0])
        row, size = self._rows.get(result.elements, ()), result.sums[1]
        place, found = bisect_left(row, size * (1 - 2 * SAME), key=lambda each: each[0]), set()
        while place < len(row) and row[place][0] <= size * (1 + 2 * SAME):
            if same_sums(row[place][1], result.sums):
                found.add(row[place][2])
            place += 1
        return found


class Types:
    """Collects the tensors of a program while they are computed. A tensor is bfloat16 if its operator rounds it, or
    copies such tensors."""

    def __init__(self, program: Program, state: Sequence[T], data: Sequence[T]) -> None:
        self.program, self.known = program, Known()
        given = {RefClass.STATE: state, RefClass.DATA: data, RefClass.CONSTANT: program.constants}
        self._short = {Ref(cls, i): is_short(t) for cls, tensors in given.items() for i, t in enumerate(tensors)}
        for index, operator in enumerate(program.operators):
            short = bool(getattr(operator, "bfloat16", False)) or self._moves(operator)
            self._short[Ref(RefClass.OPERATOR, index)] = short
        for words in (*state, *data):
            if words.is_floating_point() and not is_short(words):
                self.known.add(words.numel(), sums_of(words), WIDE)

    def add(self, index: int, output: T) -> None:
        if output.is_floating_point():
            rounded = getattr(self.program.operators[index], "bfloat16", False)
            moved = MOVED if self._short[Ref(RefClass.OPERATOR, index)] else WIDE
            self.known.add(output.numel(), sums_of(output), ROUNDED if rounded else moved)

    def _moves(self, operator: Operator) -> bool:
        match operator:
            case Map(function=function, accesses=accesses, integer=False) if function in MOVING:
                return self._all_short(accesses[-2:])
            case Copy(accesses=accesses, integer=False):
                return self._all_short(accesses)
            case Gather(table=table, fill=fill, integer=False):
                return self._is_short(table, fill)
            case ReduceMax(operand=operand, integer=False):
                return self._is_short(operand)
        return False

    def _all_short(self, accesses: Iterable[Access]) -> bool:
        return all(self._is_short(access.ref, access.fill) for access in accesses)

    def _is_short(self, ref: Ref, fill: int = 0) -> bool:
        return fill & 0xFFFF == 0 and (ref.cls is RefClass.IMMEDIATE or self._short.get(ref, False))

    def compare_state(self, step: int, tensors: Mapping[str, T]) -> Differs | None:
        """The first parameter or buffer that is bfloat16 in the module but not in the program after a step."""
        for label, source in zip(self.program.labels.state, self.program.sources, strict=True):
            tensor = tensors.get(label.name)
            if tensor is not None and tensor.dtype == torch.bfloat16 and not self._is_short(source.ref):
                detail = "your model keeps it in bfloat16, but the program does not round it"
                return Differs(STAGE, label.name, step, 0.0, 0.0, detail)
        return None

    def compare(self, results: Iterable[Result], step: int, tally: Tally) -> Differs | None:
        """The first result that is bfloat16 on only one side."""
        mine, typed = Known(), [r for r in results if r.type is not None]
        for r in typed:
            mine.add(r.elements, r.sums, ROUNDED if r.type == torch.bfloat16 else WIDE)
        for result in typed:
            ours, theirs = self.known.kinds(result), mine.kinds(result)
            missing, surplus = ROUNDED in theirs and ours == {WIDE}, ours == {ROUNDED} and theirs == {WIDE}
            if missing or surplus:
                who = ("your code", "the program") if missing else ("the program", "your code")
                detail = f"{who[0]} rounds it to bfloat16, {who[1]} does not"
                where = f"; {result.site}" if str(result.site or "") else ""
                return Differs(STAGE, f"the result of {result.name}", step, 0.0, 0.0, detail, where)
            if ours - {WIDE}:
                tally.add(STAGE, 1)
        return None
