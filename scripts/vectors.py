"""Known-answer vectors for tests/vectors/, written by the slow reference alone (integers, Fractions, mpmath, hashlib).

In: nothing. Out: a JSON file for each name in FILES (content: docs/formats.md section 8).
`--check` writes nothing and fails if a file differs from the reference's results.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Callable
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vectors_job import hexed, job, scalars

from vgame.arithmetic.functions import BINARY_F, COMPARE_F, UNARY_F, Function, arity
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.reference import sums as reference_sums
from vgame.arithmetic.reference.philox import philox, random_word, shuffle_index
from vgame.commit.merkle import Kind, Tree, leaf_hash, padding
from vgame.commit.tensor import from_words
from vgame.commit.words import words_tree
from vgame.execute.reference import Position, evaluate
from vgame.program import operators as op
from vgame.program.file import encode_program
from vgame.program.operators import Access, Dim, Ref, RefClass
from vgame.program.program import Program, Source
from vgame.program.schedule import Schedule, to_binary32

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "vectors"
SEED, STEPS = 0x0123456789ABCDEF, 2
#: Zeros, subnormals, the ends of the normal range, ties of ROUND and FTOI, infinities, NaN.
FLOATS = [
    0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F000000, 0x3F800000, 0xBF800000, 0x40200000,
    0xC0490FDB, 0x4F000000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000,
]  # fmt: skip
INTEGERS = [0, 1, 2, 7, 31, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFF9, 0xFFFFFFFE, 0xFFFFFFFF]
GRID_FLOATS, GRID_INTEGERS = FLOATS[1::2], INTEGERS[1::2]


def little(words: list[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


# ---- trees ----


def trees() -> dict[str, Any]:
    """Tensors of 1 to 900 words, trees of 0 to 9 leaves in every kind."""
    leaves = [sha256(bytes([i])).digest() for i in range(9)]
    counts = (0, 1, 2, 3, 5, 8, 9)
    return {
        "leaf": [{"kind": k, "content": "0102", "hash": leaf_hash(k, b"\1\2").hex()} for k in Kind],
        "padding": [{"kind": k, "hash": padding(k, 0).hex()} for k in Kind],
        "leaves": [leaf.hex() for leaf in leaves],
        "trees": [{"kind": k, "count": n, "root": Tree(k, leaves[:n]).root.hex()} for k in Kind for n in counts],
        "paths": [_path(Tree(Kind.TRACE, leaves[:n]), i) for n in counts if n for i in range(n)],
        "ranges": [_range(Tree(Kind.TENSOR, leaves[:n]), f, l) for n in (5, 9) for l in range(n) for f in range(l + 1)],
        "tensors": [_tensor(n) for n in (1, 127, 128, 129, 300, 900)],
    }


def _path(tree: Tree, index: int) -> dict[str, Any]:
    siblings = [node.hex() for node in tree.path(0, index)]
    return {"kind": tree.kind, "count": tree.count, "index": index, "siblings": siblings}


def _range(tree: Tree, first: int, last: int) -> dict[str, Any]:
    siblings = [node.hex() for node in tree.range_proof(first, last)]
    return {"kind": tree.kind, "count": tree.count, "first": first, "last": last, "siblings": siblings}


def _tensor(elements: int) -> dict[str, Any]:
    """Word i is i * 0x01010101 mod 2^32 of int32."""
    words = [i * 0x01010101 & 0xFFFFFFFF for i in range(elements)]
    return {"elements": elements, "root": words_tree(little(words)).root.hex()}


# ---- functions, random words, sums ----


def operand_words(function: Function) -> list[list[int]]:
    """The words to draw each operand from."""
    if function is Function.SELECT:
        return [[0, 1, 0xFFFFFFFF], FLOATS[:2], FLOATS[-2:]]
    floats = function in UNARY_F | BINARY_F | COMPARE_F or function is Function.FTOI
    return [FLOATS if floats else INTEGERS] * arity(function)


def functions() -> dict[str, Any]:
    """Per function its code and, for all tuples of the operands' words, the result, and that of a bfloat16 output."""
    found = {}
    for f in Function:
        tuples = list(product(*operand_words(f)))
        found[f.name] = {
            "code": f,
            "operands": [hexed(words) for words in operand_words(f)],
            "results": hexed([reference.evaluate(f, *t) for t in tuples]),
        }
        if not op.yields_integer(f):
            found[f.name]["bfloat16"] = hexed([reference.evaluate(f, *t, bits=8) for t in tuples])
    return found


