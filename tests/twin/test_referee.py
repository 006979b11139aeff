"""contracts/Referee.sol decides every kind of operator, every function and every access like reference and executor,
and refuses all others.

The programs are in referee_programs.py; the code is the checked-in artifact, so it needs no compiler.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from deployed import Contract, Reverted
from eth_abi import decode, encode
from onchain import StepOnChain, deploy_referee
from referee_programs import PROGRAMS, STEP, STEPS, state

from vgame.arithmetic.functions import Function
from vgame.chain.abi import artifact
from vgame.commit.merkle import Kind, Tree, leaf_hash
from vgame.commit.words import LEAF_BYTES
from vgame.program import encoding
from vgame.program.operators import ArgMax, Copy, Gather, Map, Operator, Philox, ReduceMax, RefClass, Shuffle
from vgame.program.operators import Contract as Contraction
from vgame.runs.history import PROOF_TYPE

KINDS = {Map, Copy, Contraction, Gather, ReduceMax, ArgMax, Philox, Shuffle}
#: Errors of the libraries inside the referee that no argument provokes.
UNREACHED = {
    "HashFailed": "only for lack of gas: test_too_little_gas_never_decides",
    "UnequalRanges": "both rows of a product are opened with one length",
    "WordOutOfRange": "an opening is cut to the words that are read, at least one",
}
CODE_SIZE_BUDGET = 23_600  # of 24,576 bytes
Proof = tuple[bytes, bytes, list[bytes], list[tuple[bytes, list[bytes], list[bytes]]]]


@pytest.fixture(scope="session")
def referee() -> Contract:
    return deploy_referee()


@pytest.fixture(scope="session")
def steps(referee: Contract, tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepOnChain]:
    """Step 3 of each program."""
    torch.manual_seed(0)
    histories = {name: make().history(tmp_path_factory.mktemp(name)) for name, make in PROGRAMS.items()}
    return {name: StepOnChain(referee, history, STEP) for name, history in histories.items()}


def drawn(operator: Operator, random: Random, count: int) -> list[int]:
    """Elements: the first, the last and others; only one if each costs 64 calls."""
    middle = random.sample(range(operator.elements), min(count, operator.elements))
    if isinstance(operator, Contraction) and operator.blocks > 4:
        return middle[:1]
    return sorted({0, operator.elements - 1, *middle})


def test_programs_contain_everything(steps: dict[str, StepOnChain]) -> None:
    operators = [o for step in steps.values() for o in step.history.program.operators]
    assert {type(o) for o in operators} == KINDS
    assert {o.function for o in operators if isinstance(o, Map)} == set(Function)
    accesses = [a for o in operators if isinstance(o, Map | Copy) for a in o.accesses]
    assert {a.ref.cls for a in accesses} == set(RefClass)
    assert {o.blocks for o in operators if isinstance(o, Contraction)} >= {1, 2, 3, 64}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_element_is_decided_and_its_forgeries_are_refused(steps: dict[str, StepOnChain], name: str) -> None:
    """Contract, reference and executor agree; one flipped bit in the claim or in the proof is refused."""
    random, step, wrong, gas = Random(5), steps[name], [], 0
    for o, operator in enumerate(step.history.program.operators):
        for element in drawn(operator, random, 24 if isinstance(operator, Map | Copy) else 12):
            faults, ruling = step.faults(o, element, random)
            wrong += [(operator, element, *faults)] if faults else []
            gas = max(gas, *ruling.gas)
    assert not wrong, (len(wrong), wrong[:3])
    assert gas < 1_000_000


def test_too_little_gas_never_decides(steps: dict[str, StepOnChain]) -> None:
    """With any amount of gas the contract gives the right word or reverts, also if the elementary functions run out of
    gas."""
    step = steps["functions"]
    program = step.history.program.operators
    for function in (Function.EXP, Function.ADD):
        o = next(i for i, op in enumerate(program) if isinstance(op, Map) and op.function is function)
        context, proof, right = step.context(o, 17), step.proof(o, 17), step.claimed(o, 17)
        step.referee.call("evaluate", context, proof)
        enough, outcomes = step.referee.gas, {"right": 0, "reverted": 0}
        for gas in range(enough // 3, enough + 30_000, 997):
            try:
                assert step.referee.call("evaluate", context, proof, gas=gas) == right
                outcomes["right"] += 1
            except (Reverted, RuntimeError):
                outcomes["reverted"] += 1
        assert min(outcomes.values()) > 5, outcomes


# ---- errors ----


def proof_of(step: StepOnChain, operator: int, element: int = 0, block: int | None = None) -> Proof:
    return decode([PROOF_TYPE], step.proof(operator, element, block))[0]


def find(step: StepOnChain, wanted: Callable[[Any], bool]) -> int:
    return next(i for i, operator in enumerate(step.history.program.operators) if wanted(operator))


def refused(step: StepOnChain, context: tuple, proof: Any, block: int | None = None) -> tuple[str, tuple]:
    """Name and arguments of the error."""
    arguments = (context, encode([PROOF_TYPE], [proof]))
    with pytest.raises(Reverted) as caught:
        if block is None:
            step.referee.call("evaluate", *arguments)
        else:
            step.referee.call("evaluateBlock", arguments[0], block, arguments[1])
    return caught.value.name, caught.value.arguments


def change(proof: Proof, opening: int, part: int, value: Any) -> Proof:
    """The proof with one part of one opening replaced."""
    openings = [list(o) for o in proof[3]]
    openings[opening][part] = value
    return (*proof[:3], openings)


def test_wrong_openings(steps: dict[str, StepOnChain]) -> None:
    step = steps["sums"]
    o = find(step, lambda op: isinstance(op, Contraction) and op.k == 300)
    context, proof = step.context(o, 7), proof_of(step, o, 7)
    (words, siblings, path), (_, siblings_b, _) = proof[3]
    zero, height = bytes(32), len(path)

    def error(*args: Any) -> tuple[str, tuple]:
        return refused(step, context, change(proof, *args))

    assert error(0, 0, words[:-1]) == ("OpeningSize", (len(words) - 1, len(words)))
    assert error(0, 0, words + bytes(LEAF_BYTES)) == ("OpeningSize", (len(words) + LEAF_BYTES, len(words)))
    assert error(0, 1, siblings[:-1]) == ("RangeProofLength", (len(siblings) - 1, len(siblings)))
    assert error(1, 1, [*siblings_b, zero]) == ("RangeProofLength", (len(siblings_b) + 1, len(siblings_b)))
    assert error(1, 2, [*path, zero]) == ("PathLength", (height + 1, height))
    assert error(0, 2, path[1:]) == ("PathLength", (height - 1, height))
    assert error(0, 1, siblings[::-1])[0] == "WrongRoot"
    assert error(0, 2, path[::-1])[0] == "WrongRoot"
    assert error(0, 2, proof[3][1][2])[0] == "WrongRoot"  # the path of the other operand
    assert refused(step, context, (*proof[:3], proof[3][:1])) == ("OpeningCount", (1, 2))
    assert refused(step, context, (*proof[:3], [*proof[3], proof[3][0]])) == ("OpeningCount", (3, 2))
    assert refused(step, context, (*proof[:3], proof[3][::-1]))[0] in ("OpeningSize", "RangeProofLength", "WrongRoot")


def test_words_of_another_place(steps: dict[str, StepOnChain]) -> None:
    """Right words of a tensor, from a place that the element does not read."""
    step = steps["layouts"]
    o = find(step, lambda op: isinstance(op, Copy) and op.sizes == (1000,))
    near, far = proof_of(step, o, 127), proof_of(step, o, 128)
    assert refused(step, step.context(o, 128), near)[0] == "WrongRoot"
    assert refused(step, step.context(o, 127), far)[0] == "WrongRoot"


def test_other_roots(steps: dict[str, StepOnChain]) -> None:
    """Each class of reference against a context whose root for it is another one."""
    step = steps["layouts"]
    o = [find(step, lambda op, c=c: isinstance(op, Map | Copy) and {a.ref.cls for a in op.accesses} == {c}) for c in
         (RefClass.DATA, RefClass.STATE, RefClass.OPERATOR)]  # fmt: skip
    scaled = find(step, lambda op: isinstance(op, Map) and any(a.ref.cls is RefClass.SCALAR for a in op.accesses))
    for operator, place in [(o[0], 1), (scaled, 2), (o[2], 3), (o[1], 4)]:
        context = list(step.context(operator, 3))
        proof = step.proof(operator, 3)
        assert step.referee.call("evaluate", tuple(context), proof) == step.claimed(operator, 3)
        for root in (bytes(32), b"\1" * 32):
            context[place] = root
            assert refused(step, tuple(context), decode([PROOF_TYPE], proof)[0])[0] == "WrongRoot"


def test_scalars_of_another_step(steps: dict[str, StepOnChain]) -> None:
    """The scalar is this step's: the same opening is refused where the table or the step is another."""
    step = steps["layouts"]
    o = find(step, lambda op: isinstance(op, Map) and any(a.ref.cls is RefClass.SCALAR for a in op.accesses))
    context, proof = step.context(o, 1), proof_of(step, o, 1)
    other = (*context[:6], STEP + 1, *context[7:])
    bundle = step.history.bundle
    assert step.referee.call("evaluate", other, encode([PROOF_TYPE], [proof])) != step.claimed(o, 1)
    assert refused(step, (*context[:6], STEPS + 1, *context[7:]), proof) == (
        "ElementOutOfRange", (bundle.scalars.numel() + 2, bundle.scalars.numel()),
    )  # fmt: skip
    scalar = next(i for i, opening in enumerate(proof[3]) if not opening[2])
    assert refused(step, context, change(proof, scalar, 2, [bytes(32)])) == ("PathLength", (1, 0))


