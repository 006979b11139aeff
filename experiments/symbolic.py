"""Prove with Halmos that assembly equals its plain form, and the clock's arithmetic (tests/contracts/Symbolic.sol).

In: the checks, compiled like the contracts. Out: each check with its number of paths; exit code 1 if one fails or is
undecided. vgame does not require Halmos: install version 0.3.3 in a separate environment (`pip install halmos==0.3.3`)
and give that one's interpreter: `experiments/symbolic.py --python ENVIRONMENT/bin/python`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import solcx

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))
# ruff: noqa: E402
from compile import reachable

CHECKS = ROOT / "tests" / "contracts" / "Symbolic.sol"
SIZES = ["--default-bytes-lengths", "0,1,8,12,36", "--default-array-lengths", "1,4", "--loop", "64"]
#: Halmos 0.3.3 declares SHA-256 of n bytes as a function of n bits, and then gives it 8n.
START = """
import sys, halmos.sevm as sevm
from z3 import BitVecSort, Function
def function(name, *sorts):
    if name.startswith("f_sha256_"):
        return Function(name, BitVecSort(8 * int(name[9:])), *sorts[1:])
    return Function(name, *sorts)
sevm.Function = function
from halmos.__main__ import main
sys.exit(main())
"""


def artifact() -> dict:
    """The compiled checks in the form of a forge build, which Halmos reads."""
    names = [path.relative_to(ROOT).as_posix() for path in reachable(CHECKS)]
    wanted = ["abi", "metadata", "evm.bytecode.object", "evm.deployedBytecode.object", "evm.methodIdentifiers"]
    os.chdir(ROOT)
    output = solcx.compile_standard({
        "language": "Solidity", "sources": {name: {"content": (ROOT / name).read_text()} for name in names},
        "settings": {
            "evmVersion": "prague", "viaIR": True, "optimizer": {"enabled": True, "runs": 800},
            "outputSelection": {"*": {"*": [*wanted, "storageLayout"], "": ["ast"]}},
        },
    }, solc_binary=ROOT / "scripts" / "solc.mjs", base_path=".")  # fmt: skip
    name = CHECKS.relative_to(ROOT).as_posix()
    contract, source = output["contracts"][name]["Symbolic"], output["sources"][name]
    codes = {
        kind: {"object": "0x" + contract["evm"][kind]["object"], "linkReferences": {}}
        for kind in ("bytecode", "deployedBytecode")
    }
    return codes | {
        "abi": contract["abi"], "metadata": json.loads(contract["metadata"]), "ast": source["ast"], "id": source["id"],
        "storageLayout": contract["storageLayout"], "methodIdentifiers": contract["evm"]["methodIdentifiers"],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of an environment that has Halmos")
    parser.add_argument("--only", default="", help="checks whose names begin so, without `check_`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vgame-symbolic-") as folder:
        place = Path(folder)
        (place / "out" / CHECKS.name).mkdir(parents=True)
        (place / "out" / CHECKS.name / "Symbolic.json").write_text(json.dumps(artifact()))
        forge = place / "bin" / "forge"  # Halmos calls it to compile, which is already done
        forge.parent.mkdir()
        forge.write_text("#!/bin/sh\n")
        forge.chmod(0o755)
        command = [
            options.python,
            "-c",
            START,
            "--root",
            folder,
            "--contract",
            "Symbolic",
            "--function",
            f"check_{options.only}",
            *SIZES,
        ]
        return subprocess.run(command, env=os.environ | {"PATH": f"{forge.parent}:{os.environ['PATH']}"}).returncode


if __name__ == "__main__":
    sys.exit(main())
