"""docs/costs.md: the cost of orders, disputes and deliveries on a public network, from docs/gas.json and stated prices.
With --check it only compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from written_page import write_or_check

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "costs.md"
GWEI = 10**9
ETHER = 10**18
DOLLARS = 3_000  # an ether
FEES = (1, 5, 30)  # gwei for a unit of gas
#: A rollup: a unit of its own gas in gwei; a byte of its calldata on the network below it, in units of gas there.
ROLLUP_FEE, BYTE = 0.01, 16

HEAD = f"""# Costs on a public network

Written by `scripts/costs.py` from [gas.json](gas.json), which `make gas` measures and checks.
Prices are examples, not forecasts: an ether is {DOLLARS:,} dollars; a unit of gas costs {FEES[0]},
{FEES[1]} or {FEES[2]} gwei (base fee and tip). At other prices the costs change in proportion.

On a rollup a transaction pays twice: its gas at the rollup's price (here {ROLLUP_FEE} gwei), and
its bytes on the network below (here {BYTE} gas a byte, as calldata without compression, at the same
three prices). A rollup that posts blobs, or that compresses, is cheaper.
"""
TAIL = """
A larger model or a longer training has deeper trees, and so more moves ([protocol](protocol.md)).
The winner is paid from the loser's bond ([economics](economics.md)). [Operations](operations.md)
describes how to deploy, and how to test this first.
"""


def rows(gas: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The rows of the table: gas and bytes of calldata."""
    disputes = sorted(gas["disputes"].items(), key=lambda item: item[1]["gas"])
    return {
        "the contracts, once": gas["deployment"],
        "an order without a dispute": gas["undisputed"],
        f"a dispute, small: {disputes[0][0]}": disputes[0][1],
        f"a dispute, large: {disputes[-1][0]}": disputes[-1][1],
    }


def money(wei: float) -> str:
    dollars = wei / ETHER * DOLLARS
    return f"{wei / ETHER:.4f} (${dollars:,.2f})"


def page(gas: dict[str, Any]) -> str:
    table, rollup = ([], [])
    for what, cost in rows(gas).items():
        fees = [cost["gas"] * fee * GWEI for fee in FEES]
        table.append([what, f"{cost['gas']:,}", str(cost["transactions"]), *map(money, fees)])
        below = [cost["gas"] * ROLLUP_FEE * GWEI + cost["calldata"] * BYTE * fee * GWEI for fee in FEES]
        rollup.append([what, f"{cost['calldata']:,}", *map(money, below)])
    prices = [f"ether at {fee} gwei" for fee in FEES]
    return "\n".join(
        [
            HEAD,
            "## On the network itself",
            "",
            *lines(["what", "gas", "transactions", *prices], table),
            "",
            "## As calldata of a rollup",
            "",
            *lines(["what", "bytes", *prices], rollup),
            TAIL,
        ]
    )


def lines(head: list[str], table: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *table)]


if __name__ == "__main__":
    write_or_check(PAGE, page(json.loads((DOCS / "gas.json").read_text())), "docs/gas.json says")
