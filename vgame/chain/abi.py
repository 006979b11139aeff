"""The checked-in contracts, and the ABI of all contracts of the game."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from web3 import Web3
from web3.exceptions import Web3Exception

#: Contracts that decide elements (interface IReferee).
REFEREES = ("Referee", "Logged", "Pointwise")
#: Contracts of which only the errors are included.
ERRORS_ONLY = (*REFEREES, "AccuracyEscrow")


@cache
def artifact(name: str) -> dict[str, Any]:
    """ABI and code of a contract, from the repository's artifacts."""
    text = (files("vgame.chain") / "artifacts" / f"{name}.json").read_text()
    return dict(json.loads(text))


@cache
def full_abi() -> list[dict[str, Any]]:
    """One ABI for all contracts of the game, with the errors of referees and escrow."""
    entries: dict[str, dict[str, Any]] = {}
    for name in ("VerificationGame", "Settlement", "Delivery", *ERRORS_ONLY):
        for entry in artifact(name)["abi"]:
            skipped = name in ERRORS_ONLY and entry["type"] != "error"
            if entry["type"] in ("constructor", "fallback") or skipped:
                continue
            entries[json.dumps([entry["type"], entry.get("name"), entry["inputs"]])] = entry
    return list(entries.values())


@cache
def errors() -> dict[bytes, tuple[str, list[str]]]:
    """Selector -> name and argument types of every custom error."""
    found = [(e["name"], [abi_type(i) for i in e["inputs"]]) for e in full_abi() if e["type"] == "error"]
    return {bytes(Web3.keccak(text=f"{name}({','.join(types)})")[:4]): (name, types) for name, types in found}


def known_revert(answer: object) -> str | None:
    """Revert data in a reply of any form: nodes and proxies nest it in objects, lists and sentences. None if no data
    begin with the selector of a contract's error."""
    found = re.findall("0x(?:[0-9a-fA-F]{2}){4,}", str(answer))
    return next((data for data in found if bytes.fromhex(data[2:10]) in errors()), None)


def refuse_overlap(data: bytes) -> None:
    """ValueError if the elements of an encoded `bytes[]` overlap, so that they are together longer than the data:
    decoded, they could take any amount of memory."""

    def word(at: int) -> int:
        return int.from_bytes(data[at : at + 32])

    begin = word(0)
    count, base = word(begin), begin + 32
    if 32 * count > len(data) or sum(word(base + word(base + 32 * n)) for n in range(count)) > len(data):
        raise ValueError("the elements of a list are longer than the data")


def abi_type(item: dict[str, Any]) -> str:
    """Canonical ABI type of an input, with tuples expanded."""
    if not item["type"].startswith("tuple"):
        return str(item["type"])
    return f"({','.join(abi_type(c) for c in item['components'])}){item['type'][5:]}"


def called(contract: Any, data: bytes) -> tuple[str, int | None]:
    """Name of a call, and the number of its dispute. Other arguments are not decoded, because one call has many
    encodings."""
    try:
        function = contract.get_function_by_selector(data[:4])
    except Web3Exception:  # a call of another contract, which then called this one
        return "other", None
    inputs = [i["name"] for i in function.abi["inputs"]]
    return function.fn_name, int.from_bytes(data[36:68]) if inputs[1:2] == ["n"] else None
