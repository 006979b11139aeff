"""Compile contracts/ with the pinned npm compiler through py-solc-x.

In: contracts/**/*.sol. Out: vgame/chain/artifacts/NAME.json (ABI, creation and runtime code, places of immutables) for
the deployed contracts, and contracts/storage.json: the place of each variable of the game. VerificationGame runs the
code of Settlement and Delivery by delegatecall, so all three must have one layout. `--check` compares a new compilation
with the checked-in files, and exits with 1 if they differ. Test harnesses (tests/contracts/) are compiled on demand by
`compile_sources`, never checked in.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

import solcx

ROOT = Path(__file__).resolve().parent.parent
ARTIFACTS = ROOT / "vgame" / "chain" / "artifacts"
STORAGE = ROOT / "contracts" / "storage.json"
DEPLOYED = ("VerificationGame", "Settlement", "Delivery", "Referee", "Logged", "Pointwise", "AccuracyEscrow")
#: They share the game's storage by delegatecall.
SHARING = ("VerificationGame", "Settlement", "Delivery")
CODE_SIZE_LIMIT = 24_576  # EIP-170
IMPORT = re.compile(r'^import .*?"([^"]+)";', re.MULTILINE | re.DOTALL)
RUNTIME = ["evm.deployedBytecode.object", "evm.deployedBytecode.immutableReferences"]


def reachable(path: Path) -> list[Path]:
    """The sources imported by `path`, including itself (npm packages are pinned by package-lock.json)."""
    found, queue = set(), [path]
    while queue:
        source = queue.pop()
        if source in found:
            continue
        found.add(source)
        for name in IMPORT.findall(source.read_text()):
            if not name.startswith("@"):
                queue.append((source.parent / name if name.startswith(".") else ROOT / name).resolve())
    return sorted(found)


def compile_sources(paths: list[Path]) -> dict[str, dict]:
    """Contract name -> {abi, bytecode, runtime, immutables} for every contract of the files and of their imports.

    `immutables`: places of the runtime code that the constructor fills with words of 32 bytes.
    """
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    standard_input = {
        "language": "Solidity",
        "sources": {name: {"content": (ROOT / name).read_text()} for name in names},
        "settings": {
            "evmVersion": "prague",
            "viaIR": True,
            "optimizer": {"enabled": True, "runs": 800},
            "metadata": {"bytecodeHash": "none", "appendCBOR": False},
            "outputSelection": {"*": {"*": ["abi", "evm.bytecode.object", "storageLayout", *RUNTIME]}},
        },
    }
    os.chdir(ROOT)
    output = solcx.compile_standard(standard_input, solc_binary=ROOT / "scripts" / "solc.mjs", base_path=".")
    compiled = {}
    for contracts in output["contracts"].values():
        for name, contract in contracts.items():
            places = contract["evm"]["deployedBytecode"]["immutableReferences"].values()
            compiled[name] = {
                "abi": contract["abi"],
                "bytecode": contract["evm"]["bytecode"]["object"],
                "runtime": contract["evm"]["deployedBytecode"]["object"],
                "immutables": sorted(p["start"] for uses in places for p in uses),
                "storage": layout(contract["storageLayout"]),
            }
    return compiled


def layout(found: dict) -> dict[str, list[str]]:
    """`slot:offset type name` of each variable, and of each field of the stored structs."""

    def places(variables: list[dict]) -> list[str]:
        return [f"{v['slot']}:{v['offset']} {found['types'][v['type']]['label']} {v['label']}" for v in variables]

    types = sorted((found["types"] or {}).values(), key=lambda t: t["label"])
    structs = {t["label"]: places(t["members"]) for t in types if "members" in t}
    return {"variables": places(found["storage"]), **structs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("names", nargs="*", help="only these of the deployed contracts")
    options = parser.parse_args()
    ARTIFACTS.mkdir(exist_ok=True)
    texts, layouts = {}, {}
    for name in options.names or DEPLOYED:
        (source,) = (ROOT / "contracts").rglob(f"{name}.sol")
        contract = compile_sources([source])[name]  # alone: other sources in the compilation would change the inlining
        layouts[name] = contract.pop("storage")
        texts[ARTIFACTS / f"{name}.json"] = json.dumps(contract, indent=1, sort_keys=True) + "\n"
        size = len(contract["runtime"]) // 2
        print(f"{name}: {size:,} bytes of {CODE_SIZE_LIMIT:,}")
        if size > CODE_SIZE_LIMIT:
            print(f"{name} is too large to deploy: {size:,} bytes, the limit is {CODE_SIZE_LIMIT:,}", file=sys.stderr)
            return 1
    shared = [layouts[name] for name in SHARING if name in layouts]
    if any(one != shared[0] for one in shared):
        print(
            f"{', '.join(SHARING)} must have one storage layout; declare variables in GameState only", file=sys.stderr
        )
        return 1
    if shared:
        texts[STORAGE] = json.dumps(shared[0], indent=1) + "\n"
    if not options.check:
        for path, text in texts.items():
            path.write_text(text)
        return 0
    stale = [path.name for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if stale:
        print(
            f"not what the sources give: {', '.join(stale)}; run `make contracts` and commit the result",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
