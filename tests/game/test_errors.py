"""Every refusal of the contract, by name and arguments: an illegal call always reverts, with the error of its cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import refused_jobs
import refused_money
import refused_moves
from refusals import CASES, Prepare
from scene import Scene

from vgame.chain.abi import artifact
from vgame.errors import ContractError

ROOT = Path(__file__).resolve().parents[2]
assert refused_jobs and refused_moves and refused_money, "their cases register themselves"

#: Errors that no call can cause, with reasons.
UNREACHABLE = {
    "ForeignReferee": "only the constructor's; tests/game/test_code.py",
    "NoSha256": "only the constructor's; tests/game/test_code.py",
    "OnlyDelegated": "only at the settlement's own address; tests/game/test_code.py",
    "TooManyDisputes": "only after 2^31 disputes; tests/game/test_counters.py",
    "HashFailed": "the SHA-256 precompile fails only for lack of gas, and then too little is left to say so",
    "RangeProofLength": "only the referee opens ranges; tested there",
}


#: Errors of delivery; each is met in tests/game/test_delivery.py or test_delivery_money.py.
DELIVERY = set(re.findall(r"^    error (\w+)\(", (ROOT / "contracts" / "IDelivery.sol").read_text(), re.MULTILINE))


def test_every_error_of_delivery_is_tested() -> None:
    tests = "".join((Path(__file__).parent / f"test_delivery{part}.py").read_text() for part in ("", "_money"))
    assert {name for name in DELIVERY if not re.search(rf'"(\w+\|)?{name}\b', tests)} == set()


@pytest.mark.parametrize("names,case", CASES, ids=[case.__name__ for _, case in CASES])
def test_an_illegal_call_reverts_with_its_error(scene: Scene, names: frozenset[str], case: Prepare) -> None:
    met = set()
    for refusal in case(scene):
        with pytest.raises(ContractError) as caught:
            refusal.call.send(refusal.game)
        assert caught.value.name == refusal.error, refusal.call.name
        assert refusal.args is None or caught.value.args_ == refusal.args, refusal.call.name
        met.add(refusal.error)
    assert met == names


def declared() -> set[str]:
    """Every custom error of the game's contracts, from their interfaces and from their sources."""
    found = {
        e["name"] for name in ("VerificationGame", "Settlement") for e in artifact(name)["abi"] if e["type"] == "error"
    }
    for path in (ROOT / "contracts").glob("*.sol"):
        if path.stem not in ("Referee", "Operands", "Records", "AccuracyEscrow"):  # the last: test_bonus.py
            found |= set(re.findall(r"^\s*error (\w+)\(", path.read_text(), re.MULTILINE))
    return found


def test_every_error_is_tested_or_cannot_occur() -> None:
    met = set().union(*(names for names, _ in CASES)) & declared()
    assert met | set(UNREACHABLE) | DELIVERY == declared()
    assert not met & set(UNREACHABLE)
