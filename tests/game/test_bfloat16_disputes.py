"""Wrong words of bfloat16 outputs in disputes on the real contracts: another word, one rounded twice, one off the grid.

The operands are chosen so that rounding twice, first to binary32, gives another word than rounding once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from real_jobs import AtElement, Scene
from revm_chain import RevmChain

from vgame.arithmetic.functions import Function
from vgame.arithmetic.reference.binary32 import round_word, to_fraction
from vgame.arithmetic.reference.functions import BFLOAT16_BITS, evaluate, partial_dot, round_to_binary32
from vgame.arithmetic.reference.sums import NOT_A_NUMBER, Partial
from vgame.arithmetic.torch import elementary
from vgame.attacks.computation import CheatingHistory, Patch, PatchedExecutor
from vgame.chain.records import Level, Phase
from vgame.commit.tensor import from_words
from vgame.dispute.auditor import Auditor
from vgame.errors import ContractError
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.job.file import Terms
from vgame.program.operators import Contract, Map, Operator, Ref, RefClass, Variant, identity_access, immediate
from vgame.program.program import Labels, Program, Source, TensorLabel
from vgame.program.validate import validate
from vgame.runs.history import History
from vgame.runs.store import Store
from vgame.runs.training import train

STEPS, STRIKE, ELEMENT, LONG = 4, 4, 1, 1500
ONE, TIE, CRUMB = 0x3F800000, 0x3F808000, 0x0D800000  # 1, the midpoint of 1 and 1 + 2^-7, 2^-100


@dataclass(frozen=True)
class Case:
    """An operator over three elements of constants. exact24, exact8: the word of element 1, rounded once to 24 and to 8
    bits."""

    operator: Operator
    exact24: int
    exact8: int

    @property
    def lies(self) -> dict[str, int]:
        """Wrong words; those by double rounding and without rounding only if they are wrong."""
        twice = round_word(self.exact24, BFLOAT16_BITS)
        words = {
            "another": self.exact8 ^ 0x10000,
            "twice": twice,
            "off the grid": self.exact8 | 1,
            "binary32": self.exact24,
        }
        return {name: word for name, word in words.items() if word != self.exact8}


class Job:
    """One step of all cases, each of whose outputs becomes state; every kind of sum and one function of each way to
    round."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.constants, self.cases = folder, [], {}
        for function in (Function.ADD, Function.MUL, Function.DIV, Function.SQRT, Function.EXP, Function.CAST):
            self.add_map(function, operands_of(function))
        self.add_sum("DOT", Variant.DOT, [TIE, CRUMB, 0], [ONE, ONE, ONE])
        self.add_sum("ONE_HOT", Variant.ONE_HOT, [1, 1, 0], [TIE, CRUMB, ONE])
        self.add_sum("SUM", Variant.SUM, [TIE, *[0] * (LONG - 2), CRUMB], None)
        operators = [case.operator for case in self.cases.values()]
        operators.append(Map(Function.ABS, (1,), (immediate(ONE),), False))
        sources = [Source(Ref(RefClass.OPERATOR, i), o.elements) for i, o in enumerate(operators)]
        labels = Labels(state=tuple(TensorLabel(f"state {i}", (o.elements,)) for i, o in enumerate(operators)))
        program = Program(tuple(operators), tuple(sources), tuple(self.constants), 0, 0, len(operators) - 1, labels)
        validate(program, [], STEPS)
        state = tuple(torch.zeros(o.elements) for o in operators)
        self.bundle = Bundle(program, state, (), torch.zeros(STEPS, 0), 7, STEPS, 2, 3, "correct", Terms())
        self.honest = self.history("honest", Patch(), History)

    def add_map(self, function: Function, words: Sequence[int]) -> None:
        accesses = tuple(identity_access(self.constant([ONE, w, ONE]), 3) for w in words)
        exact = [evaluate(function, *words, bits=bits) for bits in (24, BFLOAT16_BITS)]
        self.cases[function.name] = Case(Map(function, (3,), accesses, False, True), *exact)

    def add_sum(self, name: str, variant: Variant, a: Sequence[int], b: Sequence[int] | None) -> None:
        """Element 1 of three equal ones, or of two classes."""
        one_hot = variant is Variant.ONE_HOT
        left = self.constant(a if one_hot else [*a, *a, *a], integer=one_hot)
        right = Ref(RefClass.IMMEDIATE) if b is None else self.constant(b)
        m = 2 if one_hot else 3
        terms = ([w for i, w in zip(a, b, strict=True) if i == ELEMENT], None) if one_hot else (a, b)
        total = partial_dot(terms[0], terms[1] or [ONE] * len(terms[0]))
        operator = Contract(variant, 1, m, 1, len(a), left, right, bfloat16=True)
        self.cases[name] = Case(operator, total.round(), total.narrow().round())

    def constant(self, words: Sequence[int], integer: bool = False) -> Ref:
        self.constants.append(from_words(np.array(words, np.uint32), integer=integer))
        return Ref(RefClass.CONSTANT, len(self.constants) - 1)

    def history(self, name: str, patch: Patch, cls: type[History] = CheatingHistory) -> History:
        b = self.bundle
        executor = PatchedExecutor(Executor(b.program, b.data, b.scalars, b.seed), patch)
        return cls(train(Store(self.folder / name, b), executor), executor)

    def place(self, name: str) -> int:
        return list(self.cases).index(name)

    def cheat(self, name: str, word: int, cls: type[History] = CheatingHistory) -> History:
        """The run of a cheat that claims this word."""

        def output(step: int, operator: int, value: torch.Tensor, before: tuple) -> torch.Tensor:
            if (step, operator) == (STRIKE, self.place(name)):
                value = value.clone()
                value[ELEMENT] = from_words(np.array([word], np.uint32), integer=False)[0]
            return value

        return self.history(f"{name}-{word:08x}-{cls.__name__}", Patch(output=output, first=STRIKE), cls)


