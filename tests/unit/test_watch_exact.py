"""The page's own arithmetic (vgame/watch/page/exact.js) against the vectors and the reference, bit for bit."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from vgame.arithmetic.functions import ELEMENTARY, Function, arity
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.reference import sums

ROOT = Path(__file__).resolve().parents[2]
EXACT = ROOT / "vgame" / "watch" / "page" / "exact.js"
VECTORS = ROOT / "tests" / "vectors"
NODE = shutil.which("node")
DRIVER = """
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
const plain = (found) => found.word !== undefined ? Number(found.word) : found.partial ?? found;
console.log(JSON.stringify(asked.map((recipe) => plain(recompute(recipe)))));
"""

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed: the page's arithmetic is not tested")


def computed(recipes: list[dict[str, Any]]) -> list[Any]:
    """The results of the page's script for recipes."""
    done = subprocess.run(
        [str(NODE), "-e", EXACT.read_text() + DRIVER], input=json.dumps(recipes), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def recipe(kind: str, *words: list[int], bits: int = 24, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "words": list(words), "bits": bits, "integer": False, "part": None, **more}


def words_of(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


FUNCTIONS = [f for f in Function if f not in ELEMENTARY]
EDGES = [0, 1, 0x007FFFFF, 0x00800000, 0x3F000000, 0x3F800000, 0x3F800001, 0x4B000001, 0x4F000000, 0x7F7FFFFF,
         0x7F800000, 0x7F800001, 0x7FC00000]  # fmt: skip


@pytest.mark.parametrize("key, bits", [("results", 24), ("bfloat16", 8)])
def test_every_vector_of_every_function(key: str, bits: int) -> None:
    vectors, recipes, expected = json.loads((VECTORS / "functions.json").read_text()), [], []
    for name, vector in vectors.items():
        if Function[name] in ELEMENTARY or key not in vector:
            continue
        recipes += [
            recipe("map", list(words), bits=bits, function=name, integer=True)
            for words in product(*map(words_of, vector["operands"]))
        ]
        expected += words_of(vector[key])
    assert computed(recipes) == expected and len(expected) > 1_900


def drawn(draw: random.Random) -> int:
    word = draw.choice([*EDGES, draw.getrandbits(31), 0x3F000000 + draw.getrandbits(25)])
    return word | draw.getrandbits(1) << 31


@pytest.mark.parametrize("bits", [24, 8])
def test_functions_are_the_references(bits: int) -> None:
    draw, recipes, expected = random.Random(bits), [], []
    for function in FUNCTIONS:
        for _ in range(150):
            words = [drawn(draw) for _ in range(arity(function))]
            recipes.append(recipe("map", words, bits=bits, function=function.name, integer=True))
            expected.append(reference.evaluate(function, *words, bits=bits))
    assert computed(recipes) == expected


@pytest.mark.parametrize("bits", [24, 8])
def test_sums_are_the_references(bits: int) -> None:
    draw, recipes, expected = random.Random(7 + bits), [], []
    for _ in range(150):
        count = draw.randint(1, 60)
        source = drawn if draw.random() < 0.3 else (lambda d: 0x3F000000 + d.getrandbits(25) | d.getrandbits(1) << 31)
        a, b = ([source(draw) for _ in range(count)] for _ in range(2))
        index = [draw.randrange(3) for _ in range(count)]
        for kind, words, total in (
            ("dot", [a, b], sums.partial_dot(a, b)),
            ("sum", [a], sums.partial_sum(a)),
            ("one_hot", [index, b], sums.partial_one_hot_sum(index, 1, b)),
        ):
            total = total.narrow() if bits == 8 else total
            for part, truth in ((None, total.round()), (3, total.encode().hex())):
                recipes.append(recipe(kind, *words, bits=bits, part=part, row=1))
                expected.append(truth)
    assert computed(recipes) == expected


def test_the_vectors_of_sums() -> None:
    vectors = json.loads((VECTORS / "sums.json").read_text())
    recipes = [recipe("dot", words_of(v["a"]), words_of(v["b"]), part=part) for v in vectors for part in (None, 0)]
    expected = [truth for v in vectors for truth in (int(v["word"], 16), v["partial"])]
    assert computed(recipes) == expected


def test_copies_and_maxima() -> None:
    draw = random.Random(3)
    rows = [[drawn(draw) for _ in range(draw.randint(1, 9))] for _ in range(200)]
    kinds = [
        ("max", False, reference.reduce_max),
        ("max", True, reference.integer_max),
        ("argmax", True, reference.argmax),
    ]
    for kind, integer, truth in kinds:
        assert computed([recipe(kind, row, integer=integer) for row in rows]) == [truth(row) for row in rows]
    assert computed([recipe("copy", [0x7F800001]), recipe("copy", [0x7F800001], integer=True)]) == [
        0x7FC00000,
        0x7F800001,
    ]


def test_an_uncomputed_number_has_a_reason() -> None:
    assert computed([{"not": "exp is an elementary function"}]) == [{"not": "exp is an elementary function"}]
