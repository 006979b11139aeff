"""The fast paths reproduce tests/vectors/, and the files equal the reference's output (scripts/vectors.py)."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from enum import IntEnum
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eth_utils import keccak
from small_programs import ZERO_LOSS, World, executed

from vgame.arithmetic.functions import Function
from vgame.chain.records import JobSpec
from vgame.commit.merkle import Kind, Tree, path_root, tree_height
from vgame.commit.tensor import from_words, tensor_root, tensors_root
from vgame.errors import ProgramError
from vgame.execute.executor import Executor
from vgame.program.encoding import operator_record
from vgame.program.file import decode_program
from vgame.program.operators import Access, ArgMax, Dim, Map, Operator, ReduceMax, Ref, RefClass, yields_integer
from vgame.program.optimizers import Adam
from vgame.program.schedule import Rate, Schedule, to_binary32
from vgame.program.validate import Tensors, undecidable, validate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
VECTORS = runpy.run_path(str(ROOT / "scripts" / "vectors.py"))


def load(name: str) -> Any:
    return json.loads((ROOT / "tests" / "vectors" / f"{name}.json").read_text())


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def tensor(text: str, integer: bool) -> torch.Tensor:
    return from_words(np.array(words(text), "<u4"), integer=integer)


@pytest.mark.parametrize("name", VECTORS["FILES"])
def test_a_file_equals_that_of_the_reference(name: str) -> None:
    assert (ROOT / "tests" / "vectors" / f"{name}.json").read_text() == VECTORS["render"](name)


def test_trees() -> None:
    found = load("trees")
    leaves = [bytes.fromhex(leaf) for leaf in found["leaves"]]
    roots = {(t["kind"], t["count"]): bytes.fromhex(t["root"]) for t in found["trees"]}
    for p in found["paths"]:
        siblings = [bytes.fromhex(s) for s in p["siblings"]]
        assert len(siblings) == tree_height(p["count"])
        assert path_root(Kind(p["kind"]), leaves[p["index"]], p["index"], siblings) == roots[p["kind"], p["count"]]
    for r in found["ranges"]:
        tree = Tree(Kind(r["kind"]), leaves[: r["count"]])
        assert [s.hex() for s in tree.range_proof(r["first"], r["last"])] == r["siblings"]
    for t in found["tensors"]:
        numbers = np.arange(t["elements"], dtype=np.uint32) * np.uint32(0x01010101)
        assert tensor_root(from_words(numbers, integer=True)).hex() == t["root"]


@pytest.mark.parametrize("function", Function, ids=lambda f: f.name)
def test_functions(function: Function) -> None:
    found = load("functions")[function.name]
    assert found["code"] == function
    tuples = list(zip(*product(*map(words, found["operands"])), strict=True))
    assert mapped(function, tuples) == words(found["results"])
    if "bfloat16" in found:
        assert mapped(function, tuples, True) == words(found["bfloat16"])


def mapped(function: Function, columns: list[tuple[int, ...]], bfloat16: bool = False) -> list[int]:
    """The function of each tuple, by the executor."""
    count, line = len(columns[0]), ((0, 1),)
    typed = VECTORS["operand_words"](function)
    data = [
        from_words(
            np.array(c, "<u4"), integer=typed[i] is VECTORS["INTEGERS"] or (function is Function.SELECT and not i)
        )
        for i, c in enumerate(columns)
    ]
    accesses = tuple(Access(Ref(RefClass.DATA, i), (Dim(count),), line) for i in range(len(data)))
    (result,) = executed([Map(function, (count,), accesses, yields_integer(function), bfloat16)], World(data=data))
    return result


class Longer:
    """The functions, and a new one after them."""

    def __iter__(self) -> Iterator[IntEnum]:
        return iter([*Function, IntEnum("Later", {"LATER": 18}).LATER])

    def __getattr__(self, name: str) -> Function:
        return Function[name]


def test_a_new_function_leaves_the_golden_program_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    root = VECTORS["golden_program"]().root
    monkeypatch.setitem(VECTORS["golden_program"].__globals__, "Function", Longer())
    assert VECTORS["golden_program"]().root == root


def test_two_steps_of_the_golden_bundle() -> None:
    found = load("golden")
    program = decode_program(bytes.fromhex(found["program_file"]), "the golden program")
    validate(program, [(8, False), (6, True)], 2)
    state = [tensor(t, s.integer) for t, s in zip(found["state"], program.sources, strict=True)]
    data = [tensor(t, i == 1) for i, t in enumerate(found["data"])]
    scalars = tensor(found["scalars"], False).reshape(-1, 1)
    named = {
        "program_root": program.root, "header": program.header, "data_root": tensors_root(Kind.DATA, data),
        "initial_root": tensors_root(Kind.STATE, state), "scalar_root": tensor_root(scalars),
    }  # fmt: skip
    assert {name: root.hex() for name, root in named.items()} == {name: found[name] for name in named}
    executor = Executor(program, data, scalars, found["seed"], "correct")
    for step, expected in enumerate(found["steps"], 1):
        state, roots = one_step(executor, step, state)
        assert roots == expected["operators"]
        assert tensors_root(Kind.STATE, state).hex() == expected["state_root"]


def one_step(
    executor: Executor, step: int, state: Sequence[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], list[str]]:
    """The state after a step, and the root of every operator's output."""
    roots: list[str] = []

    def tap(_: int, output: torch.Tensor) -> torch.Tensor:
        roots.append(tensor_root(output.clone()).hex())
        return output

    return executor.step(step, state, tap).state, roots