def operands_of(function: Function) -> tuple[int, ...]:
    """Operands of a value that is not a midpoint of 8 bits, but of which RN to binary32 is one, and ties to the wrong
    side."""
    if function is Function.CAST:
        return (TIE + 1,)
    if function is Function.ADD:
        return TIE, CRUMB
    random = Random(int(function))
    while True:
        words = drawn(function, random)
        exact = evaluate(function, *words)
        if exact & 0xFFFF == 0x8000 and evaluate(function, *words, bits=BFLOAT16_BITS) != round_word(
            exact, BFLOAT16_BITS
        ):
            return words


def drawn(function: Function, random: Random) -> tuple[int, ...]:
    """Operands near which a midpoint is the result."""
    midpoint, other = random.getrandbits(7) << 16 | TIE, ONE | random.getrandbits(23)
    if function is Function.SQRT:
        return (round_to_binary32(to_fraction(midpoint) ** 2) + random.choice((-1, 1)),)
    if function is Function.MUL:
        return round_to_binary32(to_fraction(midpoint) / to_fraction(other)), other
    if function is Function.DIV:
        return round_to_binary32(to_fraction(midpoint) * to_fraction(other)), other
    x = torch.rand(1 << 18, generator=torch.Generator().manual_seed(random.getrandbits(32)))
    ties = x[elementary.evaluate(function, x).view(torch.int32) & 0xFFFF == 0x8000]
    return (int(ties[0].view(torch.int32)),)


class OtherClass(CheatingHistory):
    """Its blocks lack the class of sums rounded to 8 bits; with that class the contract would refuse blocks of a word
    off the grid."""

    def partials(self, step: int, operator: int, element: int) -> list[bytes]:
        return unmarked(super().partials(step, operator, element))


class OnlyOtherClass(CheatingHistory):
    """Apart from the class its blocks are right: they add up to the binary32 word."""

    def partials(self, step: int, operator: int, element: int) -> list[bytes]:
        return unmarked(History.partials(self, step, operator, element))


def unmarked(sums: Sequence[bytes]) -> list[bytes]:
    return [Partial(p.cls & NOT_A_NUMBER, p.value).encode() for p in map(Partial.decode, sums)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    yield Job(tmp_path_factory.mktemp("bfloat16"))


NAMES = ("ADD", "MUL", "DIV", "SQRT", "EXP", "CAST", "DOT", "ONE_HOT", "SUM")
LIES = ("another", "twice", "off the grid", "binary32")
NO_LIE = ("CAST", "twice")  # for a binary32 word there is no other class


def test_the_wrong_words_differ_from_the_right_ones(job: Job) -> None:
    """The honest run has the right ones; each lie differs, and all but CAST's rounding twice exist."""
    for name, case in job.cases.items():
        got = job.honest.words(STRIKE, job.place(name))[4 * ELEMENT : 4 * ELEMENT + 4]
        assert int.from_bytes(got, "little") == case.exact8, name
        assert set(case.lies) == {lie for lie in LIES if (name, lie) != NO_LIE}, (name, case.lies)


@pytest.mark.parametrize(("name", "lie"), [pair for pair in product(NAMES, LIES) if pair != NO_LIE])
def test_a_wrong_word_is_convicted(system: tuple[RevmChain, str], job: Job, name: str, lie: str) -> None:
    scene = Scene(system, job.bundle)
    word = job.cases[name].lies[lie]
    cls = OtherClass if name == "SUM" and word & 0xFFFF else CheatingHistory
    trainer = scene.trainer(job.cheat(name, word, cls))
    auditor = Auditor(scene.game(), scene.id, job.honest)
    assert scene.play(trainer, auditor) is Phase.CONVICTED
    verdict = scene.view.verdict(scene.id)
    assert (verdict.step, verdict.operator, scene.causes) == (STRIKE, job.place(name), [("Convicted", "element")])
    assert verdict.level is (Level.PARTIAL if name == "SUM" else Level.ELEMENT)


@pytest.mark.parametrize("name", NAMES)
def test_a_false_accuser_of_a_right_word_loses(system: tuple[RevmChain, str], job: Job, name: str) -> None:
    scene = Scene(system, job.bundle)
    trainer = scene.trainer(job.honest)
    accuser = AtElement(
        scene.game(), scene.id, job.honest, step_wanted=STRIKE, operator=job.place(name), element=ELEMENT
    )
    assert scene.play(trainer, accuser) is Phase.FINAL and scene.causes == [("Dismissed", "element")]


def test_right_blocks_of_another_class_are_wrong_blocks(system: tuple[RevmChain, str], job: Job) -> None:
    scene = Scene(system, job.bundle)
    trainer = scene.trainer(job.cheat("SUM", job.cases["SUM"].exact24, OnlyOtherClass))
    auditor = Auditor(scene.game(), scene.id, job.honest)
    assert scene.play(trainer, auditor) is Phase.CONVICTED
    assert scene.view.verdict(scene.id).level is Level.PARTIAL and scene.causes == [("Convicted", "element")]


def test_blocks_do_not_add_up_to_a_word_off_the_grid(system: tuple[RevmChain, str], job: Job) -> None:
    case, scene = job.cases["SUM"], Scene(system, job.bundle)
    trainer = scene.trainer(job.cheat("SUM", case.exact24))
    with pytest.raises(ContractError, match=rf"NotTheClaimedSum\({ONE}, {case.exact24}\)"):
        scene.play(trainer, Auditor(scene.game(), scene.id, job.honest))
