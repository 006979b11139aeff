"""Check that a program is valid (docs/formats.md section 3). Agents do this before they put a bond on a job.

In: a program and the sizes of its data. Out: nothing, or one error that names the operator. The largest witness is
computed too: a job with an element that cannot be proven in one transaction is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vgame.arithmetic.functions import Function, arity
from vgame.commit.merkle import tree_height
from vgame.commit.words import LEAF_BYTES, LEAF_WORDS, tensor_height
from vgame.errors import ProgramError, some_of
from vgame.program.modes import MODES
from vgame.program.operators import (
    BROADCAST,
    MAX_BLOCKS,
    Access,
    ArgMax,
    Contract,
    Copy,
    Gather,
    Map,
    Operator,
    ReduceMax,
    Ref,
    RefClass,
    Shuffle,
    Variant,
    operand_refs,
    yields_integer,
)
from vgame.program.program import Program

MAX_ELEMENTS = 2**31 - 1
MAX_RANK = 12
MAX_DIMS = 8
MAX_ACCESSES = 32
MAX_WITNESS = 120_000  # bytes; a public mempool takes transactions up to 128 KiB
BARE = (RefClass.OPERATOR, RefClass.STATE, RefClass.CONSTANT, RefClass.DATA)


@dataclass(frozen=True, slots=True)
class Tensors:
    """Element counts and types of everything that a reference can name."""

    states: Sequence[tuple[int, bool]]
    constants: Sequence[tuple[int, bool]]
    data: Sequence[tuple[int, bool]]
    scalars: int
    operators: Sequence[tuple[int, bool]]

    def find(self, ref: Ref, before: int) -> tuple[int, bool] | None:
        """(elements, integer), or None if the tensor does not exist before operator `before`."""
        if ref.cls is RefClass.SCALAR:
            return (1, False) if ref.index < self.scalars else None
        if ref.cls is RefClass.OPERATOR and ref.index >= before:
            return None
        table = {
            RefClass.OPERATOR: self.operators,
            RefClass.STATE: self.states,
            RefClass.CONSTANT: self.constants,
            RefClass.DATA: self.data,
        }.get(ref.cls, ())
        return table[ref.index] if ref.index < len(table) else None


def tensors_of(program: Program, data: Sequence[tuple[int, bool]]) -> Tensors:
    """Everything that the program's references can name."""
    return Tensors(
        [(s.elements, s.integer) for s in program.sources],
        [(t.numel(), not t.is_floating_point()) for t in program.constants],
        data,
        program.scalars,
        [(_elements(op), op.integer) for op in program.operators],
    )


def validate(program: Program, data: Sequence[tuple[int, bool]], steps: int, mode: str = "correct") -> None:
    """Raise ProgramError unless the program is valid in the mode; `data` is (elements, integer) per data tensor."""
    tensors = tensors_of(program, data)
    _check_sources(program, tensors)
    if len(data) != program.data:
        raise ProgramError(f"the program reads {program.data} data tensors, the data set has {len(data)}")
    if steps * program.scalars > MAX_ELEMENTS:
        raise ProgramError(f"{steps} steps of {program.scalars} scalars are more than {MAX_ELEMENTS} words")
    for problem in undecidable(program, tensors, mode):
        raise ProgramError(problem)


def undecidable(program: Program, tensors: Tensors, mode: str = "correct") -> Iterator[str]:
    """The operators that the referee cannot decide, with reasons."""
    for i, operator in enumerate(program.operators):
        problem = _operator_problem(operator, i, tensors) or _witness_problem(operator, tensors, len(program.operators))
        problem = problem or _mode_problem(operator, mode)
        if problem:
            yield f"operator {program.operator_name(i)}: {problem}"


def _elements(operator: Operator) -> int:
    """Elements of the output; 0 if an empty block leaves them undefined."""
    return 0 if isinstance(operator, ReduceMax) and operator.block < 1 else operator.elements


