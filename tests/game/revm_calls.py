"""Calls, results and logs of the game as bytes, by its ABI alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from eth_abi import decode, encode
from eth_abi.grammar import ABIType, TupleType, parse
from web3 import Web3

from vgame.chain.abi import abi_type, full_abi
from vgame.chain.records import Event

WORD = 32

# ---- the game's interface ----

ENTRIES = {entry["name"]: entry for entry in full_abi() if entry["type"] in ("function", "event")}


def signature(name: str) -> bytes:
    """keccak256 of the canonical name of a function or an event."""
    entry = ENTRIES[name]
    return bytes(Web3.keccak(text=f"{name}({','.join(abi_type(i) for i in entry['inputs'])})"))


@cache
def topic(name: str) -> str:
    return "0x" + signature(name).hex()


SELECTORS = {name: signature(name)[:4] for name, entry in ENTRIES.items() if entry["type"] == "function"}
INPUTS = {name: [abi_type(i) for i in ENTRIES[name]["inputs"]] for name in SELECTORS}
OUTPUTS = {name: [abi_type(o) for o in ENTRIES[name]["outputs"]] for name in SELECTORS}
TOPICS = {topic(name): name for name in ENTRIES if name not in SELECTORS}
DATA = {name: [abi_type(i) for i in ENTRIES[name]["inputs"] if not i["indexed"]] for name in TOPICS.values()}


def calldata(name: str, arguments: Any) -> str:
    """A call as hex; cached if its arguments are hashable."""
    try:
        return _calldata(name, tuple(arguments))
    except TypeError:  # lists among them
        return _calldata.__wrapped__(name, arguments)


@lru_cache(10_000)
def _calldata(name: str, arguments: Any) -> str:
    return "0x" + (SELECTORS[name] + encode(INPUTS[name], arguments)).hex()


@lru_cache(10_000)
def decode_output(name: str, raw: str) -> tuple[Any, ...]:
    """The values that a view returned; most equal the last ones, so they are cached. Values are words, records of
    words, or lists of either, which follow the words in order."""
    data, place, values = bytes.fromhex(raw[2:]), 0, []
    end = sum(map(_size, OUTPUTS[name]))
    for kind in OUTPUTS[name]:
        if not kind.endswith("[]"):
            values.append(_read(kind, data[place : place + _size(kind)]))
            place += _size(kind)
            continue
        record, size = kind[:-2], _size(kind[:-2])
        offset, count = (int.from_bytes(data[at : at + WORD], "big") for at in (place, end))
        assert offset == end, "a list begins where the values before it end"
        place, first, end = place + WORD, end + WORD, end + WORD + count * size
        values.append(tuple(_read(record, data[at : at + size]) for at in range(first, end, size)))
    assert len(data) == end, name
    return tuple(values)


@cache
def _size(kind: str) -> int:
    """Bytes of a value, of a list those of its offset."""
    return WORD if kind.endswith("[]") else WORD * (kind.count(",") + 1)


@lru_cache(10_000)
def _read(kind: str, data: bytes) -> Any:
    words = iter([data[at : at + WORD] for at in range(0, len(data), WORD)])
    value = _value(parse(kind), words)
    assert not list(words), kind
    return value


def _value(kind: ABIType, words: Iterator[bytes]) -> Any:
    """eth_abi's decoder reads each word of a nested record several times."""
    if isinstance(kind, TupleType):
        return tuple(_value(part, words) for part in kind.components)
    word = next(words)
    match kind.base:
        case "uint":
            return int.from_bytes(word, "big")
        case "bytes":
            return word[: kind.sub]
        case "address":
            return _address("0x" + word[12:].hex())
        case "bool":
            return bool(word[-1])
    raise NotImplementedError(kind.to_type_str())


def decode_log(log: dict[str, Any]) -> Event:
    """A log of the game, decoded once."""
    if "event" not in log:
        name, inputs = TOPICS[log["topics"][0]], ENTRIES[TOPICS[log["topics"][0]]]["inputs"]
        indexed = [i for i in inputs if i["indexed"]]
        words = (bytes.fromhex(topic[2:]) for topic in log["topics"][1:])
        args = {i["name"]: _read(abi_type(i), word) for i, word in zip(indexed, words, strict=True)}
        plain = [i["name"] for i in inputs if not i["indexed"]]
        args |= dict(zip(plain, _values(name, bytes.fromhex(log["data"][2:])), strict=True))
        log["event"] = Event(name, args, int(log["blockNumber"], 16), log["transactionHash"])
    return log["event"]


@lru_cache(10_000)
def _values(name: str, data: bytes) -> tuple[Any, ...]:
    """The fields of an event that are not indexed. Values are words, unless a list or bytes are among them."""
    kinds = DATA[name]
    if any(kind.endswith(("]", ")")) or kind in ("bytes", "string") for kind in kinds):
        return tuple(map(checksummed, decode(kinds, data)))
    return tuple(_read(kind, data[WORD * n : WORD * (n + 1)]) for n, kind in enumerate(kinds))


@cache
def _address(text: str) -> str:
    return Web3.to_checksum_address(text)


def checksummed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(checksummed(v) for v in value)
    return _address(value) if isinstance(value, str) and len(value) == 42 else value
