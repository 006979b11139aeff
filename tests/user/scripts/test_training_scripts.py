"""Each script of the tables is captured, trained and audited by other kernels with an equal root; or refused by one
sentence with a remedy. experiments/training_scripts.py writes the same figures into docs/scripts.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_scripts import Auditor, load, outcome

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = load()
#: The scripts of the daily tests; the others are nightly.
DAILY = (
    "Quickstart (FashionMNIST, three linear layers)",
    "DCGAN (two networks that take turns)",
    "Reinforcement learning (DQN): Huber loss, target network, soft update",
    "A normalizing flow (affine coupling, RealNVP)",
    "Learning rate found by ReduceLROnPlateau",
    "A physics-informed network (torch.func.hessian)",
    "Neural style transfer with LBFGS",
)
PARAMETERS = [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in SCRIPTS]


@pytest.fixture(scope="module")
def auditor() -> Iterator[Auditor]:
    with Auditor() as auditor:
        yield auditor


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_script(name: str, tmp_path: Path, auditor: Auditor) -> None:
    script = SCRIPTS[name]
    found = outcome(script, tmp_path / "run", auditor)
    if script.refused is None:
        assert found.audited and not found.sentence, found
    else:
        assert re.search(script.refused, found.sentence) and len(found.sentence.splitlines()) == 1, found


def test_an_audit_reports_a_different_root(tmp_path: Path, auditor: Auditor) -> None:
    """The damaged twin: one bit of one committed root."""
    assert outcome(SCRIPTS[DAILY[0]], tmp_path / "run", auditor).audited
    root = tmp_path / "run" / "roots.bin"
    before = root.read_bytes()
    root.write_bytes(before[:40] + bytes([before[40] ^ 1]) + before[41:])
    assert not auditor.matches(tmp_path / "run")


def test_the_page_counts_these_scripts() -> None:
    """The page lists every script, and shows the refusals of this test."""
    page = (ROOT / "docs/scripts.md").read_text()
    for script in SCRIPTS.values():
        (row,) = re.findall(rf"^\| {script.library} \| {re.escape(script.name)} \|.*", page, re.MULTILINE)
        assert ("refused" in row) == (script.refused is not None), row
