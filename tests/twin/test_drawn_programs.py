"""Programs drawn from a seed: the fast path, one operator at a time, the reference and the contract give the same
words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
import torch
from deployed import Contract
from drawn_programs import drawn
from onchain import StepOnChain, deploy_referee
from referee_programs import STEP

from vgame.arithmetic import certified, workspace
from vgame.arithmetic import indexed_matrix as folded
from vgame.arithmetic.torch import convolutions, tiling
from vgame.commit.tensor import to_words
from vgame.execute import chains, layout, ordinary
from vgame.execute.executor import Executor
from vgame.program.file import decode_program, encode_program

SEEDS = range(20)
HALVES = range(100, 120), range(120, 160)


@pytest.fixture(scope="module")
def referee() -> Contract:
    return deploy_referee()


@pytest.fixture
def every_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Small tensors take the paths of large ones, by two threads; counts the use of some of these paths."""
    for module in (folded, ordinary):
        monkeypatch.setattr(module, "LEAST", 0)
    for name in ("FILTERS", "CHANNELS", "PIXELS"):
        monkeypatch.setattr(convolutions, name, 1)
    monkeypatch.setattr(convolutions, "AT_A_TIME", 64)
    for module in (tiling, chains):
        monkeypatch.setattr(module, "WORTH", 1)
    monkeypatch.setattr(chains, "FAR", 3)
    monkeypatch.setattr("vgame.system.threads.WORTH", 64)
    for sizes in (workspace.PRODUCTS, workspace.SUMS, workspace.GATHER):
        monkeypatch.setitem(sizes, "cpu", 256)
    ways: Counter = Counter()
    for place, name in ((convolutions, "round_pass"), (ordinary, "fold"), (layout, "gathered")):
        monkeypatch.setattr(place, name, counted(getattr(place, name), ways))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield ways
    torch.set_num_threads(before)


def counted(function, ways: Counter):
    def run(*arguments):
        result = function(*arguments)
        ways[type(result).__name__ if function.__name__ == "fold" else function.__name__] += result is not None
        return result

    return run


def words(tensors) -> list[list[int]]:
    return [to_words(t).tolist() for t in tensors]


def test_every_way_gives_the_same_words(every_way: Counter, referee: Contract, tmp_path: Path) -> None:
    for seed in SEEDS:
        history, random = drawn(seed, tmp_path / str(seed)), Random(seed)
        program, bundle = history.program, history.bundle
        assert decode_program(encode_program(program), "it").root == program.root
        fast, planned = (Executor(program, bundle.data, bundle.scalars, bundle.seed) for _ in range(2))
        fast.plans, states = False, [bundle.state]
        for step in range(1, STEP + 1):
            single = history.stepper.step(step, history.state_tensors(step - 1), lambda _, value: value)
            result = fast.step(step, states[-1])
            assert words(result.state) == words(single.state), (seed, step)
            assert words(planned.step(step, states[-1]).state) == words(single.state), (seed, step)
            assert result.not_finite == single.not_finite, (seed, step)
            states.append(result.state)
        assert words(states[2]) == words(history.state_tensors(2)), f"seed {seed}: a later step has changed a state"
        units, *_ = fast._units(fuse=True)
        every_way["chain"] += any(len(unit.members) > 1 for unit in units)
        every_way["patient"] += any(unit.patient for unit in units)
        decide(StepOnChain(referee, history, STEP), seed, random)
    assert min(every_way[way] for way in ("round_pass", "IndexedMatrix", "gathered", "chain", "patient")) > 4, every_way


@pytest.mark.parametrize("seeds", HALVES)
def test_stored_halves_give_the_same_words(every_way: Counter, tmp_path: Path, seeds: range) -> None:
    """bfloat16 outputs in 2 bytes a word: of chains and products, read in every way; of copies, tests/unit."""
    stored: Counter = Counter()
    for seed in seeds:
        history = drawn(seed, tmp_path / str(seed), 0.7)
        program, bundle = history.program, history.bundle
        fast = Executor(program, bundle.data, bundle.scalars, bundle.seed)
        fast.plans = False
        single = history.stepper.step(1, bundle.state, lambda _, value: value)
        for device in (nullcontext(), certified.own_kernels(False), certified.reversed_order()):
            with device:
                result = fast.step(1, bundle.state)
            assert words(result.state) == words(single.state), seed
            assert result.not_finite == single.not_finite, seed
        stored.update(type(program.operators[i]).__name__ for i in fast._units(fuse=True)[2])
    assert min(stored["Map"], stored["Contract"]) > 5, stored


def decide(step: StepOnChain, seed: int, random: Random) -> None:
    """Contract, reference and executor on an element of every operator."""
    for o, operator in enumerate(step.history.program.operators):
        element = random.choice((operator.elements - 1, random.randrange(operator.elements)))
        faults, _ = step.faults(o, element, random)
        assert not faults, (seed, o, operator, element, faults)
