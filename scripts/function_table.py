"""The table of MAP functions in docs/formats.md, from vgame/arithmetic/functions.py and the reference.

`--check` writes nothing and fails if the page has another table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vgame.arithmetic.functions import BINARY_F, BINARY_I, COMPARE_F, COMPARE_I, UNARY_F, Function, arity
from vgame.arithmetic.reference import functions as reference

PAGE = Path(__file__).resolve().parents[1] / "docs" / "formats.md"
FIRST, LAST = "<!-- functions: scripts/function_table.py -->\n", "<!-- end of functions -->\n"
SPECIAL = {"−0": 0x80000000, "−1": 0xBF800000, "+inf": 0x7F800000, "−inf": 0xFF800000, "NaN": 0x7FC00000}
TYPES = {UNARY_F: "f → f", BINARY_F: "f f → f", COMPARE_F: "f f → i", BINARY_I: "i i → i", COMPARE_I: "i i → i"}
OTHER = {Function.ITOF: "i → f", Function.FTOI: "f → i", Function.SELECT: "i x x → x"}


def types(function: Function) -> str:
    """Types of operands and result: f binary32, i int32, x either, the same for both and the result."""
    return OTHER.get(function) or next(text for group, text in TYPES.items() if function in group)


def specials(function: Function) -> str:
    """The result words for the special operands; empty for functions of two operands."""
    if not types(function).startswith("f →"):
        return ""
    return ", ".join(f"{name}: `{reference.evaluate(function, word):08x}`" for name, word in SPECIAL.items())


def table() -> str:
    rows = [f"| {f:d} | {f.name} | {arity(f)} | {types(f)} | {specials(f)} |\n" for f in Function]
    return "| code | name | operands | types | results for special operands |\n|---|---|---|---|---|\n" + "".join(rows)


def renewed(page: str) -> str:
    """The page with the current table."""
    before, rest = page.split(FIRST)
    return before + FIRST + table() + LAST + rest.split(LAST)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    page = PAGE.read_text()
    if not parser.parse_args().check:
        PAGE.write_text(renewed(page))
    elif renewed(page) != page:
        raise SystemExit(
            "the table in docs/formats.md is not that of the functions; run `python scripts/function_table.py`"
        )


if __name__ == "__main__":
    main()
