"""Safe terms: counted from the program, above the measurements, and themselves sufficient."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from web3 import Web3

import vgame.runs.pace as pace_module
from vgame.chain.abi import artifact
from vgame.chain.wallet import calldata_floor
from vgame.cli.terms import propose
from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle, save_bundle
from vgame.job.file import JobFile, LogTerms, Terms
from vgame.job.terms import (
    GAS,
    KEPT_OUT,
    Pace,
    Prices,
    auditor_shortcomings,
    count_moves,
    gas_of,
    needed_slot,
    safe_terms,
    trainer_shortcomings,
)
from vgame.program.operators import ArgMax, Ref, RefClass
from vgame.runs.logged_order import with_log
from vgame.runs.pace import HARDEST, MEASURED, checkpoint_seconds, measure
from vgame.runs.prepare import prepare
from vgame.system.progress import Reporter

RECORD = json.loads((Path(__file__).resolve().parents[2] / "docs" / "gas.json").read_text())


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return prepare(JobFile(model="vgame.tasks.digits:task", seed=1, steps=240, interval=10, schedule={"lr": "0.1"}))


def test_gas_is_above_the_measurements() -> None:
    measured = {name: call["most"] for name, call in RECORD["calls"].items() if name != "createJob"}
    assert set(measured) == set(GAS)
    assert all(GAS[name] >= gas for name, gas in measured.items())
    assert all(GAS[name] <= 1.2 * gas for name, gas in measured.items())


def test_the_longest_dispute_is_longer_than_any_that_was_played(bundle: Bundle) -> None:
    moves = count_moves(bundle)
    played = max(d["transactions"] for d in RECORD["disputes"].values())
    assert played <= moves.trainer + moves.auditor <= 40
    assert max(d["gas"] for d in RECORD["disputes"].values()) <= moves.trainer_gas + moves.auditor_gas
    deeper = count_moves(replace(bundle, depth=1))
    assert deeper.auditor > moves.auditor and deeper.trainer > moves.trainer
    small = replace(bundle.program, operators=bundle.program.operators[:1])  # its state is deeper than trace and tensor
    few = [replace(small, sources=small.sources[:count]) for count in (1, 2)]
    states = [count_moves(replace(bundle, depth=1, program=program)) for program in few]
    assert [states[1].trainer, states[1].auditor] == [states[0].trainer + 1, states[0].auditor + 1]
    steps = [count_moves(replace(bundle, depth=1, interval=interval)).trainer for interval in (15, 16)]
    assert steps[1] == steps[0] + 1, "a segment has the state before it too"


PRICE = 20 * 10**9
PACE = Pace(0.5, 1.0)
TIMED = ("slot", "trainer_budget", "auditor_budget", "claim_window", "challenge_window", "auditor_bond", "trainer_bond")


def test_safe_terms_have_no_shortcoming_and_smaller_terms_have_one(bundle: Bundle) -> None:
    terms = safe_terms(bundle, PACE, Prices(inclusion=15, censorship=KEPT_OUT))
    safe = replace(bundle, terms=terms)
    assert trainer_shortcomings(safe, PACE, PRICE) == auditor_shortcomings(safe, PACE) == []
    for name in ("slot", "trainer_budget"):
        short = terms.model_copy(update={name: getattr(terms, name) - 1})
        (problem,) = trainer_shortcomings(replace(bundle, terms=short), PACE, PRICE)
        assert problem.startswith(name)
    assert needed_slot(bundle, PACE, 15) == 15 + 3 * (10 // 2 + 1)
    hashing = replace(PACE, state=0.75)  # each of the ten states of a segment is hashed for `postSegment`
    assert needed_slot(bundle, hashing, 15) == 15 + 3 * (10 // 2 + 1) + 3 * 7.5 + 0.5


@pytest.mark.parametrize(("pace", "checkpoint"), [
    (replace(PACE, state=3.0), 6), (replace(PACE, state=3.0, checkpoint=50.0), 50), (replace(PACE, checkpoint=7.0), 7),
])  # fmt: skip
def test_the_claim_window_holds_the_checkpoints(bundle: Bundle, pace: Pace, checkpoint: int) -> None:
    """Each of the 24 is hashed twice, written and read back."""
    safe = safe_terms(bundle, pace, Prices())
    least = 2 * (240 // 2 + 24 * checkpoint)
    assert safe.claim_window == least + Prices().censorship <= safe.challenge_window
    for more, problems in ((KEPT_OUT, 0), (KEPT_OUT - 1, 1)):
        terms = safe.model_copy(update={"claim_window": least + more})
        found = trainer_shortcomings(replace(bundle, terms=terms), pace, PRICE)
        assert [problem.split()[0] for problem in found] == ["claim_window"] * problems


def test_a_checkpoint_is_measured_and_leaves_nothing(bundle: Bundle, tmp_path: Path) -> None:
    assert checkpoint_seconds(tmp_path, bundle) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name,value",
    [
        ("claim_window", 2 * 240 // 2 + KEPT_OUT - 1), ("auditor_bond", 1), ("diverged_pay", 0),
        ("challenge_window", 2**32 - 1), ("auditor_budget", 2**32 - 1),
    ],
)  # fmt: skip
def test_a_trainer_refuses_harmful_orders(bundle: Bundle, name: str, value: int) -> None:
    terms = safe_terms(bundle, PACE, Prices()).model_copy(update={name: value})
    (problem,) = trainer_shortcomings(replace(bundle, terms=terms), PACE, PRICE)
    assert problem.startswith(name)


def test_a_trainer_refuses_a_wei_less_than_it_needs(bundle: Bundle) -> None:
    least = {"auditor_bond": 2 * count_moves(bundle).trainer_gas * PRICE, "diverged_pay": 10**17}
    safe = safe_terms(bundle, PACE, Prices()).model_copy(update=least | {"reward": 10**18})
    assert trainer_shortcomings(replace(bundle, terms=safe), PACE, PRICE) == []
    for name in least:
        terms = safe.model_copy(update={name: least[name] - 1})
        (problem,) = trainer_shortcomings(replace(bundle, terms=terms), PACE, PRICE)
        assert problem.startswith(name)


def test_an_auditor_refuses_a_clock_that_it_cannot_keep(bundle: Bundle) -> None:
    moves = count_moves(bundle)
    least = 2 * moves.auditor * 15 + moves.trainer * needed_slot(bundle, PACE, 0) + KEPT_OUT
    for budget, problems in ((least, 0), (least - 1, 1)):
        terms = safe_terms(bundle, PACE, Prices()).model_copy(update={"auditor_budget": budget})
        found = auditor_shortcomings(replace(bundle, terms=terms), PACE)
        assert [problem.split()[0] for problem in found] == ["auditor_budget"] * problems


@pytest.mark.parametrize(("name", "value"), [("trainer_budget", 2**32 - 1), ("slot", 14 * 86_400)])
def test_an_auditor_refuses_clocks_that_lock_its_bond(bundle: Bundle, name: str, value: int) -> None:
    terms = safe_terms(bundle, PACE, Prices()).model_copy(update={name: value})
    (problem,) = auditor_shortcomings(replace(bundle, terms=terms), PACE)
    assert problem.startswith(name)


DELIVERY = {"confirm_window": 1, "key_window": 1, "complaint_window": 1}


def test_windows_of_delivery_are_proposed_only_for_orders_with_delivery(bundle: Bundle) -> None:
    """They depend on size and hashing; the key's window is the trainer's minimum."""
    assert safe_terms(bundle, PACE, Prices()).confirm_window == 0
    ordered = replace(bundle, terms=bundle.terms.model_copy(update=DELIVERY))
    prices = Prices(inclusion=15, censorship=KEPT_OUT)
    terms = safe_terms(ordered, replace(PACE, state=2), prices)
    size = sum(-(-s.elements // 128) for s in bundle.program.sources) * 544
    fetch = math.ceil(size / 2**20 + 8)
    assert terms.key_window == 2 * (130 * 15 + KEPT_OUT) == 5100
    assert terms.confirm_window == math.ceil(1.25 * (terms.key_window + 2 * fetch + KEPT_OUT))
    assert terms.complaint_window == 16 + 15 + KEPT_OUT
    # A request is sent when less than this is left, and its refusal is known before the last fifth.
    presses = max(terms.confirm_window // 2, terms.key_window + terms.confirm_window // 5)
    assert terms.confirm_window - presses >= fetch
    assert trainer_shortcomings(replace(bundle, terms=terms), PACE, PRICE) == []
    short = terms.model_copy(update={"key_window": terms.key_window - 1})
    (problem,) = trainer_shortcomings(replace(bundle, terms=short), PACE, PRICE)
    assert problem == f"key_window is {terms.key_window - 1}, {terms.key_window} is needed"
    for name in DELIVERY:
        long = terms.model_copy(update={name: 91 * 86_400})
        assert [p.split()[0] for p in trainer_shortcomings(replace(bundle, terms=long), PACE, PRICE)] == [name]


def test_an_accused_trainer_pays_for_the_proof(bundle: Bundle) -> None:
    """A false accuser stops answering at the element."""
    duties = ("postSegment", "postTrace", "openLeaf", "postPartials", "prove")
    moves, gas = count_moves(bundle), gas_of(bundle)
    reveals = (moves.trainer - len(duties)) * gas["reveal"]
    assert moves.trainer_gas == reveals + sum(gas[name] for name in duties)


@pytest.mark.parametrize("depth", [5, 6, 7, 8])
def test_a_reveal_costs_at_least_its_calldata(bundle: Bundle, depth: int) -> None:
    abi = Web3().eth.contract(abi=artifact("VerificationGame")["abi"])
    children = [hashlib.sha256(bytes([i])).digest() for i in range(2**depth)]
    data = bytes.fromhex(abi.encode_abi("reveal", [bytes(32), 1, depth, children])[2:])
    gas = gas_of(replace(bundle, depth=depth))
    assert calldata_floor(data) < gas["reveal"] < 1.4 * calldata_floor(data)
    assert (
        gas["postTrace"] - GAS["postTrace"] == gas["postSegment"] - GAS["postSegment"] == gas["reveal"] - GAS["reveal"]
    )


def test_a_proof_of_a_long_row_costs_at_least_its_calldata(bundle: Bundle) -> None:
    row = ArgMax(1, 1 << 14, Ref(RefClass.STATE, 0))
    gas = gas_of(replace(bundle, program=replace(bundle.program, operators=(row,))))
    assert calldata_floor(b"\1" * 4 * row.length) < gas["prove"]


def test_bonds_cover_their_obligations(bundle: Bundle) -> None:
    prices = Prices(gas=30 * 10**9, audited=0.25)
    terms, moves = safe_terms(bundle, PACE, prices), count_moves(bundle)
    assert terms.auditor_bond // 2 >= moves.trainer_gas * prices.gas
    assert terms.trainer_bond // 2 >= moves.auditor_gas * prices.gas
    dear = safe_terms(bundle, PACE, replace(prices, compute_hour=10**20))  # of a segment, three times; of the whole run
    assert dear.auditor_bond - terms.auditor_bond > 1.9 * 3 * 10 * PACE.step / 3600 * 10**20
    assert dear.trainer_bond > 1.9 * 240 * PACE.step / 3600 * 10**20
    assert terms.trainer_bond * prices.audited / 2 >= terms.reward * (1 - prices.audited)  # only the burnt half deters


@pytest.mark.parametrize("depth", [5, 8])
@pytest.mark.parametrize("censorship", [0, 86_400])
def test_proposed_terms_are_accepted(bundle: Bundle, depth: int, censorship: int) -> None:
    """Also for a small reward that pays nothing where a run diverges."""
    small = bundle.terms.model_copy(update={"reward": 10**12, "diverged_pay": 0})
    order = replace(bundle, depth=depth, terms=small)
    order = replace(order, terms=safe_terms(order, PACE, Prices(PRICE, censorship=censorship)))
    assert trainer_shortcomings(order, PACE, PRICE) == auditor_shortcomings(order, PACE) == []
    assert order.terms.auditor_bond <= order.terms.trainer_bond  # an auditor's default stake limit
    Terms.model_validate(order.terms.model_dump())


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        (
            Pace(20_000, 1),
            "s, which could lock the bond for very long; 7776000 s are the most",
        ),
        (Pace(0.5, 300_000), "trainer_budget is "),
    ],
)
def test_unacceptable_terms_are_not_proposed(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: Pace, expected: str
) -> None:
    """A run that needs windows of 111 days; a dispute whose clocks would be too long."""
    monkeypatch.setattr("vgame.cli.terms.measure", lambda *_: pace)
    save_bundle(bundle, tmp_path / "bundle")
    with pytest.raises(VgameError, match="more than a trainer or an auditor accepts") as caught:
        propose(tmp_path / "bundle", "default", 1.0, Prices(), Reporter())
    assert expected in str(caught.value) and "order fewer steps or a shorter interval" in str(caught.value)


def test_proposed_terms_can_be_pasted(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bundle(bundle, tmp_path / "bundle")
    prices = Prices(1000 * 10**9, 5 * 10**17, 0.01, censorship=100)
    propose(tmp_path / "bundle", "default", 2.0, prices, Reporter())
    out = capsys.readouterr().out
    terms = Terms.model_validate(tomllib.loads(out)["terms"])
    reserves = [f"{gas * prices.gas / 10**18:.6f} ether" for gas in astuple(count_moves(bundle))[2:]]
    assert f"{reserves[0]} of the trainer, {reserves[1]} of the auditor" in " ".join(out.split())
    quick = safe_terms(bundle, Pace(0, 0), prices)
    assert terms.slot > quick.slot and terms.trainer_bond >= quick.trainer_bond > 0
    assert terms.model_copy(update=quick.model_dump(include=set(TIMED))) == quick
    with pytest.raises(VgameError, match="probability"):
        propose(tmp_path / "bundle", "default", 1.0, replace(prices, audited=0.0), Reporter())


@pytest.mark.parametrize(
    ("slower", "changed", "expected"),
    [
        (float("nan"), {}, "--slower is a number from 0 to 1e9, got nan"),
        (1e300, {}, "--slower is a number from 0 to 1e9"),
        (1e9, {}, r"`slot` = \d+; it should be less than 16777216"),
        (1.0, {"audited": 1e-300}, "--audited is a probability from 1e-9 to 1, got 1e-300"),
        (1.0, {"audited": float("nan")}, "--audited is a probability"),
        (
            1.0,
            {"censorship": 99_999_999_999_999},
            r"no job can have terms for such prices and times: `claim_window` = \d+; it should be less than 4294967296",
        ),
        (1.0, {"censorship": -1}, "--censorship is a number of seconds, at least 0, got -1"),
    ],
)
def test_terms_invalid_in_a_job_file_are_not_proposed(
    slower: float, changed: dict, expected: str, bundle: Bundle, tmp_path: Path
) -> None:
    save_bundle(bundle, tmp_path / "bundle")
    with pytest.raises(VgameError) as caught:
        propose(tmp_path / "bundle", "default", slower, replace(Prices(), **changed), Reporter())
    assert re.search(expected, str(caught.value))


@pytest.mark.parametrize("bits", [26, 32])
def test_a_job_with_a_log_has_terms_of_its_own(bundle: Bundle, tmp_path: Path, bits: int) -> None:
    logged = with_log(replace(bundle, mode="logged"), LogTerms(bits=bits, thresholds="proven"))
    save_bundle(logged, tmp_path / "bundle")
    propose(tmp_path / "bundle", "default", 1.0, Prices(), Reporter())
    mine, plain = count_moves(logged), count_moves(bundle)
    assert (mine.trainer, mine.auditor) == (plain.trainer, plain.auditor)
    assert mine.trainer_gas > plain.trainer_gas and mine.auditor_gas > plain.auditor_gas


def test_the_pace_is_measured(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed)
    pace = measure(bundle, executor)
    assert 0 < pace.step < 10 and 0 < pace.trace < 20 and pace.step <= pace.worst < 100
    # begin and end of three steps, of hashing a state, one step hashed, one hard in part
    times = iter([0, 100, 200, 203, 300, 302, 400, 401, 408, 500, 520])
    monkeypatch.setattr(pace_module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert measure(bundle, executor) == Pace(3, 7, pytest.approx(3 + 17 * 3 * HARDEST / MEASURED), 1)


def test_the_contracts_least_bond_is_below_the_cheapest_dispute_and_its_ratio_is_as_stated() -> None:
    """No safe order is refused; docs/economics.md has the figures."""
    source = (Path(__file__).resolve().parents[2] / "contracts" / "Settlement.sol").read_text()
    least = int(re.search(r"DISPUTE_GAS = ([\d_]+);", source)[1])
    cheapest = {
        "trainer": ("postSegment", "postTrace", "openLeaf"),
        "auditor": ("challenge", "select", "selectOperator", "selectElement", "prove"),
    }
    assert least <= min(sum(RECORD["calls"][call]["least"] for call in calls) for calls in cheapest.values())
    assert 3.5 * 2 * least >= max(d["gas"] for d in RECORD["disputes"].values())


@pytest.mark.parametrize(
    ("terms", "word"),
    [
        ({"trainer_bond": 10**18 - 1}, "trainer_bond"), ({"auditor_bond": 0}, "auditor_bond"),
        ({"reward": 0, "diverged_pay": 0, "trainer_bond": 0}, "trainer_bond"),
        ({"trainer_budget": 10, "slot": 11}, "trainer_budget"),
        ({"diverged_pay": 2 * 10**18}, "diverged_pay"),
    ],
)  # fmt: skip
def test_terms_that_the_contract_would_refuse(terms: dict[str, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Terms(**terms)
    assert Terms(trainer_bond=10**18, trainer_budget=11, slot=11).slot == 11


def test_a_crowd_that_delays_by_a_challenge_window_burns_the_bond(bundle: Bundle) -> None:
    """D * M * slot = challenge window: M fees are the trainer's bond; and a fee is an eighth of it at most."""
    terms, duties = safe_terms(bundle, PACE, Prices()), count_moves(bundle).trainer
    crowd = terms.challenge_window / (duties * terms.slot)
    assert terms.trainer_bond <= crowd * terms.fee and terms.fee == math.ceil(terms.trainer_bond / crowd)
    assert terms.fee <= terms.trainer_bond // 8 and terms.challenge_window >= 8 * duties * terms.slot
    dear = replace(bundle, terms=terms.model_copy(update={"fee": terms.trainer_bond // 8 + 1}))
    (problem,) = auditor_shortcomings(dear, PACE)
    assert problem.startswith(f"fee is {terms.trainer_bond // 8 + 1} wei")


@pytest.mark.parametrize("guardian", ["0x12", "me", "0x" + 40 * "g"])
def test_a_guardian_is_an_address(guardian: str) -> None:
    with pytest.raises(ValueError, match="guardian"):
        Terms(guardian=guardian)
