"""Attacks known from other dispute systems, by name: the outcome and the test of each. Tests without another file are
here."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from frauds import JUNK, LIE, SETUP, SPEC, Bluffer, Mistaken, word_lie
from outcomes import prize
from revm_calls import calldata
from revm_node import RICH, Reverted
from scene import Call, Scene, due

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Phase, Turn
from vgame.dispute.player import Player
from vgame.errors import ContractError

HERE = Path(__file__).parent


#: Attack -> (outcome, test).
LISTED = {
    "wrong element": ("convicted by element", "test_fraud.test_a_wrong_word_convicts_by_arithmetic"),
    "zero subtree, repeated leaves, random root": (
        "convicted by timeout",
        "test_trees.test_a_checkpoint_that_cannot_be_opened",
    ),
    "honest tree, other final model": ("refused", "refused_jobs.post_claim"),
    "wrong initial state": ("convicted by timeout", "test_fraud.test_another_initial_state_cannot_be_posted"),
    "wrong batch, order, rate; poisoned, backdoored, skipped": (
        "convicted by element",
        "test_attacks.test_an_attack_is_convicted",
    ),
    "nested root whose ends are not the parent's": ("refused, then timeout", "refused_moves.post_segment"),
    "nested tree of another step or job": ("refused, or convicted", "test_listed.test_the_trace_of_another_step"),
    "silence": ("convicted by timeout or element", "test_fraud.test_silence_does_not_help"),
    "every move at the last second": (
        "bounded by the budgets",
        "test_clocks_shared.test_a_dispute_ends_within_its_two_budgets_and_its_graces",
    ),
    "answers all paths but one": ("convicted by timeout", "test_listed.test_a_cheat_that_answers_all_other_disputes"),
    "two claims, twin jobs": (
        "refused; apart",
        "test_listed.test_there_is_one_claim_for_a_job_and_one_job_of_an_identity",
    ),
    "tree not padded": ("convicted by opening", "test_trees.test_padding_of_a_state"),
    "NaN, infinity": ("convicted by opening", "test_divergence.test_a_hidden_divergence"),
    "witness for another operator or step": ("refused", "refused_moves.prove"),
    "withdraws in mid-dispute": ("nothing to withdraw", "test_listed.test_no_bond_can_be_withdrawn_in_a_dispute"),
    "payee that reverts, burns gas, re-enters": (
        "only its own money is stuck",
        "test_listed_calls.test_a_payee_that_misbehaves_harms_only_itself",
    ),
    "finalises early or in the block of a challenge": (
        "refused",
        "test_clocks.test_a_challenge_ends_where_finality_begins",
    ),
    "children swapped, doubled, cut": (
        "not the contested node: no effect",
        "test_listed.test_damaged_children_are_no_answer",
    ),
    "extra calldata": ("ignored", "test_listed.test_extra_calldata_changes_nothing"),
    "fraud that cancels out": ("convicted", "test_fraud.test_frauds_that_cancel_out"),
    "random and all paths": ("dismissed, bonds lost", "test_many.test_fifty_accusers_of_an_honest_claim"),
    "opens and idles": ("dismissed by timeout", "test_fraud.test_an_idle_accuser_loses_by_its_clock"),
    "index out of range, unrevealed, padding": ("refused", "refused_moves.selects"),
    "challenge at the window -1, 0, +1": (
        "until the second of the deadline",
        "test_clocks.test_a_challenge_ends_where_finality_begins",
    ),
    "a path that was already proven": (
        "dismissed again, bond lost again",
        "test_listed.test_an_accuser_on_an_already_proven_path_pays_its_bond",
    ),
    "gas-starved proof": ("reverts, decides nothing", "test_listed.test_too_little_gas_decides_nothing"),
    "own auditor stalls on the path of the fraud": (
        "convicted all the same",
        "test_listed.test_the_trainers_own_auditor_on_the_path",
    ),
    "own auditor loses on purpose": ("protects nothing", "test_listed.test_the_trainers_own_auditor_loses_on_purpose"),
    "self-slash round trip": (
        "costs half a bond and the reward",
        "test_listed.test_slashing_oneself_costs_half_the_bond",
    ),
    "copied challenge, sybils": ("no share", "test_listed.test_a_copied_challenge_has_no_share"),
    "saboteur on the same path": (
        "the honest dispute decides",
        "test_many.test_several_frauds_and_all_kinds_of_auditors_at_once",
    ),
    "front-running any move": ("success for the honest", "test_restart.test_every_move_is_front_run_by_its_own_copy"),
    "timeout against late reveal": (
        "the clock decides, in any order",
        "test_clocks.test_a_late_opening_does_not_save_the_trainer",
    ),
    "reorganisation": (
        "moves fail harmlessly, agents go on",
        "test_listed.test_moves_undone_by_a_reorganisation_are_made_again_and_stale_ones_fail",
    ),
    "proof and timeout both sent": (
        "the first decides, the second is refused",
        "test_listed_calls.test_a_proof_and_a_timeout",
    ),
    "time jumps, ten budgets": (
        "everything can be ended",
        "test_clocks.test_after_ten_budgets_disputes_and_job_can_still_be_ended",
    ),
    "one tree's node as another's": (
        "not a node of that tree",
        "test_listed_calls.test_a_node_of_one_tree_is_not_accepted_in_another",
    ),
    "re-entrancy from a payout": ("paid once", "test_listed_calls.test_a_payee_that_misbehaves_harms_only_itself"),
    "settle twice, by a stranger, after the end": (
        "refused; same money",
        "test_listed_calls.test_after_the_end_no_call_changes_the_job",
    ),
    "forced ether": ("belongs to no account, has no effect", "test_listed_calls.test_forced_ether_has_no_effect"),
    "unknown calls, plain ether": ("refused", "test_listed_calls.test_the_contract_takes_no_plain_ether"),
    "restart, lost store": ("goes on, or abstains", "test_restart.test_killed_before_every_move"),
}


@pytest.mark.parametrize("name", LISTED)
def test_each_attack_has_its_test(name: str) -> None:
    outcome, where = LISTED[name]
    module, function = where.split(".")
    assert outcome and re.search(rf"^def {function}\(", (HERE / f"{module}.py").read_text(), re.MULTILINE)


def test_each_decision_of_the_protocol_has_its_test() -> None:
    text = (HERE.parents[1] / "docs" / "attacks.md").read_text()
    named = re.findall(r"`((?:test|refused)_\w+)\.(?!py`)(\w+)`", text)
    assert len(named) >= 18
    for module, function in named:
        assert re.search(rf"^def {function}\(", (HERE / f"{module}.py").read_text(), re.MULTILINE), function


# ---- the trainer ----


def test_the_trace_of_another_step(scene: Scene) -> None:
    """A trainer can post the trace of step 5 for step 6 and open its words: the contract computes others."""
    play = scene.claimed(SETUP, LIE, Bluffer)
    machine = play.trainer.machine
    trace, words = machine.trace, machine.words
    machine.trace = lambda step: trace(5 if step == 6 else step)
    machine.words = lambda step, operator: words(5 if step == 6 else step, operator)
    auditor = play.auditor()
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")]


def test_a_cheat_that_answers_all_other_disputes(scene: Scene) -> None:
    """T10, T11: sybils on all other paths are answered, the honest dispute is not: its clock runs out,
    independent of the others."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    due(auditor).send(auditor.game)
    sybils = [play.auditor(None, FalseAccuser, step_wanted=step) for step in (1, 8)]
    for sybil in sybils:
        sybil.step()
    answer = play.trainer.answer
    play.trainer.answer = lambda job, number, d: number != 0 and answer(job, number, d)
    play.run_to_end(play.trainer, auditor, *sybils)
    assert play.verdicts[-1] == ("Convicted", 0, "timeout")
    assert play.paid(auditor) == SPEC.stake + prize(SPEC, "timeout")