def test_wrong_headers_and_records(steps: dict[str, StepOnChain]) -> None:
    step = steps["functions"]
    operators = len(step.history.program.operators)
    context, (header, record, path, openings) = step.context(0, 3), proof_of(step, 0, 3)
    other = proof_of(step, 1, 3)

    assert refused(step, context, (header[:-1], record, path, openings)) == ("HeaderLength", (123,))
    assert refused(step, context, (header[:-1] + b"\0", record, path, openings))[0] == "HeaderMismatch"
    assert refused(step, (b"\1" * 32, *context[1:]), (header, record, path, openings))[0] == "HeaderMismatch"
    assert refused(step, context, (header, other[1], path, openings))[0] == "RecordMismatch"
    assert refused(step, context, other)[0] == "RecordMismatch"
    assert refused(step, context, (header, record + b"\0", path, openings))[0] == "RecordMismatch"
    assert refused(step, context, (header, record, path[1:], openings)) == ("PathLength", (len(path) - 1, len(path)))
    beyond = (*context[:8], operators, 3, *step.log)
    assert refused(step, beyond, (header, record, path, openings)) == ("IndexOutOfRange", (operators,) * 2)
    elements = step.history.program.operators[0].elements
    assert refused(step, step.context(0, elements), (header, record, path, openings)) == (
        "ElementOutOfRange", (elements, elements),
    )  # fmt: skip


