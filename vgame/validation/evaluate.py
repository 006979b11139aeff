"""Evaluate a program in binary64, without any rounding to binary32, by plain torch operators.

In: a program, its state, data and scalars at a step, and the wanted operators. Out: their outputs. Independent of the
lowering. For a number in the program, the number before its rounding is used (`Marks`), which must round to its word.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.torch.philox import random_words, shuffle_indices
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Value
from vgame.program.lowering.marks import Marks
from vgame.program.operators import (
    Access,
    ArgMax,
    Contract,
    Copy,
    Gather,
    Map,
    Operator,
    Philox,
    ReduceMax,
    Ref,
    RefClass,
    Shuffle,
    Variant,
    operand_refs,
    operand_types,
)
from vgame.program.program import Program
from vgame.validation.accesses import read
from vgame.validation.budget import Budget

T = torch.Tensor
#: The largest relative perturbation of a result in the search for flips.
STEP, NARROW = 2.0**-52, 2.0**16


class Evaluation:
    """One step of a program. `dtype`: float64, or float32 to measure the effect of rounding; `moved`: seed of random
    relative perturbations up to `part` of every result (up to 2^16 times that for bfloat16 results if `part` is a
    rounding to binary32); `seen` is called with each operator's number and output."""

    def __init__(
        self,
        program: Program,
        marks: Marks,
        data: Sequence[T],
        state: Sequence[T],
        seed: int,
        step: int,
        budget: Budget,
        dtype: torch.dtype = torch.float64,
        moved: int | None = None,
        seen: Callable[[int, T], None] | None = None,
        part: float = STEP,
    ) -> None:
        self.program, self.marks, self.data, self.state = program, marks, data, state
        self.seed, self.step, self.budget, self.dtype = seed, step, budget, dtype
        self.chance = None if moved is None else torch.Generator().manual_seed(moved)
        self.seen, self.part = seen, part
        self.outputs: dict[int, T] = {}

    def wanted(self, refs: Iterable[Ref], given: Mapping[int, T] | None = None) -> dict[Ref, T]:
        """The flat tensors of these refs. `given`: known outputs of operators."""
        refs, given = list(refs), given or {}
        self.outputs, uses = dict(given), self._uses(refs, given)
        try:
            for index in sorted(uses):
                if index in given:
                    continue
                self.budget.check()
                operator = self.program.operators[index]
                self.outputs[index] = self._moved(operator, self._compute(index, operator)).contiguous()
                if self.seen is not None:
                    self.seen(index, self.outputs[index])
                for ref, _, _ in operand_refs(operator):
                    self._used(ref, uses)
            return {ref: self.flat(ref) for ref in refs}
        finally:
            self.outputs = {}

    def _uses(self, refs: Iterable[Ref], given: Mapping[int, T]) -> Counter[int]:
        """Number of reads of each needed operator's output, plus one if it is wanted."""
        uses = Counter(ref.index for ref in refs if ref.cls is RefClass.OPERATOR)
        for index in range(max(uses, default=-1), -1, -1):
            if index in uses and index not in given:
                reads = operand_refs(self.program.operators[index])
                uses.update(ref.index for ref, _, _ in reads if ref.cls is RefClass.OPERATOR)
        return uses

    def _used(self, ref: Ref, uses: Counter[int]) -> None:
        if ref.cls is RefClass.OPERATOR:
            uses[ref.index] -= 1
            if not uses[ref.index]:
                self.outputs.pop(ref.index, None)

    def _moved(self, operator: Operator, result: T) -> T:
        """Perturb the result of a rounding operator. Not perturbed are selections, x * 1 and x + 0 (so that equal
        numbers stay equal) and integers (counts), which are exact."""
        rounds = isinstance(operator, Contract) or getattr(operator, "function", None) in ROUNDING
        narrow = self.part > STEP and getattr(operator, "bfloat16", False)
        if self.chance is None or not (rounds or narrow):
            return result
        part = 2 * torch.rand(result.shape, generator=self.chance, dtype=torch.float64) - 1
        part *= NARROW * self.part if narrow else self.part
        if isinstance(operator, Map) and len(operator.accesses) == 2:
            for access in operator.accesses:
                operand = self._operand(access, operator.sizes, False).expand(operator.sizes).reshape(-1)
                part = torch.where(result == operand, 0.0, part)
        return torch.where(result == result.round(), result, result * (1 + part))

    # ---- operands ----

    def flat(self, ref: Ref) -> T:
        match ref.cls:
            case RefClass.OPERATOR:
                return self.outputs[ref.index]
            case RefClass.STATE:
                return self._number(self.state[ref.index])
            case RefClass.CONSTANT:
                return self._number(_unrounded(self.program.constants[ref.index], self.marks.constants.get(ref.index)))
            case RefClass.DATA:
                return self._number(self.data[ref.index])
            case RefClass.SCALAR:
                return torch.tensor([self.marks.scalars[ref.index](self.step)], dtype=self.dtype)
        raise AssertionError(f"{ref} is no tensor")

    def _number(self, words: T) -> T:
        return words.reshape(-1).to(self.dtype if words.is_floating_point() else torch.int64)

    def value(self, value: Value, flat: Mapping[Ref, T]) -> T:
        """A value of the lowering over the tensors of `wanted`."""
        layout = value.layout
        if value.is_immediate:
            dtype = torch.int64 if value.integer else self.dtype
            return torch.full(layout.shape, self._fill(value.word, value.integer), dtype=dtype)
        return torch.as_strided(flat[value.ref], layout.shape, layout.stride(), layout.storage_offset())

    def _operand(self, access: Access, sizes: tuple[int, ...], integer: bool) -> T:
        fill = self._fill(access.fill, integer)
        if access.ref.cls is RefClass.IMMEDIATE:
            return torch.full((1,) * len(sizes), fill, dtype=torch.int64 if integer else self.dtype)
        if access.ref.cls is RefClass.SCALAR:
            return self.flat(access.ref).view((1,) * len(sizes))
        return read(self.flat(access.ref), access, sizes, fill)

    @staticmethod
    def _fill(word: int, integer: bool) -> float:
        if integer:
            return word - (1 << 32) if word >> 31 else word
        (number,) = struct.unpack(">f", struct.pack(">I", word))
        exact = getattr(word, "exact", number)
        if exact == exact and np.float32(exact) != np.float32(number):
            raise ProgramError(f"the number {exact} of the lowering does not round to the program's {number}")
        return exact

    # ---- operators ----

    def _compute(self, index: int, operator: Operator) -> T:
        match operator:
            case Map():
                types = operand_types(operator)
                pairs = zip(operator.accesses, types, strict=True)
                result = FUNCTIONS[operator.function](*(self._operand(a, operator.sizes, t) for a, t in pairs))
                result = result if operator.integer else result.to(self.dtype)
                return result.expand(operator.sizes).reshape(-1)
            case Copy():
                return self._copy(operator)
            case Contract():
                return self._contract(operator).reshape(-1)
            case Gather():
                return self._gather(operator).reshape(-1)
            case ReduceMax():
                rows = self.flat(operator.operand).view(operator.rows, operator.length)
                return torch.cat([part.amax(1, keepdim=True) for part in rows.split(operator.block, 1)], 1).reshape(-1)
            case ArgMax():
                return self.flat(operator.operand).view(operator.rows, operator.length).argmax(1)
            case Philox():
                return random_words(self.seed, self.step, index, operator.elements, torch.zeros(1)).to(torch.int64)
            case Shuffle():
                count, population = operator.elements, operator.population
                return shuffle_indices(self.seed, self.step, count, population, torch.zeros(1)).to(torch.int64)
        raise AssertionError(f"unknown operator {operator}")

    def _copy(self, operator: Copy) -> T:
        *front, behind = operator.accesses
        result = self._operand(behind, operator.sizes, operator.integer).expand(operator.sizes)
        for access in reversed(front):
            if access.ref.cls is RefClass.IMMEDIATE or access.always_inside(operator.sizes):
                result = self._operand(access, operator.sizes, operator.integer).expand(operator.sizes)
                continue
            ones = torch.ones(access.elements, dtype=torch.int8)
            inside = read(ones, access, operator.sizes, 0) != 0
            result = torch.where(inside, self._operand(access, operator.sizes, operator.integer), result)
        return result.reshape(-1)

    def _contract(self, operator: Contract) -> T:
        batch, m, n, k = operator.batch, operator.m, operator.n, operator.k
        first, second = (1 if operator.shared_a else batch), (1 if operator.shared_b else batch)
        a = self.flat(operator.a)
        if operator.variant is Variant.SUM:
            return a.view(first, m, k).sum(-1).unsqueeze(-1).expand(batch, m, n)
        b = self.flat(operator.b).view(second, n, k)
        if operator.variant is Variant.DOT:
            return torch.matmul(a.view(first, m, k), b.mT).expand(batch, m, n)
        chosen = a.view(first, 1, k)
        chosen = torch.where((chosen >= 0) & (chosen < m), chosen, m).expand(max(first, second), n, k)
        sums = torch.zeros(max(first, second), n, m + 1, dtype=self.dtype)
        return sums.scatter_add_(2, chosen, b.expand(max(first, second), n, k))[..., :m].mT.expand(batch, m, n)

    def _gather(self, operator: Gather) -> T:
        index = self.flat(operator.index)
        table = self.flat(operator.table).view(operator.rows, operator.width)
        valid = (index >= 0) & (index < operator.rows)
        rows = table.index_select(0, torch.where(valid, index, 0))
        fill = self._fill(operator.fill, operator.integer)
        return rows if bool(valid.all()) else torch.where(valid[:, None], rows, fill)