def _check_sources(program: Program, tensors: Tensors) -> None:
    if not any(s.ref.cls is RefClass.OPERATOR for s in program.sources):
        names = some_of([label.name for label in program.labels.state])
        raise ProgramError(
            f"the program changes no state tensor ({names}): there is nothing to train; unfreeze a parameter: "
            "requires_grad_(True)"
        )
    for t, source in enumerate(program.sources):
        unchanged = source.ref == Ref(RefClass.STATE, t)
        known = tensors.find(source.ref, len(program.operators)) if source.ref.cls is RefClass.OPERATOR else None
        if not unchanged and known != (source.elements, source.integer):
            raise ProgramError(f"state tensor {t} does not come from an operator of its size and type, nor from itself")
    if tensors.find(Ref(RefClass.OPERATOR, program.loss), len(program.operators)) != (1, False):
        raise ProgramError(f"the loss (operator {program.loss}) is not one binary32 word")


def _operator_problem(operator: Operator, index: int, tensors: Tensors) -> str | None:
    if not 1 <= _elements(operator) <= MAX_ELEMENTS:
        return f"{_elements(operator)} elements; 1 to {MAX_ELEMENTS} are allowed"
    for ref, elements, integer in operand_refs(operator):
        if ref == Ref(RefClass.IMMEDIATE):
            continue
        known = tensors.find(ref, index)
        if known is None:
            return f"it reads {ref.cls.name} {ref.index}, which does not exist before it"
        if elements != known[0] and not (ref.cls is RefClass.SCALAR and elements == 1):
            return f"it reads {ref.cls.name} {ref.index} as {elements} elements instead of {known[0]}"
        if integer is not None and integer != known[1]:
            return f"it reads {ref.cls.name} {ref.index} as {'int32' if integer else 'binary32'}, which is not its type"
    return _precision_problem(operator) or _shape_problem(operator)


def _precision_problem(operator: Operator) -> str | None:
    """The problem of an operator's precision: CAST must round to bfloat16; int32 words are never rounded."""
    if not isinstance(operator, Map):
        return None
    if operator.bfloat16 and operator.integer:
        return "its int32 output cannot be bfloat16"
    return "the output of a CAST must be bfloat16" if _is_idle(operator) else None


def _is_idle(operator: Map) -> bool:
    return operator.function is Function.CAST and not operator.bfloat16


def _shape_problem(operator: Operator) -> str | None:
    match operator:
        case Map(function=function, accesses=accesses):
            if len(accesses) != arity(function):
                return f"{len(accesses)} operands; {function.name} takes {arity(function)}"
            if function is not Function.SELECT and operator.integer != yields_integer(function):
                return "the type of its output is not that of its function"
            return _space_problem(operator.sizes, accesses, operator.integer)
        case Copy():
            return _space_problem(operator.sizes, operator.accesses, operator.integer)
        case Contract():
            return _contract_problem(operator)
        case Gather():
            bare = [operator.index, operator.table]
            return _positive(operator.count, operator.width, operator.rows) or _bare(*bare) or _fill(operator)
        case ReduceMax():
            return _positive(operator.rows, operator.length, operator.block) or _bare(operator.operand)
        case ArgMax():
            return _positive(operator.rows, operator.length) or _bare(operator.operand)
        case Shuffle():
            return _positive(operator.population)
    return None


def _positive(*sizes: int) -> str | None:
    return None if all(1 <= n <= MAX_ELEMENTS for n in sizes) else f"a size of {sizes} is out of range"


def _bare(*refs: Ref) -> str | None:
    wrong = [r for r in refs if r.cls not in BARE]
    return f"it reads rows of {wrong[0].cls.name}" if wrong else None


def _fill(operator: Gather) -> str | None:
    return None if operator.integer or _canonical(operator.fill) else "a fill is a NaN other than 0x7fc00000"


def _canonical(word: int) -> bool:
    return word & 0x7FFFFFFF <= 0x7F800000 or word == 0x7FC00000


def _contract_problem(operator: Contract) -> str | None:
    if operator.variant is Variant.SUM and (operator.n != 1 or operator.b != Ref(RefClass.IMMEDIATE)):
        return "a sum has n = 1 and no second operand"
    refs = [operator.a] if operator.variant is Variant.SUM else [operator.a, operator.b]
    return _positive(operator.batch, operator.m, operator.n, operator.k) or _bare(*refs)


def _space_problem(sizes: tuple[int, ...], accesses: tuple[Access, ...], integer: bool) -> str | None:
    if not 1 <= len(sizes) <= MAX_RANK or not 1 <= len(accesses) <= MAX_ACCESSES:
        return (
            f"an index space of rank {len(sizes)} with {len(accesses)} accesses; 1 to {MAX_RANK} and 1 to "
            f"{MAX_ACCESSES} are allowed"
        )
    problems = (_access_problem(sizes, a, integer) for a in accesses)
    return _positive(*sizes) or next((p for p in problems if p), None)


