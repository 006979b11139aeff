"""contracts/Logged.sol decides every element like the reference and a following executor, for every log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from deployed import Contract, Reverted
from eth_abi import decode, encode
from onchain import StepOnChain, deploy_logged
from referee_programs import STEP, STEPS, Small, functions, selections, sums
from wide import of_many

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.commit.merkle import Kind, leaf_hash, path_root
from vgame.execute.reference import Position
from vgame.logged.kernels import LoggedExecutor, StepEntries, sum_operators
from vgame.logged.reference import evaluate, reads_log
from vgame.logged.rounding import Direction
from vgame.logged.spec import LogSpec
from vgame.logged.sums import PROVEN, Entries
from vgame.logged.tree import interval_root, place
from vgame.program.operators import Contract as Contraction
from vgame.program.operators import Map
from vgame.program.program import Program
from vgame.runs.history import PROOF_TYPE
from vgame.runs.logged_history import LoggedHistory
from vgame.runs.store import Store

PROGRAMS = {"sums": sums, "functions": functions, "selections": selections}


class ArbitraryLog:
    """Entries in step STEP for a share of the elements, with directions at random."""

    def __init__(self, program: Program, share: float) -> None:
        generator, made = np.random.default_rng(4), {}
        for operator in sum_operators(program):
            positions = np.flatnonzero(generator.random(program.operators[operator].elements) < share).astype(np.int64)
            if len(positions):
                made[operator] = Entries(positions, generator.random(len(positions)) < 0.5)
        self.steps: list[StepEntries] = [made if step == STEP else {} for step in range(1, STEPS + 1)]
        self.log_roots = [interval_root(program, self.steps)]

    def committed(self, checkpoint: int) -> list[StepEntries]:
        assert checkpoint == 1
        return self.steps


def step_of(small: Small, bits: int, machine: Contract, folder: Path) -> StepOnChain:
    """Step STEP of a program in mode `logged`, followed from an arbitrary log."""
    refused = (Function.CAST, *(ELEMENTARY if bits < 32 else ()))
    small = replace(small, operators=[o for o in small.operators if not (isinstance(o, Map) and o.function in refused)])
    plain = small.history(folder / "plain").bundle
    windows = (PROVEN,) * len(sum_operators(plain.program))
    bundle = replace(plain, mode="logged", log=LogSpec(bits=bits, windows=windows))
    log = ArbitraryLog(bundle.program, 0.5)
    executor = LoggedExecutor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bits, {})
    executor.kernels.strict = False
    executor.read = lambda step: log.steps[step - 1]
    return StepOnChain(machine, LoggedHistory(Store(folder / "logged", bundle), executor, log), STEP)


@pytest.fixture(scope="module")
def machine() -> Contract:
    return deploy_logged()


LOGS = [("sums", 32), ("sums", 27), ("functions", 29), ("selections", 32)]


@pytest.mark.parametrize(("name", "bits"), of_many(LOGS, *LOGS[1:]))
def test_every_element_is_decided_as_computed(name: str, bits: int, machine: Contract, tmp_path: Path) -> None:
    """Contract, reference and executor agree; one flipped bit in the claim or in the proof is refused."""
    torch.manual_seed(0)
    step, random, wrong, directions = step_of(PROGRAMS[name](), bits, machine, tmp_path), Random(5), [], set()
    for o, operator in enumerate(step.history.program.operators):
        few = 1 if isinstance(operator, Contraction) and operator.blocks > 4 else 5
        few = 20 if reads_log(operator) and operator.elements > 128 else few
        for element in random.sample(range(operator.elements), min(few, operator.elements)):
            faults, _ = step.faults(o, element, random)
            wrong += [(operator, element, *faults)] if faults else []
            directions.add(step.history.entry(STEP, o, element))
    assert not wrong, (len(wrong), wrong[:3])
    assert len(directions) == (3 if name == "sums" else 1)


def test_another_log_gives_another_word_or_none(machine: Contract, tmp_path: Path) -> None:
    """The entry is proven against the interval's root, at its own place."""
    step = step_of(sums(), 32, machine, tmp_path)
    operators = step.history.program.operators
    o = next(i for i, op in enumerate(operators) if reads_log(op) and op.blocks == 1 and op.elements > 12)
    context, proof = step.context(o, 7), list(decode([PROOF_TYPE], step.proof(o, 7))[0])
    assert machine.call("evaluate", context, encode([PROOF_TYPE], [tuple(proof)])) == step.claimed(o, 7)
    content, siblings, path = proof[3][-1]

    def refused(opening: tuple | None, changed: tuple = context) -> str:
        openings = [*proof[3][:-1], *([] if opening is None else [opening])]
        with pytest.raises(Reverted) as caught:
            machine.call("evaluate", changed, encode([PROOF_TYPE], [(*proof[:3], openings)]))
        return caught.value.name

    flipped = bytes([content[0] ^ 1, *content[1:]])
    assert refused((flipped, siblings, path)) == "WrongRoot"
    assert refused((b"", siblings, path)) == "WrongRoot", "an entry cannot be hidden"
    assert refused((content, siblings, path[1:])) == "PathLength"
    assert refused((content, [bytes(32)], path)) == "OpeningSize"
    assert refused((content[:31], siblings, path)) == "OpeningSize"
    assert refused(None) == "OpeningCount"
    assert refused((content, siblings, path), (*context[:11], context[11] - 1, *context[12:])) == "WrongRoot"
    assert refused((content, siblings, path), (*context[:13], bytes(32))) == "WrongRoot"