def test_blocks_that_do_not_exist(steps: dict[str, StepOnChain]) -> None:
    step = steps["sums"]
    long, short = (find(step, lambda op, n=n: isinstance(op, Contraction) and op.blocks == n) for n in (3, 1))
    context, proof = step.context(long, 2), proof_of(step, long, 2, 0)
    assert refused(step, context, proof) == ("DecidedInBlocks", (3,))
    assert refused(step, context, proof, 3) == ("NotABlock", (3, 3))
    assert refused(step, context, proof, 1)[0] in ("WrongRoot", "OpeningSize")
    assert refused(step, context, (*proof[:3], [*proof[3], proof[3][0]]), 0)[0] == "OpeningCount"
    whole = step.partial(short, 2, 0)  # a sum of one block is its own partial
    assert step.referee.call("combine", step.context(0, 0), [whole]) == step.claimed(short, 2)
    functions = steps["functions"]
    assert refused(functions, functions.context(0, 3), proof_of(functions, 0, 3), 0) == (
        "UnknownKind",
        (int(encoding.Code.MAP),),
    )


def test_a_missing_or_malformed_partial_sum(steps: dict[str, StepOnChain]) -> None:
    step = steps["sums"]
    o = find(step, lambda op: isinstance(op, Contraction) and op.blocks == 3)
    partials = step.history.partials(STEP, o, 4)
    assert step.referee.call("combine", step.context(0, 0), partials) == step.claimed(o, 4)
    assert (
        len({step.referee.call("combine", step.context(0, 0), partials[:j] + partials[j + 1 :]) for j in range(3)}) > 1
    )
    for bad in (partials[0][:-1], partials[0] + b"\0", b"\x08" + bytes(96), b"\1" + bytes(95) + b"\1"):
        with pytest.raises(Reverted) as caught:
            step.referee.call("combine", step.context(0, 0), [partials[1], bad])
        assert caught.value.name == "MalformedPartial"


def order(record: bytes, version: int = 2) -> tuple[bytes, bytes]:
    """(root, header) of a program of one record, valid or not."""
    root = Tree(Kind.OPERATORS, [leaf_hash(Kind.OPERATORS, record)]).root
    header = encoding.header((1, 1, 0, 0, 0, 0), bytes(32), root, bytes(32))
    header = struct.pack(">I", version) + header[4:]
    return encoding.program_root(header), header