def _unrounded(words: T, exact: T | None) -> T:
    """A constant before its rounding, if it was rounded."""
    if exact is None:
        return words
    if not torch.equal(exact.to(torch.float32), words):
        raise ProgramError("a constant of the lowering does not round to the program's words")
    return exact


def _wrapped(function: Callable[..., T]) -> Callable[..., T]:
    """Modulo 2^32, as a signed word."""
    return lambda *x: ((function(*x) + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def _divided(name: str) -> Callable[[T, T], T]:
    """Floor quotient or modulus; 0 for the divisor 0."""
    compute: Callable[..., T] = torch.remainder if name == "modulus" else torch.floor_divide
    return _wrapped(lambda x, y: torch.where(y == 0, 0, compute(x, torch.where(y == 0, 1, y))))


def _to_integer(x: T) -> T:
    return x.nan_to_num(0.0, 2.0**31, -(2.0**31)).trunc().clamp(-(2.0**31), 2.0**31 - 1).to(torch.int64)


def _truth(function: Callable[..., T]) -> Callable[..., T]:
    return lambda *x: function(*x).to(torch.int64)


_F = Function
ROUNDING = {_F.ADD, _F.SUB, _F.MUL, _F.DIV, _F.SQRT, *ELEMENTARY}
FUNCTIONS: Mapping[Function, Callable[..., Any]] = {
    _F.NEG: torch.neg, _F.ABS: torch.abs, _F.SQRT: torch.sqrt, _F.EXP: torch.exp, _F.EXPM1: torch.expm1,
    _F.LOG: torch.log, _F.LOG1P: torch.log1p, _F.TANH: torch.tanh, _F.ERF: torch.erf, _F.SIGMOID: torch.sigmoid,
    _F.SIN: torch.sin, _F.COS: torch.cos, _F.FLOOR: torch.floor, _F.CEIL: torch.ceil, _F.TRUNC: torch.trunc,
    _F.ROUND: torch.round, _F.CAST: lambda x: x,
    _F.ADD: torch.add, _F.SUB: torch.sub, _F.MUL: torch.mul, _F.DIV: torch.true_divide,
    _F.MAX: lambda x, y: torch.maximum(x, y) + 0.0, _F.MIN: lambda x, y: torch.minimum(x, y) + 0.0,
    _F.FMOD: torch.fmod,
    _F.EQ: _truth(torch.eq), _F.NE: _truth(torch.ne), _F.LT: _truth(torch.lt), _F.LE: _truth(torch.le),
    _F.IADD: _wrapped(torch.add), _F.ISUB: _wrapped(torch.sub), _F.IMUL: _wrapped(torch.mul),
    _F.IDIV: _divided("quotient"), _F.IMOD: _divided("modulus"),
    _F.IAND: torch.bitwise_and, _F.IOR: torch.bitwise_or, _F.IXOR: torch.bitwise_xor,
    _F.ISHL: _wrapped(lambda x, y: x << (y & 31)), _F.ISHR: _wrapped(lambda x, y: (x & 0xFFFFFFFF) >> (y & 31)),
    _F.IMAX: torch.maximum, _F.IMIN: torch.minimum,
    _F.IEQ: _truth(torch.eq), _F.INE: _truth(torch.ne), _F.ILT: _truth(torch.lt), _F.ILE: _truth(torch.le),
    _F.ULT: _truth(lambda x, y: (x & 0xFFFFFFFF) < (y & 0xFFFFFFFF)),
    _F.ITOF: lambda x: x.to(torch.float64), _F.FTOI: _to_integer,
    _F.SELECT: lambda c, x, y: torch.where(c != 0, x, y),
}  # fmt: skip