def randomness() -> dict[str, Any]:
    """Philox blocks (the first three are those of the paper's own tests), PHILOX words and shuffles."""
    ones, pi = (0xFFFFFFFF,) * 4, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    blocks = [((0,) * 4, (0, 0)), (ones, ones[:2]), (pi, (0xA4093822, 0x299F31D0))]
    words = [(SEED, s, o, e) for s in (1, 2**32 + 1) for o in (0, 7) for e in (0, 1, 3, 4, 1000)]
    shuffles = [(SEED, s, 4, n) for s in (1, 2, 5) for n in (1, 2, 10, 1797)]
    return {
        "philox": [{"counter": hexed(c), "key": hexed(k), "words": hexed(philox(c, k))} for c, k in blocks],
        "words": [
            dict(zip(("seed", "step", "operator", "element"), w, strict=True), word=random_word(*w)) for w in words
        ],
        "shuffle": [
            {
                "seed": x,
                "step": s,
                "elements": n,
                "population": p,
                "out": [shuffle_index(x, s, i, n, p) for i in range(n)],
            }
            for x, s, n, p in shuffles
        ],
    }


def sums() -> list[dict[str, str]]:
    """Rows whose sums need all 768 bits, cancel, overflow, or are NaN."""
    largest, least, one = 0x7F7FFFFF, 1, 0x3F800000
    rows = [
        ([one], [one]),
        ([largest, least], [largest, least]),
        ([largest, largest | 1 << 31, least], [largest, largest, one]),
        ([largest, largest], [one, one]),
        ([0x80000000], [one]),
        ([0x7F800000, one], [one, one]),
        ([0x7F800000, 0xFF800000], [one, one]),
        ([0x7F800000], [0]),
        ([0x7FC00000], [one]),
        ([0x33800000, one], [one, one]),
        ([0x33800000, one, least], [one, one, least]),
        ([0x3F808000, least], [one, one | 1 << 31]),
        ([0x3F818000], [one]),
    ]
    partials = [(a, b, reference_sums.partial_dot(a, b)) for a, b in rows]
    return [
        {
            "a": hexed(a),
            "b": hexed(b),
            "partial": p.encode().hex(),
            "word": f"{p.round():08x}",
            "bfloat16": f"{p.narrow().round():08x}",
        }
        for a, b, p in partials
    ]


# ---- the golden bundle ----


def _grid(words: int, operands: list[Ref]) -> tuple[tuple[int, ...], tuple[Access, ...]]:
    """All tuples of the operands' words: one output dimension per operand; the others are broadcast."""
    n = len(operands)
    access = [
        Access(ref, (Dim(words),), tuple((0, 1) if i == j else (op.BROADCAST, 0) for i in range(n)))
        for j, ref in enumerate(operands)
    ]
    return (words,) * n, tuple(access)


CODES = (*range(1, 18), *range(32, 39), *range(48, 52), *range(64, 76), *range(80, 85), 96, 97)
#: The functions of the golden program besides SELECT; later functions are in functions.json only.
GOLDEN = tuple(map(Function, CODES))


