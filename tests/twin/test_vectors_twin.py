"""The contract reproduces tests/vectors/: functions, sums, random words, shuffles."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from deployed import Contract
from draws import pack, unpack

from vgame.arithmetic.functions import ELEMENTARY

pytestmark = pytest.mark.node
FOLDER = Path(__file__).resolve().parents[1] / "vectors"


def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_functions(arithmetic: Contract, elementary: Contract) -> None:
    elementary_codes = {int(f) for f in ELEMENTARY}
    for name, found in load("functions").items():
        columns = list(zip(*product(*map(words, found["operands"])), strict=True))
        if found["code"] in elementary_codes:
            big_endian = b"".join(word.to_bytes(4, "big") for word in columns[0])
            got = list(elementary.call("evaluateMany", found["code"], 0, big_endian)[0])
        else:
            columns += [columns[0]] * (3 - len(columns))
            got = unpack(arithmetic.call("evaluateMany", found["code"], 0, *map(pack, columns)))
        assert got == words(found["results"]), name
        if "bfloat16" in found:
            if found["code"] in elementary_codes:
                got = list(elementary.call("evaluateMany", found["code"], 16, big_endian)[0])
            else:
                got = unpack(arithmetic.call("evaluateMany", found["code"], 16, *map(pack, columns)))
            assert got == words(found["bfloat16"]), name


def test_sums(arithmetic: Contract) -> None:
    for row in load("sums"):
        a, b = words(row["a"]), words(row["b"])
        (got,) = arithmetic.call("sums", 0, pack(a), pack(b), [len(a)], [])
        assert got.hex() == row["partial"] + row["word"]


def test_random_words_and_shuffles(arithmetic: Contract) -> None:
    found = load("random")
    for w in found["words"]:
        assert arithmetic.call("randomWords", w["seed"], w["step"], w["operator"], [w["element"]]) == (w["word"],)
    for s in found["shuffle"]:
        for i, expected in enumerate(s["out"]):
            assert arithmetic.call("shuffleIndex", s["seed"], s["step"], i, s["elements"], s["population"]) == expected
