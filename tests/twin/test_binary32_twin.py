"""contracts/arithmetic/Binary32.sol equals vgame/arithmetic/reference/functions.py on 10,000 draws of every function,
and on errors."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from deployed import Contract, Reverted
from draws import EDGES, draw, draw_pair, draw_square, draw_square_of_midpoint, pack, unpack

from vgame.arithmetic.functions import ELEMENTARY, Function, arity
from vgame.arithmetic.reference.functions import evaluate

pytestmark = pytest.mark.node
DRAWS = 10_000
SIMPLE = [f for f in Function if f not in ELEMENTARY]
SOURCE = Path(__file__).resolve().parents[2] / "contracts" / "arithmetic" / "Functions.sol"


def operands(function: Function, random: Random) -> list[tuple[int, int, int]]:
    """DRAWS triples: the edges, all or 6,000 of their pairs, then related and unrelated draws."""
    edges = [(a, 0, 0) for a in EDGES] if arity(function) == 1 else [(a, b, a ^ b) for a in EDGES for b in EDGES]
    triples = random.sample(edges, min(len(edges), DRAWS - 4_000))
    while len(triples) < DRAWS:
        if function is Function.SQRT and random.getrandbits(1):
            triples.append((random.choice((draw_square, draw_square_of_midpoint))(random), 0, 0))
        else:
            triples.append((*draw_pair(random), draw(random)))
    return triples


def on_chain(arithmetic: Contract, function: int, triples: list[tuple[int, int, int]], cut: int = 0) -> list[int]:
    """The contract's results, to 24 - cut bits."""
    a, b, c = (pack(words) for words in zip(*triples, strict=True))
    return unpack(arithmetic.call("evaluateMany", function, cut, a, b, c))


@pytest.mark.parametrize("function", SIMPLE, ids=lambda f: f.name)
def test_contract_equals_reference(arithmetic: Contract, function: Function) -> None:
    triples = operands(function, Random(int(function)))
    got = on_chain(arithmetic, function, triples)
    expected = [evaluate(function, *triple[: arity(function)]) for triple in triples]
    wrong = [
        f"{function.name}{[f'{w:08x}' for w in t]} = {g:08x}, not {e:08x}"
        for t, g, e in zip(triples, got, expected, strict=True)
        if g != e
    ]
    assert not wrong, wrong[:5]


def test_draws_distinguish_all_functions(arithmetic: Contract) -> None:
    """The damaged twin: a tenth of the draws already distinguishes every function from every other."""
    triples = operands(Function.ADD, Random(0))[::10]
    results = {f: tuple(on_chain(arithmetic, f, triples)) for f in SIMPLE}
    assert len(set(results.values())) == len(SIMPLE)


def test_the_contract_and_the_reference_have_the_same_codes() -> None:
    """Functions.sol names the same codes as functions.py."""
    found = re.findall(r"uint8 internal constant (\w+) = (\d+);", SOURCE.read_text())
    assert {name: int(code) for name, code in found} == {f.name: int(f) for f in Function}


def test_unknown_codes_revert(arithmetic: Contract) -> None:
    """Every code that is no function of Binary32, the elementary ones included."""
    word = pack([0x3F800000])
    for code in range(256):
        if code in {int(f) for f in SIMPLE}:
            arithmetic.call("evaluateMany", code, 0, word, word, word)
            continue
        with pytest.raises(Reverted) as caught:
            arithmetic.call("evaluateMany", code, 0, word, word, word)
        assert (caught.value.name, caught.value.arguments) == ("UnknownFunction", (code,))