def _maps() -> list[op.Operator]:
    floats, integers = Ref(RefClass.DATA, 0), Ref(RefClass.DATA, 1)
    found: list[op.Operator] = []
    for f in GOLDEN:
        ref = floats if operand_words(f)[0] == FLOATS else integers
        words = len(GRID_FLOATS) if ref == floats else len(GRID_INTEGERS)
        found.append(op.Map(f, *_grid(words, [ref] * arity(f)), op.yields_integer(f), f is Function.CAST))
    pick = Access(integers, (Dim(6),), ((0, 1),))
    values = [Access(floats, (Dim(8, offset),), ((0, 1),)) for offset in (0, 2)]
    narrow = [op.Map(f, *_grid(8, [floats] * arity(f)), False, True) for f in (Function.MUL, Function.EXP)]
    return [*found, op.Map(Function.SELECT, (6,), (pick, *values), False), *narrow]


def _others(at: int) -> list[op.Operator]:
    """Every other kind; `at`: the index of the first."""
    floats, integers, matrix = Ref(RefClass.DATA, 0), Ref(RefClass.DATA, 1), Ref(RefClass.CONSTANT, 0)
    shuffled, long = Ref(RefClass.OPERATOR, at), Ref(RefClass.OPERATOR, at + 2)
    padded = Access(floats, (Dim(8, -2, 2),), ((0, 1),), 0x7FC00000)
    flipped = Access(matrix, (Dim(3, 2), Dim(4)), ((0, -1), (1, 1)), 0)
    line = ((0, 1),)
    drawn = Access(Ref(RefClass.OPERATOR, at + 1), (Dim(1500),), line)
    return [
        op.Shuffle(5, 8),
        op.Philox(1500),
        op.Map(Function.ITOF, (1500,), (drawn,), False),
        op.Contract(op.Variant.SUM, 1, 1, 1, 1500, long),
        op.Contract(op.Variant.DOT, 2, 3, 2, 4, matrix, floats, shared_a=True, shared_b=True),
        op.Contract(op.Variant.SUM, 1, 3, 1, 4, matrix),
        op.Contract(op.Variant.SUM, 1, 1, 1, 1500, long, bfloat16=True),
        op.Contract(op.Variant.ONE_HOT, 1, 8, 2, 5, shuffled, Ref(RefClass.CONSTANT, 1)),
        op.Gather(5, 1, 8, shuffled, floats, 0, False),
        op.Gather(6, 2, 4, integers, floats, 0x80000000, False),
        op.Copy((20,), (padded,), False),
        op.Copy((3, 4), (flipped,), False),
        op.Copy((12,), (Access(integers, (Dim(6),), line), Access(integers, (Dim(6, -6),), line)), True),
        op.ReduceMax(2, 4, 3, floats),
        op.ReduceMax(1, 6, 6, integers, True),
        op.ArgMax(3, 4, matrix),
        op.ArgMax(2, 4, floats),
    ]


def golden_program() -> Program:
    """Every kind, and GOLDEN, once; state 0 shrinks by the rate, state 1 wraps around, state 2 is unchanged."""
    listed = _maps()
    listed += _others(len(listed))
    at, line = len(listed), ((0, 1),)
    rate = Access(Ref(RefClass.SCALAR, 0), (), ((op.BROADCAST, 0),))
    weights, counters = Access(Ref(RefClass.STATE, 0), (Dim(4),), line), Access(Ref(RefClass.STATE, 1), (Dim(3),), line)
    listed += [
        op.Map(Function.MUL, (4,), (weights, rate), False),
        op.Map(Function.SUB, (4,), (weights, Access(Ref(RefClass.OPERATOR, at), (Dim(4),), line)), False),
        op.Map(Function.IMUL, (3,), (counters, counters), True),
        op.Map(Function.IADD, (3,), (counters, Access(Ref(RefClass.OPERATOR, at + 2), (Dim(3),), line)), True),
        op.Contract(op.Variant.SUM, 1, 1, 1, 4, Ref(RefClass.OPERATOR, at + 1)),
    ]
    sources = (
        Source(Ref(RefClass.OPERATOR, at + 1), 4),
        Source(Ref(RefClass.OPERATOR, at + 3), 3, True),
        Source(Ref(RefClass.STATE, 2), 8),
    )
    constants = ([0x3F800000 + (i * 0x123457) for i in range(12)], [0x80000000 + 3 * i for i in range(10)])
    tensors = tuple(from_words(np.array(words, "<u4"), integer=False) for words in constants)
    return Program(tuple(listed), sources, tensors, 2, 1, at + 4)