@pytest.mark.parametrize(
    ("record", "name", "arguments"),
    [
        (b"\x09\0\0" + struct.pack(">I", 1), "UnknownKind", (9,)),
        (b"\x00\0\0" + struct.pack(">I", 1), "UnknownKind", (0,)),
        (b"\x08\0\1" + struct.pack(">I", 1), "RecordTooShort", (7,)),
        (b"\x01\x02\0\0", "RecordTooShort", (3,)),
        (b"", "RecordTooShort", (3,)),
        (b"\x05\0\0" + struct.pack(">5I", 1, 1, 1, 1, 6 << 24), "UnknownClass", (6,)),
        (b"\x05\0\0" + struct.pack(">5I", 1, 1, 1, 1, 0), "UnknownClass", (0,)),
        (b"\x05\0\0" + struct.pack(">5I", 1, 1, 1, 1, 2 << 24 | 1), "ElementOutOfRange", (1, 1)),
        (b"\x06\0\1" + struct.pack(">4I", 2, 1, 1, 2 << 24), "ElementOutOfRange", (2, 1)),
        (b"\x03\0\0" + struct.pack(">5I", 1, 1, 1, 1, 0), "NoTerms", ()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_programs(steps: dict[str, StepOnChain], record: bytes, name: str, arguments: tuple) -> None:
    """No agent accepts these; the referee reverts."""
    step = steps["functions"]
    root, header = order(record)
    opening = (bytes(LEAF_BYTES), [], [])
    context = (root, *step.context(0, 0)[1:8], 0, 1 if record[:1] == b"\6" else 0, *step.log)
    assert refused(step, context, (header, record, [], [opening])) == (name, arguments)


def test_unknown_functions_and_versions(steps: dict[str, StepOnChain]) -> None:
    step = steps["functions"]
    immediate = struct.pack(">BI", 1, 1) + struct.pack(">IIBBi", 0, 0x3F800000, 0, 0xFF, 0) * 3
    for code in set(range(256)) - set(Function):
        record = struct.pack(">3BI", 1, code, 0, 1) + immediate
        root, header = order(record)
        context = (root, *step.context(0, 0)[1:8], 0, 0, *step.log)
        assert refused(step, context, (header, record, [], [])) == ("UnknownFunction", (code,))
    root, header = order(b"", version=1)
    assert refused(step, (root, *step.context(0, 0)[1:]), (header, b"", [], [])) == ("UnknownVersion", (1,))


# ---- the game's queries ----


def test_the_games_queries_about_a_program(steps: dict[str, StepOnChain]) -> None:
    for step in steps.values():
        history, program = step.history, step.history.program
        assert step.referee.call("program", program.root, program.header) == (
            len(program.sources),
            len(program.operators),
        )
        for o, operator in enumerate(program.operators):
            answer = step.referee.call("describe", program.root, o, *history.operator_record(o).as_tuple())
            assert answer == (operator.elements, history.finite(o), history.blocks(o))
        for t in range(len(program.sources)):
            computed, index = step.referee.call("source", program.root, t, *history.source_record(t).as_tuple())
            assert (index if computed else None) == history.source(t)
            other = (t + 1) % len(program.sources)
            with pytest.raises(Reverted):
                step.referee.call("source", program.root, other, *history.source_record(t).as_tuple())


def test_blocks_of_any_length(referee: Contract) -> None:
    """The number of blocks of a sum: by record, on both sides."""
    random = Random(7)
    lengths = [1, 1023, 1024, 1025, 2048, 2049, 65_535, 65_536, 65_537, 2**31 - 1]
    for k in lengths + [random.randrange(1, 2 ** random.randrange(1, 32)) for _ in range(200)]:
        operator = Contraction(0, 1, 1, 1, k, state(0), state(0))
        record = encoding.operator_record(operator, False)
        root, header = order(record)
        assert referee.call("describe", root, 0, header, record, [])[2] == operator.blocks <= 64, k


def test_a_sum_of_nothing_has_no_blocks(referee: Contract) -> None:
    """No agent accepts such a program; the referee names the problem."""
    operator = Contraction(0, 1, 1, 1, 1, state(0), state(0))
    record = bytearray(encoding.operator_record(operator, False))
    record[19:23] = bytes(4)  # k
    root, header = order(bytes(record))
    with pytest.raises(Reverted) as caught:
        referee.call("describe", root, 0, header, bytes(record), [])
    assert caught.value.name == "NoTerms"


def test_code_sizes() -> None:
    """Every deployed contract keeps its distance from the limit of 24,576 bytes."""
    sizes = {
        n: len(artifact(n)["runtime"]) // 2
        for n in ("VerificationGame", "Settlement", "Delivery", "Referee", "Logged", "Pointwise", "AccuracyEscrow")
    }
    assert max(sizes.values()) < CODE_SIZE_BUDGET, sizes


def test_every_error_is_tested() -> None:
    """Each custom error of the referee is expected by name in this file, or its reason not to is."""
    names = {entry["name"] for entry in artifact("Referee")["abi"] if entry["type"] == "error"}
    source = Path(__file__).read_text()
    assert set(UNREACHED) < names and {name for name in names if f'"{name}"' not in source} == set()