def test_an_entry_of_a_neighbour_does_not_count_for_an_element(machine: Contract, tmp_path: Path) -> None:
    """An element whose entry matters: with all other entries of the leaf it has its word without an entry, with its own
    the other word."""
    step = step_of(sums(), 32, machine, tmp_path)
    program, tried = step.history.program, []
    for o in (i for i, op in enumerate(program.operators) if reads_log(op) and op.blocks == 1):
        read = step.history._reader(STEP, o).read
        for element in range(program.operators[o].elements):
            at = Position(step.history.bundle.seed, STEP, o, element)
            words = {d: evaluate(program.operators[o], at, read, 32, d) for d in Direction}
            other = next((d for d in Direction if words[d] != words[Direction.NONE]), None)
            if other is None:
                continue
            tried.append(element)
            proof = list(decode([PROOF_TYPE], step.proof(o, element))[0])
            mine = 1 << element % 128
            for present, word in (((1 << 128) - 1 - mine, words[Direction.NONE]), (mine, words[other])):
                content = (present << 128 | (mine if other is Direction.UP else 0)).to_bytes(32, "big")
                path = proof[3][-1][2]
                root = path_root(Kind.LOG, leaf_hash(Kind.LOG, content), place(program, STEP - 1, o, element), path)
                opened = encode([PROOF_TYPE], [(*proof[:3], [*proof[3][:-1], (content, [], path)])])
                assert machine.call("evaluate", (*step.context(o, element)[:13], root), opened) == word
    assert {element // 64 for element in tried} == {0, 1, 2}, "in both halves of a leaf, and in another leaf"


def test_functions_without_a_word_are_refused(machine: Contract, tmp_path: Path) -> None:
    """An elementary function with fewer than 32 bits: no proof of it is accepted from any account."""
    step = step_of(functions(), 32, machine, tmp_path)
    operators = step.history.program.operators
    o = next(i for i, op in enumerate(operators) if isinstance(op, Map) and op.function is Function.EXP)
    context = step.context(o, 3)
    assert machine.call("evaluate", context, step.proof(o, 3)) == step.claimed(o, 3)
    with pytest.raises(Reverted, match="UnknownFunction"):
        machine.call("evaluate", (*context[:10], 29, *context[11:]), step.proof(o, 3))


def test_partial_sums_without_their_entry_are_refused(machine: Contract, tmp_path: Path) -> None:
    step = step_of(sums(), 32, machine, tmp_path)
    operators = step.history.program.operators
    o = next(i for i, op in enumerate(operators) if isinstance(op, Contraction) and op.blocks == 3)
    partials, witness = step.history.partials(STEP, o, 2), step.history.witness(STEP, o, 2)
    context = step.context(o, 2)
    assert machine.call("combine", context, [*partials, *witness]) == step.claimed(o, 2)
    with pytest.raises(Reverted, match="MalformedMoments"):
        machine.call("combine", context, [*partials[:2], partials[2][:97], *witness])
    other = step.history.witness(STEP, o, 3)[0]
    assert machine.call("combine", context, [*partials, other]) >= 0, "the same leaf of the log"
    with pytest.raises((Reverted, RuntimeError), match="Revert"):  # Solidity's own check of calldata has no name
        machine.call("combine", context, partials)
    with pytest.raises(Reverted, match="WrongRoot"):
        machine.call("combine", (*context[:13], bytes(32)), [*partials, *witness])