def test_there_is_one_claim_for_a_job_and_one_job_of_an_identity(scene: Scene) -> None:
    """T12: no second claim; the job's identity binds the order, the client, the nonce, the contract and the chain."""
    play = scene.claimed(SETUP)
    other = play.new_trainer(LIE)
    last = (other.run_tree().root, other.machine.checkpoints[-1], other.run_tree().path(0, 2))
    claim = Call("postClaim", (play.id, *last, bytes(32), bytes(32)))
    with pytest.raises(ContractError, match="WrongPhase"):
        claim.send(play.trainer.game)
    game = play.client
    names = {
        game.job_id(spec, client, nonce)
        for spec in (
            SPEC,
            *(
                replace(SPEC, **{k: v + 1})
                for k, v in zip(SPEC.__slots__, astuple(SPEC), strict=True)
                if type(v) is int
            ),
        )
        for client, nonce in ((game.wallet.address, 0), (RICH[0], 0), (game.wallet.address, 1))
    }
    assert len(names) == 20 * 3


def test_no_bond_can_be_withdrawn_in_a_dispute(scene: Scene) -> None:
    """T16, A11, C6: neither side has credits while its bond is at stake, nor does one account stake twice."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    due(auditor).send(auditor.game)
    for player in (play.trainer, auditor):
        with pytest.raises(ContractError, match="NothingToWithdraw"):
            player.game.send("withdraw", player.address)
    spent = 100 * 10**18 - SPEC.auditor_bond
    assert scene.chain.balance(auditor.address) == spent
    with pytest.raises(ContractError, match="AlreadyDisputed"):
        due(play.auditor()).send(auditor.game)
    assert scene.chain.balance(auditor.address) == spent


def test_damaged_children_are_no_answer(scene: Scene) -> None:
    """T19: they hash to another node, which no dispute contests; the dispute still waits."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    reveal = play.run_until("reveal", auditor, play.trainer)
    children = list(reveal.args[3])
    damaged = [children[::-1], [children[0]] * 4, [JUNK, *children[1:]], [*children[:3], JUNK], [bytes(32)] * 4]
    for other in damaged:
        reveal.but(3, other).send(play.trainer.game)
        assert play.client.turn(play.id, 0)[0] is Turn.TRAINER
    with pytest.raises(ContractError, match="ChildCount"):
        reveal.but(3, children[:3]).send(play.trainer.game)
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")]


