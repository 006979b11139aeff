"""A claim has room for 2^31 disputes, more than any account can pay: the counter cannot be filled to keep auditors
out."""

from __future__ import annotations

import pytest
from bonus_stage import Stage
from eth_abi import encode
from eth_utils import keccak

from vgame.chain.records import Level, Phase
from vgame.errors import ContractError

DISPUTES = 120  # the counter's first bit in a job's first word (contracts/storage.json)


def counted(stage: Stage, number: int) -> None:
    """Set the claim's counter to this number of disputes, all of them ended."""
    slot = int.from_bytes(keccak(encode(["bytes32", "uint256"], [stage.job, 0])))
    word = int(stage.chain.node.storage(stage.address, hex(slot)), 16)
    stage.chain.node.set_storage(stage.address, slot, word | number << DISPUTES)
    assert stage.client.job(stage.job).disputes == number


@pytest.mark.parametrize("number", [2**24 - 1, 2**24, 2**31 - 1])
def test_a_dispute_of_any_number_ends(stage: Stage, number: int) -> None:
    """The trainer has left: its clock runs out."""
    stage.claimed(stage.job, stage.trained.history(stage.trained.run))
    counted(stage, number)
    auditor, run = stage.game(), stage.trained.run
    call = (stage.job, int(Level.RUN), 0, stage.client.job(stage.job).run_root, (0, bytes(32), bytes(32)))
    auditor.send("challenge", *call, value=stage.trained.bundle.terms.auditor_bond)
    assert stage.client.disputes(stage.job, number)[0].number == number
    if number < 2**31 - 1:  # the second one: both wait for the same root
        stage.game().send("challenge", *call, value=stage.trained.bundle.terms.auditor_bond)
        assert stage.client.job(stage.job).queue == 1
    stage.chain.advance(run.bundle.terms.trainer_budget + 1)
    auditor.send("timeoutMany", stage.job, [number])
    assert stage.client.job(stage.job).phase is Phase.CONVICTED and stage.client.verdict(stage.job).dispute == number


def test_a_claim_has_at_most_two_to_the_31_disputes(stage: Stage) -> None:
    stage.claimed(stage.job, stage.trained.history(stage.trained.run))
    counted(stage, 2**31)
    call = (stage.job, int(Level.RUN), 0, stage.client.job(stage.job).run_root, (0, bytes(32), bytes(32)))
    with pytest.raises(ContractError, match="TooManyDisputes"):
        stage.game().send("challenge", *call, value=stage.trained.bundle.terms.auditor_bond)