def golden() -> dict[str, Any]:
    """The program file, all its inputs, and two steps: all output words of the first, all roots of both."""
    program = golden_program()
    state = [[0x3F800000, 0x80000000, 1, 0xC0490FDB], [0x7FFFFFFF, 0x80000000, 12345], GRID_FLOATS]
    rate = Schedule(kind="cosine", lr="0.1", final="0.01")
    scalars = [int(to_binary32(rate.rate(s, STEPS)).view(np.uint32)) for s in range(1, STEPS + 1)]
    data = [GRID_FLOATS, GRID_INTEGERS]
    inputs = {
        "seed": SEED,
        "program_file": encode_program(program).hex(),
        "header": program.header.hex(),
        "program_root": program.root.hex(),
        "records": [r.hex() for r in program.records],
        "state": [hexed(t) for t in state],
        "data": [hexed(t) for t in data],
        "constants": [hexed(_words(t)) for t in program.constants],
        "scalars": hexed(scalars),
        "scalar_root": _root(scalars).hex(),
        "initial_root": _state_root(state),
        "data_root": Tree(Kind.DATA, [_root(t) for t in data]).root.hex(),
    }
    steps = []
    for step in range(1, STEPS + 1):
        outputs = _outputs(program, state, data, [scalars[step - 1]], step)
        state = [
            outputs[s.ref.index] if s.ref.cls is RefClass.OPERATOR else state[t] for t, s in enumerate(program.sources)
        ]
        roots = [_root(words) for words in outputs]
        trace = Tree(Kind.TRACE, roots).root.hex()
        found = {"operators": [r.hex() for r in roots], "trace_root": trace, "state_root": _state_root(state)}
        steps.append(found | ({"words": [hexed(w) for w in outputs if len(w) < 1500]} if step == 1 else {}))
    return inputs | {"steps": steps}


def _words(tensor: torch.Tensor) -> list[int]:
    return tensor.numpy().view(np.uint32).tolist()


def _root(words: list[int]) -> bytes:
    return words_tree(little(words)).root


def _state_root(state: list[list[int]]) -> str:
    return Tree(Kind.STATE, [_root(t) for t in state]).root.hex()


def _outputs(program: Program, state: list, data: list, scalars: list[int], step: int) -> list[list[int]]:
    """The words of every operator's output, element by element."""
    outputs: list[list[int]] = []
    tables = {
        RefClass.STATE: state, RefClass.DATA: data, RefClass.CONSTANT: [_words(t) for t in program.constants],
        RefClass.OPERATOR: outputs, RefClass.SCALAR: [[word] for word in scalars],
    }  # fmt: skip

    def read(ref: Ref, first: int, count: int) -> list[int]:
        return tables[ref.cls][ref.index][first : first + count]

    for o, operator in enumerate(program.operators):
        outputs.append([evaluate(operator, Position(SEED, step, o, e), read) for e in range(operator.elements)])
    return outputs


FILES: dict[str, Callable[[], Any]] = {
    "trees": trees, "functions": functions, "random": randomness, "sums": sums, "golden": golden,
    "scalars": scalars, "job": job,
}  # fmt: skip


def render(name: str) -> str:
    """The content of a file."""
    return json.dumps(FILES[name](), indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    for name in FILES:
        path, text = FOLDER / f"{name}.json", render(name)
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(
                f"{path.name} is not what the reference gives; run `python scripts/vectors.py` and see what changed"
            )


if __name__ == "__main__":
    main()