def test_extra_calldata_changes_nothing(scene: Scene) -> None:
    """S13: bytes behind the arguments are ignored; missing ones revert."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    select = play.run_until("select", auditor, play.trainer)
    data = calldata("select", select.args)
    tx = {"from": auditor.address, "to": scene.address, "gas": 10**7}
    with pytest.raises(Reverted):
        scene.chain.node.call(tx | {"data": data[:-64]})
    scene.chain.node.send(tx | {"data": data + "ff" * 100})
    assert play.dispute().height == 0
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")]


# ---- auditors ----


def test_an_accuser_on_an_already_proven_path_pays_its_bond(scene: Scene) -> None:
    """A10: everything is open, so it costs the trainer one more proof and the accuser one more bond."""
    play = scene.claimed(SETUP)
    for number in range(3):
        accuser = play.auditor(LIE, Mistaken)
        before = len(play.events("Revealed", "LeafOpened", "PartialsPosted"))
        play.run(play.trainer, accuser)
        assert play.verdicts[number] == ("Dismissed", number, "element")
        assert number == 0 or len(play.events("Revealed", "LeafOpened", "PartialsPosted")) == before
    assert play.run_to_end(play.trainer) is Phase.FINAL
    assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond + 3 * (SPEC.auditor_bond // 2)


def test_too_little_gas_decides_nothing(scene: Scene) -> None:
    """A14, I10: at any amount of gas a proof reverts, or decides as it does with all of it."""
    play = scene.claimed(SETUP, word_lie(6, 1, 7)[0])
    auditor = play.auditor()
    prove = play.run_until("prove", auditor, play.trainer)
    node, tx = scene.chain.node, {"from": RICH[0], "to": scene.address, "data": calldata("prove", prove.args)}
    enough = int(prove.send(scene.game())["gasUsed"], 16)
    assert play.verdicts == [("Convicted", 0, "element")]
    play = scene.claimed(SETUP, word_lie(6, 1, 7)[0])
    auditor = play.auditor()
    tx["data"] = calldata("prove", play.run_until("prove", auditor, play.trainer).args)
    outcomes = set()
    for gas in [*range(21_000, enough + 60_000, 1_777), *range(enough - 300, enough + 300, 7)]:
        point, memory = node.snapshot(), scene.ghost.memory()
        node.send(tx | {"gas": gas})
        outcomes.add((play.phase, tuple(play.verdicts)))
        node.revert(point)
        scene.ghost.remember(memory)
    assert outcomes == {(Phase.CLAIMED, ()), (Phase.CONVICTED, (("Convicted", 0, "element"),))}


# ---- collusion ----


def test_the_trainers_own_auditor_on_the_path(scene: Scene) -> None:
    """C1: the trainer's own auditor came first, waits at the fraud and stalls: the honest one neither waits for it nor
    shares with it."""
    play = scene.claimed(SETUP, LIE)
    own, honest = play.auditor(), play.auditor()
    play.run_until("selectElement", own, play.trainer)
    play.run_to_end(play.trainer, honest)
    assert play.verdicts == [("Convicted", 1, "element")]
    # The own auditor went down to the node and knew the difference, so it can have the reward: the burnt half deters.
    assert play.paid(honest) >= SPEC.auditor_bond
    assert play.client.burnt() >= SPEC.trainer_bond - SPEC.trainer_bond // 2


def test_the_trainers_own_auditor_loses_on_purpose(scene: Scene) -> None:
    """C2: a dismissed dispute proves nothing about the claim; the same element is decided again in another dispute."""
    play = scene.claimed(SETUP, LIE)
    own = play.auditor()
    play.run_until("selectElement", own, play.trainer)
    play.advance(SPEC.auditor_budget + 1)
    play.trainer.step()
    assert play.verdicts == [("Dismissed", 0, "timeout")]
    honest = play.auditor()
    play.run_to_end(play.trainer, honest)
    assert play.verdicts[-1] == ("Convicted", 1, "element")
    assert play.paid(honest) == SPEC.auditor_bond + SPEC.trainer_bond // 2


def test_slashing_oneself_costs_half_the_bond(scene: Scene) -> None:
    """C3: trainer and auditor are one account: it gets back its bond less the burnt half."""
    play = scene.claimed(SETUP, LIE)
    own = play.auditor()
    play.run_to_end(play.trainer, own)
    back = play.paid(play.trainer) + play.paid(own)
    assert SPEC.trainer_bond + SPEC.auditor_bond - back == SPEC.trainer_bond - SPEC.trainer_bond // 2


def test_a_copied_challenge_has_no_share(scene: Scene) -> None:
    """C4, C5: the auditor of the convicting dispute is paid."""
    play = scene.claimed(SETUP, LIE)
    honest = play.auditor()
    challenge = due(honest)
    thieves = [scene.game() for _ in range(3)]
    for thief in thieves:
        challenge.send(thief)
    play.run_to_end(play.trainer, honest)
    assert play.verdicts == [("Convicted", 3, "element")]
    assert play.paid(honest) == SPEC.auditor_bond + SPEC.trainer_bond // 2
    for number, thief in enumerate(thieves):
        thief.send("refund", play.id, number)
        assert thief.credits(thief.wallet.address) == SPEC.auditor_bond


# ---- order and time ----


@pytest.mark.parametrize("lost", [1, 2, 3, 5])
def test_moves_undone_by_a_reorganisation_are_made_again_and_stale_ones_fail(scene: Scene, lost: int) -> None:
    """F3, O4: the last blocks are gone; agents that follow the chain make their moves again, stale moves fail
    harmlessly."""
    play = scene.claimed(SETUP, LIE)
    auditor, node = play.auditor(), scene.chain.node
    points: list[Any] = []
    stale: list[tuple[Player, Call]] = []
    while not stale or stale[-1][1].name != "postTrace":
        for player in (auditor, play.trainer):
            call = due(player)
            if call:
                points.append((node.snapshot(), scene.ghost.memory()))
                call.send(player.game)
                stale.append((player, call))
    point, memory = points[-lost]
    node.revert(point)
    scene.ghost.remember(memory)
    for player, call in reversed(stale[-lost:]):
        try:
            call.send(player.game)
        except ContractError as error:
            assert error.name in ("NotYourTurn", "Elsewhere")
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")]
