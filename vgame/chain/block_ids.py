"""The block parameter of a JSON-RPC request: a tag, a number, a hash, or an object of EIP-1898. Twin: geth's
rpc.BlockNumberOrHash and StateAndHeaderByNumberOrHash.

In: the parameter, and the blocks of a chain. Out: a block's number, or the same error as geth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

FAILED, INVALID = -32000, -32602  # codes of JSON-RPC errors
NEWEST = ("latest", "safe", "finalized")  # equal here: no block is undone, except by a test
HASH = 66  # characters
HEX = re.compile("0x[0-9a-fA-F]+")


class RpcError(Exception):
    """A JSON-RPC error object."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message} | ({"data": data} if data is not None else {})


class Blocks(Protocol):
    """The blocks of a chain; `history`: number of blocks before the newest whose state is kept."""

    history: int

    def newest(self) -> int:
        """Number of the last block."""

    def hash_at(self, number: int) -> str:
        """Hash of a block of the chain."""

    def number_of(self, digest: str) -> int | None:
        """Number of any block ever made, also if the chain has replaced it."""


@dataclass(frozen=True, slots=True)
class BlockId:
    """A block parameter: a hash, or a number or tag."""

    which: int | str
    by_hash: bool = False
    canonical: bool = False  # EIP-1898: a block that is not canonical has its own error


def block_id(value: Any) -> BlockId:
    """The parsed parameter; None means the latest block. RpcError if it is invalid."""
    if value is None:
        return BlockId("latest")
    if isinstance(value, dict):
        return _of_object(value)
    if isinstance(value, str) and value.startswith("0x") and len(value) == HASH:
        return BlockId(_digest(value), by_hash=True)
    return BlockId(_number(value))


def _of_object(value: dict[str, Any]) -> BlockId:
    digest, number = value.get("blockHash"), value.get("blockNumber")
    if digest is not None and number is not None:
        raise RpcError(INVALID, "cannot specify both BlockHash and BlockNumber, choose one or the other")
    if digest is not None:
        return BlockId(_digest(digest), by_hash=True, canonical=bool(value.get("requireCanonical")))
    if number is None:
        raise RpcError(INVALID, "invalid arguments; neither block nor hash specified")
    return BlockId(_number(number))


def _digest(value: Any) -> str:
    if not (isinstance(value, str) and len(value) == HASH and _is_hex(value)):
        raise RpcError(INVALID, f"{value!r:.80} is not a block hash")
    return value.lower()


def _number(value: Any) -> int | str:
    if value in (*NEWEST, "pending", "earliest"):
        return value
    if not (isinstance(value, str) and _is_hex(value)):
        raise RpcError(INVALID, f"{value!r:.80} is not a block: a tag, a number in hex (0x...) or a hash is expected")
    return int(value, 16)


def _is_hex(text: str) -> bool:
    return HEX.fullmatch(text) is not None


def find(blocks: Blocks, value: Any) -> int | None:
    """Number of the requested block; for the pending block the newest plus 1. None if the chain has no such block."""
    named, newest = block_id(value), blocks.newest()
    match named.which:
        case "pending":
            return newest + 1
        case "earliest":
            return 0
        case str(tag) if tag in NEWEST:
            return newest
        case int(number):
            return number if number <= newest else None
        case digest:
            number = blocks.number_of(digest)
            return number if number is not None and _stands(blocks, number, digest) else None


def state(blocks: Blocks, value: Any) -> int:
    """Number of the block whose state is requested; RpcError if there is no such block, or its state is not kept."""
    named, number = block_id(value), find(blocks, value)
    if number is None:
        raise RpcError(FAILED, _absence(blocks, named))
    if number < blocks.newest() - blocks.history:
        raise RpcError(FAILED, f"missing trie node: the state of block {number} is no longer kept")
    return number


def _absence(blocks: Blocks, named: BlockId) -> str:
    if not named.by_hash:
        return "header not found"
    if blocks.number_of(str(named.which)) is None:
        return "header for hash not found"
    if named.canonical:
        return "hash is not currently canonical"
    return f"missing trie node: the state of block {named.which} is no longer kept"


def _stands(blocks: Blocks, number: int, digest: str) -> bool:
    return number <= blocks.newest() and blocks.hash_at(number) == digest


def log_range(blocks: Blocks, query: dict[str, Any]) -> range:
    """Numbers of the blocks whose logs are requested."""
    ends = [query.get("fromBlock"), query.get("toBlock")]
    if (digest := query.get("blockHash")) is not None:
        if ends != [None, None]:
            raise RpcError(INVALID, "cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other")
        number = find(blocks, {"blockHash": digest})
        if number is None:
            raise RpcError(FAILED, "unknown block")
        return range(number, number + 1)
    newest = blocks.newest()
    first, last = (find(blocks, end) for end in ends)
    return range(newest + 1 if first is None else min(first, newest), 1 + min(newest if last is None else last, newest))
