"""Calls, results and logs of the game as bytes, by its ABI alone."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from eth_abi import decode, encode
from web3 import Web3

from vgame.chain.abi import abi_type, full_abi
from vgame.chain.records import Event

# ---- the game's interface ----

ENTRIES = {entry["name"]: entry for entry in full_abi() if entry["type"] in ("function", "event")}


def signature(name: str) -> bytes:
    """keccak256 of the canonical name of a function or an event."""
    entry = ENTRIES[name]
    return bytes(Web3.keccak(text=f"{name}({','.join(abi_type(i) for i in entry['inputs'])})"))


SELECTORS = {name: signature(name)[:4] for name, entry in ENTRIES.items() if entry["type"] == "function"}
INPUTS = {name: [abi_type(i) for i in ENTRIES[name]["inputs"]] for name in SELECTORS}
OUTPUTS = {name: [abi_type(o) for o in ENTRIES[name]["outputs"]] for name in SELECTORS}
TOPICS = {"0x" + signature(name).hex(): name for name in ENTRIES if name not in SELECTORS}
DATA = {name: [abi_type(i) for i in ENTRIES[name]["inputs"] if not i["indexed"]] for name in TOPICS.values()}


def calldata(name: str, arguments: Any) -> str:
    return "0x" + (SELECTORS[name] + encode(INPUTS[name], arguments)).hex()


@lru_cache(10_000)
def decode_output(name: str, raw: str) -> tuple[Any, ...]:
    """What a view returned; most answers are those of the last time."""
    return _checksummed(decode(OUTPUTS[name], bytes.fromhex(raw[2:])))


def decode_log(log: dict[str, Any]) -> Event:
    """A log of the game, decoded once."""
    if "event" not in log:
        name, inputs = TOPICS[log["topics"][0]], ENTRIES[TOPICS[log["topics"][0]]]["inputs"]
        indexed = [i for i in inputs if i["indexed"]]
        words = (bytes.fromhex(topic[2:]) for topic in log["topics"][1:])
        args = {i["name"]: decode([abi_type(i)], word)[0] for i, word in zip(indexed, words, strict=True)}
        plain = [i["name"] for i in inputs if not i["indexed"]]
        args |= dict(zip(plain, decode(DATA[name], bytes.fromhex(log["data"][2:])), strict=True))
        args = {key: _checksummed(value) for key, value in args.items()}
        log["event"] = Event(name, args, int(log["blockNumber"], 16), log["transactionHash"])
    return log["event"]


@cache
def _address(text: str) -> str:
    return Web3.to_checksum_address(text)


def _checksummed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_checksummed(v) for v in value)
    return _address(value) if isinstance(value, str) and len(value) == 42 else value
