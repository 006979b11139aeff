"""experiments/mutants.py plants faults in the contracts: each is a change of the current ones, and changed code is
detected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "experiments"))

from faults import MUTANTS, Mutant  # noqa: E402
from mutants import failure, key, renumbered  # noqa: E402


@pytest.mark.parametrize("fault", MUTANTS, ids=range(len(MUTANTS)))
def test_a_fault_changes_todays_contract_and_its_tests_are_there(fault: Mutant) -> None:
    assert fault.old != fault.new and fault.old in (ROOT / "contracts" / fault.file).read_text()
    assert [test for test in fault.tests if not (ROOT / test).exists()] == []


def test_no_fault_is_planted_twice() -> None:
    assert len({key(fault) for fault in MUTANTS}) == len(MUTANTS)


def code(text: str) -> str:
    return renumbered({"A": {"ir": text}})


def test_code_with_renumbered_names_is_the_same() -> None:
    first = "function f_12(a_3) -> b_40 { b_40 := g_7(a_3) }"
    assert code(first) == code("function f_13(a_5) -> b_4 { b_4 := g_700(a_5) }")
    assert code(first) != code(first.replace("g_7(a_3)", "g_7(b_40)"))
    assert code(first) != code(first.replace("g_7", "g_3"))
    assert code(first) != code(first.replace("g_7(a_3)", "add(g_7(a_3), 1)"))


@pytest.mark.parametrize(
    "test", ["tests/a.py", "tests/a.py::test_b", "tests/a.py::test_b[1-2]", "tests/a.py::test_b[never - twice]"]
)
@pytest.mark.parametrize("reason", ["", " - AssertionError: a - b"])
def test_the_first_failure_is_named_in_full(test: str, reason: str) -> None:
    printed = f"F\n1 failed\nFAILED {test}{reason}\nFAILED tests/a.py::test_c\n"
    assert failure(printed) == test
    assert failure(printed.replace("FAILED", "ERROR")) == test
    assert failure(".. [100%]\n") is None


@pytest.mark.node
@pytest.mark.skipif(not (ROOT / "node_modules/solc").exists(), reason="the compiler is not installed")
def test_a_persistent_compiler_answers_each_line_like_a_new_one() -> None:
    def given(body: str) -> str:
        content = f"pragma solidity 0.8.37; contract A {{ function f() external pure returns (uint) {{ {body} }} }}"
        selection = {"*": {"*": ["evm.bytecode.object"]}}
        settings = {"viaIR": True, "outputSelection": selection}
        return json.dumps({"language": "Solidity", "sources": {"a": {"content": content}}, "settings": settings})

    def answer(option: str, text: str) -> str:
        command = ["node", str(ROOT / "scripts/solc.mjs"), option]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

    inputs = [given("return 1;"), given("return"), given("return 2;"), given("return 1;")]
    answers = answer("--serve", "\n".join(inputs) + "\n").splitlines()
    assert answers == [answer("--standard-json", one).strip() for one in inputs]
    assert answers[0] == answers[3] != answers[2] and '"severity":"error"' in answers[1]