def test_a_golden_program_with_a_flipped_bit_is_refused() -> None:
    data = bytearray.fromhex(load("golden")["program_file"])
    data[300] ^= 1
    with pytest.raises(ProgramError):
        decode_program(bytes(data), "the damaged program")


def test_the_page_holds_the_table_of_functions() -> None:
    table = runpy.run_path(str(ROOT / "scripts" / "function_table.py"))
    page = (ROOT / "docs" / "formats.md").read_text()
    assert table["renewed"](page) == page
    damaged = page.replace("| 1 | NEG | 1 |", "| 1 | NEG | 2 |")
    assert damaged != page and table["renewed"](damaged) == page


#: (an operator that docs/formats.md section 3 does not allow, a part of the refusal)
REFUSED = [
    (Map(Function.NEG, (), (Access(Ref(RefClass.DATA, 0), ()),), False), "index space of rank 0"),
    (Map(Function.NEG, (1,), (Access(Ref(RefClass.DATA, 0), (), ((0xFF, 0),)),), False), "read without dimensions"),
    (Map(Function.NEG, (1,), (Access(Ref(RefClass.SCALAR, 0), (Dim(1),), ((0, 1),)),), False), "has no dimensions"),
    (
        Map(Function.NEG, (1,), (Access(Ref(RefClass.OPERATOR, 1), (Dim(1),), ((0, 1),)),), False),
        "does not exist before",
    ),
    (Map(Function.NEG, (1,), (Access(Ref(RefClass.IMMEDIATE, 1), (), ((0xFF, 0),)),), False), "does not exist before"),
    (
        Map(Function.NEG, (1,), (Access(Ref(RefClass.DATA, 0), (Dim(1, 2**62 + 1),), ((0, 1),)),), False),
        "-2^62 to 2^62 are allowed",
    ),
    (ArgMax(1, 40_000, Ref(RefClass.DATA, 1)), "needs a witness"),
]


@pytest.mark.parametrize(("operator", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_operators_refused_by_the_rules_of_validity(operator: Operator, reason: str) -> None:
    assert reason in (refusal(operator) or "it is taken")


def test_operators_accepted_by_the_rules_of_validity() -> None:
    assert refusal(Map(Function.NEG, (1,), (Access(Ref(RefClass.DATA, 0), (Dim(1),), ((0, 1),)),), False)) is None
    assert refusal(ReduceMax(1, 40_000, 8_000, Ref(RefClass.DATA, 1))) is None


def refusal(operator: Operator) -> str | None:
    tensors = Tensors([], [], [(1, False), (40_000, False)], 1, [(1, False), (operator.elements, False)])
    program = World().program([ZERO_LOSS, operator])
    return next(undecidable(program, tensors), None)


def test_the_examples_of_the_page() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    state = [tensor(word, False) for word in ("3f800000", "40000000", "40400000")]
    negation = Map(Function.NEG, (4,), (Access(Ref(RefClass.DATA, 0), (Dim(4),), ((0, 1),)),), False)
    assert f"`{tensor_root(state[0]).hex()}`" in page
    assert f"`{tensors_root(Kind.STATE, state).hex()}`" in page
    assert f"`{operator_record(negation, False).hex()}`" in page


def test_scalars() -> None:
    found = load("scalars")
    steps = range(1, found["steps"] + 1)
    for case in found["schedules"]:
        schedule = Schedule(**{name: value for name, value in case.items() if name != "words"})
        assert words(case["words"]) == [rounded(schedule.rate(t, found["steps"])) for t in steps], case
    adamw = found["adamw"]
    rule = Adam((float(adamw["beta1"]), float(adamw["beta2"])), 1e-8, float(adamw["decay"]), decoupled=True)
    rates = [Schedule(**adamw["schedule"]).rate(t, found["steps"]) for t in steps]
    assert set(rule.scalars) == {"rate", "root", "keep"}
    for name, formula in rule.scalars.items():
        assert words(adamw[name]) == [rounded(formula(rate, t)) for t, rate in zip(steps, rates, strict=True)], name


def rounded(value: Rate) -> int:
    return int(to_binary32(value).view(np.uint32))


def test_an_order_is_words_of_32_bytes_in_the_order_of_its_fields() -> None:
    """The encoding in docs/formats.md; every game tests that the contract uses it for a job's identity."""
    found = load("job")

    def word(value: int | str) -> bytes:
        return (
            value.to_bytes(32, "big")
            if isinstance(value, int)
            else bytes.fromhex(value.removeprefix("0x")).rjust(32, b"\0")
        )

    place = [found[name] for name in ("chain_id", "contract", "client", "nonce")]
    encoded = b"".join(word(value) for value in [field["value"] for field in found["order"]] + place)
    assert (encoded.hex(), keccak(encoded).hex()) == (found["encoded"], found["job"])
    assert [snake(field["field"]) for field in found["order"]] == [field.name for field in fields(JobSpec)]


def snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: "_" + letter.group().lower(), name)