def _access_problem(sizes: tuple[int, ...], access: Access, integer: bool) -> str | None:
    if len(access.dims) > MAX_DIMS or len(access.targets) != len(sizes):
        return (
            f"an access with {len(access.dims)} dimensions and {len(access.targets)} targets; at most {MAX_DIMS} "
            f"dimensions and {len(sizes)} targets are expected"
        )
    if access.ref.cls in (RefClass.IMMEDIATE, RefClass.SCALAR) and access.dims:
        return "an immediate or a scalar has no dimensions"
    if access.ref.cls in BARE and not access.dims:
        return "a tensor is read without dimensions"
    for target, coefficient in access.targets:
        if (target >= len(access.dims) and target != BROADCAST) or (target == BROADCAST and coefficient):
            return f"an access has the target {target} with coefficient {coefficient}"
    if any(not 1 <= d.size <= MAX_ELEMENTS or not 1 <= d.divisor <= MAX_ELEMENTS for d in access.dims):
        return "an operand dimension has a size or divisor out of range"
    if far := [bound for pair in access.bounds(sizes) for bound in pair if abs(bound) > 2**62]:
        return f"an access reaches the coordinate {far[0]}; -2^62 to 2^62 are allowed"
    if not integer and not _canonical(access.fill):
        return "a fill is a NaN other than 0x7fc00000"
    return None


# ---- the largest witness ----


def _opening_bytes(words: int, ref: Ref, tensors: Tensors, elements: int, operators: int) -> int:
    """Bytes of the opening of a run of words: whole leaves (one more, since a run may start inside a leaf), range
    proof, path."""
    leaves = min(-(-words // LEAF_WORDS) + 1, -(-elements // LEAF_WORDS))
    counts = {
        RefClass.OPERATOR: operators,
        RefClass.STATE: len(tensors.states),
        RefClass.CONSTANT: len(tensors.constants),
    }
    outer = tree_height(counts.get(ref.cls, max(len(tensors.data), 1)))
    return leaves * LEAF_BYTES + 32 * (2 * tensor_height(elements) + outer) + 256


def longest_run(operator: Operator) -> int:
    """Longest run of an operand's words that an element (or block) reads in one opening."""
    match operator:
        case Contract():
            return operator.block_length
        case ReduceMax():
            return min(operator.block, operator.length)
        case ArgMax():
            return operator.length
    return 1


def witness_bytes(operator: Operator, tensors: Tensors, operators: int) -> int:
    """Upper bound of the bytes of the operator's most expensive element (or block)."""
    fixed = 1024 + 32 * tree_height(operators)
    runs = []
    for ref, elements, _ in operand_refs(operator):
        if ref.cls is RefClass.IMMEDIATE:
            continue
        size = MAX_ELEMENTS if ref.cls is RefClass.SCALAR else elements  # a table of all steps
        runs.append(_opening_bytes(longest_run(operator), ref, tensors, size, operators))
    if isinstance(operator, Copy):
        runs = [max(runs, default=0)]
        fixed += sum(9 + 12 * len(a.dims) + 5 * len(a.targets) for a in operator.accesses)
    return fixed + sum(runs)


def _witness_problem(operator: Operator, tensors: Tensors, operators: int) -> str | None:
    size = witness_bytes(operator, tensors, operators)
    return (
        None if size <= MAX_WITNESS else f"one element needs a witness of {size:,} bytes; at most {MAX_WITNESS:,} fit"
    )


def _mode_problem(operator: Operator, mode: str) -> str | None:
    limits = MODES[mode]
    if not limits.bfloat16 and getattr(operator, "bfloat16", False):
        return f"its output is bfloat16, which mode `{mode}` does not support; order the job in mode `correct`"
    most = limits.most_terms
    if most is None or not isinstance(operator, Contract) or operator.block_length <= most:
        return None
    return (
        f"a sum of {operator.k:,} terms needs more gas than a transaction may use; at most {MAX_BLOCKS * most:,} terms "
        f"are allowed in mode `{mode}`"
    )
