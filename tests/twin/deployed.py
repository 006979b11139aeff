"""Contracts under test: compiled once per content, deployed in an in-process EVM, called by their ABI.

Compiled output is cached in build/contracts/ under the hash of every source that a contract reaches and of the compiler
settings. The large harnesses take minutes to compile: a separate process compiles them while tests without harnesses
run (`compile_ahead`).
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vgame.chain.wallet import calldata_floor
from vgame.system.files import write_atomic

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "contracts"
HARNESSES = ROOT / "tests" / "contracts"
CALLER = "0x" + "11" * 20


def _script() -> ModuleType:
    """scripts/compile.py as a module."""
    spec = importlib.util.spec_from_file_location("compile_script", ROOT / "scripts" / "compile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = _script()


class Reverted(Exception):
    """A call reverted with a custom error: its name and arguments."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        super().__init__(f"{name}{arguments}")
        self.name = name
        self.arguments = arguments


class Contract:
    """A deployed contract: `contract.call("f", x, y)` encodes by its ABI and returns the decoded outputs.

    `near`: a contract in whose EVM this one is deployed; `arguments`: the constructor's addresses.
    """

    def __init__(self, artifacts: dict[str, dict], name: str, *arguments: str, near: Contract | None = None) -> None:
        import pyrevm
        from eth_utils.abi import function_abi_to_4byte_selector as selector

        self.artifacts = artifacts
        self.evm = near.evm if near else pyrevm.EVM(gas_limit=10**13, spec_id="PRAGUE")
        addresses = b"".join(bytes.fromhex(a[2:]).rjust(32, b"\0") for a in arguments)
        self.address = self.evm.deploy(CALLER, bytes.fromhex(artifacts[name]["bytecode"]) + addresses)
        self.functions = {entry["name"]: entry for entry in artifacts[name]["abi"] if entry["type"] == "function"}
        self.selectors = {name: selector(entry) for name, entry in self.functions.items()}

    def call(self, function: str, *arguments: Any, gas: int = 10**12) -> Any:
        """The outputs (a bare value if there is one); Reverted for a custom error."""
        from eth_abi import decode, encode
        from eth_utils.abi import get_abi_input_types, get_abi_output_types

        entry = self.functions[function]
        self._data = self.selectors[function] + encode(get_abi_input_types(entry), arguments)
        try:
            output = self.evm.message_call(CALLER, self.address, calldata=self._data, gas=gas)
        except RuntimeError as error:
            raise self._decode_revert(error) from error
        values = decode(get_abi_output_types(entry), output)
        return values[0] if len(values) == 1 else values

    @property
    def gas(self) -> int:
        """Gas of the last call as a transaction: the used gas, or the floor for its calldata, which this EVM does not
        apply."""
        return max(int(self.evm.result.gas_used), calldata_floor(self._data))

    def _decode_revert(self, error: RuntimeError) -> Exception:
        found = re.search(r"0x([0-9a-f]{8,})", str(error))
        return self.decode_error(bytes.fromhex(found[1])) if found else error

    def decode_error(self, data: bytes) -> Reverted:
        """The custom error of any compiled contract whose selector `data` starts with."""
        from eth_abi import decode

        if entry := self._errors.get(data[:4]):
            return Reverted(entry["name"], decode([i["type"] for i in entry["inputs"]], data[4:]))
        return Reverted("0x" + data.hex(), ())

    @cached_property
    def _errors(self) -> dict[bytes, dict]:
        """The custom errors of all compiled contracts, by selector."""
        from eth_utils.abi import function_abi_to_4byte_selector as selector

        entries = (entry for artifact in self.artifacts.values() for entry in artifact["abi"])
        return {selector(entry): entry for entry in entries if entry["type"] == "error"}


def cache_of(path: Path) -> Path:
    """The cache file of the compiled output of `path`."""
    settings = [ROOT / "scripts" / "compile.py", ROOT / "package-lock.json"]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in [*script.reachable(path), *settings])).hexdigest()[:16]
    return CACHE / f"{path.stem}-{digest}.json"


def compile_cached(path: Path) -> dict[str, dict]:
    """Contract name -> {abi, bytecode, runtime} of `path`, from build/contracts/ if no relevant input has changed."""
    cached = cache_of(path)
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(cached.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process compiles, the others wait for it
        if not cached.exists():
            write_atomic(cached, json.dumps(_compiler()([path])).encode())
    return json.loads(cached.read_text())


def compile_ahead(names: Sequence[str]) -> None:
    """Begin to compile the harnesses that are not in the cache."""
    paths = [path for name in names if not cache_of(path := HARNESSES / f"{name}.sol").exists()]
    if paths and has_compiler():
        atexit.register(subprocess.Popen(["nice", sys.executable, __file__, *map(str, paths)]).kill)


def has_compiler() -> bool:
    """Whether node and the compiler are installed."""
    return shutil.which("node") is not None and (ROOT / "node_modules" / "solc").exists()


def _compiler() -> Callable[[list[Path]], dict[str, dict]]:
    if not has_compiler():
        message = "the Solidity compiler is missing: install node, then run `npm install`"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return script.compile_sources


def deploy(name: str) -> Contract:
    """The harness tests/contracts/NAME.sol, deployed."""
    return Contract(compile_cached(HARNESSES / f"{name}.sol"), name)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        compile_cached(Path(argument))
