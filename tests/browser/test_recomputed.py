"""The contested numbers of the demonstration's disputes, recomputed by a browser: equal to the contract's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from revm_chain import RevmChain, RevmGame
from revm_node import RevmNode
from scene import Scene
from test_attacks import STRIKE, Job

from vgame.arithmetic.reference import sums
from vgame.attacks.adversaries import ATTACKS, CheatingTrainer, FalseAccuser
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.chain.wallet import deploy_game
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.watch.programs import Programs
from vgame.watch.reader import Reader
from vgame.watch.static import write_page

NO_NUMBER = {"inconsistent-trace", "silent-before-leaf"}  # decided by an opening, by a clock
NOT_COMPUTED = {"wrong-order"}  # a random word


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The state after every attack of the demonstration and a false accusation; cheats have to prove."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    chain, job = RevmChain(RevmNode()), Job(tmp_path_factory.mktemp("again"))
    scene = Scene(chain, deploy_game(chain.wallet()), chain.wallet, RevmGame)
    programs = Programs()
    programs.add(job.bundle)
    reader = Reader(Game(chain, scene.address), programs, budget=10**6)
    for name, attack in ATTACKS.items():
        play = job.play(scene)
        reader.titles[play.id.hex()] = name
        trainer = CheatingTrainer(scene.game(), play.id, job.cheat(name), attack.silent - {"prove"})
        trainer.accept()
        trainer.claim()
        assert play.run_to_end(trainer, Auditor(scene.game(), play.id, job.honest)) is Phase.CONVICTED
    play = job.play(scene)
    reader.titles[play.id.hex()] = "accuse"
    honest = Trainer(scene.game(), play.id, job.honest)
    honest.accept()
    honest.claim()
    assert play.run_to_end(honest, FalseAccuser(scene.game(), play.id, job.honest, step_wanted=STRIKE)) is Phase.FINAL
    torch.set_num_threads(threads)
    return reader.look()


ALL = """() => Object.fromEntries([...index.disputes.values()].flat()
  .filter((d) => d.exact !== undefined || d.part !== undefined)
  .map((d) => [`${index.game.titles[d.job]} ${d.number}`, again(d)]))"""


def shown(page: Any, state: dict[str, Any], tmp_path: Path) -> dict[str, dict[str, str]]:
    write_page(state, tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.locator("#line", has_text="a copy").wait_for()
    return page.evaluate(ALL)


def test_numbers_computed_in_the_browser_are_the_contracts(played: dict[str, Any], page: Any, tmp_path: Path) -> None:
    found = shown(page, played, tmp_path)
    states = {name: reply["state"] for name, reply in found.items()}
    print(f"{sum(s == 'equal' for s in states.values())} of {len(states)} numbers that the contract computed", found)
    assert "other" not in states.values()
    equal = {name.rpartition(" ")[0] for name, s in states.items() if s == "equal"}
    assert equal == {*ATTACKS, "accuse"} - NO_NUMBER - NOT_COMPUTED and len(states) == 11
    assert all("only the contract" in t["text"] or "random" in t["text"] for t in found.values() if t["state"] == "not")
    for name, record in played.items():
        if name.startswith("dispute/") and ("exact" in record or "part" in record):
            page.goto(f"{page.url.partition('#')[0]}#/job/{record['job']}/dispute/{record['number']}")
            page.get_by_role("heading", name="Computed once more").wait_for()
            assert page.locator("[data-again]").inner_text().startswith(("The same: ", "Not computed here: "))
            break


def test_a_job_names_its_model_and_its_data(played: dict[str, Any], page: Any, tmp_path: Path) -> None:
    shown(page, played, tmp_path)
    job = next(r for k, r in played.items() if k.startswith("job/"))
    page.goto(f"{page.url.partition('#')[0]}#/job/{job['id']}")
    page.get_by_role("heading", name="Checkpoints").wait_for()
    text, program = page.inner_text("main"), job["program"]
    for name, tensors in (("Model", program["state"]), ("Data set", program["data"])):
        assert re.search(rf"{name}\s+{re.escape(tensors[0])}, ", text), text[:2000]
    assert f"{program['numbers']:,} numbers in all" in text


def damaged(record: dict[str, Any]) -> dict[str, Any]:
    """One word of the operands changed in a bit that counts."""
    recipe = record["terms"]["recipe"]
    words = [list(operand) for operand in recipe["words"]]
    words[-1] = [word ^ 0x00C00000 for word in words[-1]]
    return record | {"terms": record["terms"] | {"recipe": recipe | {"words": words}}}


def test_another_operand_gives_another_number(played: dict[str, Any], page: Any, tmp_path: Path) -> None:
    wrong = {
        key: damaged(r) if key.startswith("dispute/") and r.get("terms", {}).get("recipe", {}).get("words") else r
        for key, r in played.items()
    }
    states = [reply["state"] for reply in shown(page, wrong, tmp_path).values()]
    assert states.count("equal") < states.count("other")


def test_bits_that_differ_are_marked(played: dict[str, Any], page: Any, tmp_path: Path) -> None:
    shown(page, played, tmp_path)
    record = next(r for k, r in played.items() if k.startswith("dispute/") and r.get("exact", r["word"]) != r["word"])
    page.goto(f"{page.url.partition('#')[0]}#/job/{record['job']}/dispute/{record['number']}")
    page.get_by_role("heading", name="The verdict").wait_for()
    differ = bin(record["word"] ^ record["exact"]).count("1")
    assert record["about"]["integer"] or page.locator("mark").count() == 2 * differ
    assert f"{differ} bit" in page.inner_text("main")


def test_a_partial_sum_is_compared_with_the_posted_one(played: dict[str, Any], page: Any, tmp_path: Path) -> None:
    """Three times 1 is the exact sum 3; the trainer may not post 4."""
    shown(page, played, tmp_path)
    one, recipe = 0x3F800000, {"kind": "sum", "words": [[0x3F800000] * 3], "bits": 24, "integer": False, "row": 0}
    for claimed, right in (([one] * 3, True), ([one] * 4, False)):
        for decided, state in ((right, "equal"), (not right, "other")):
            dispute = {"part": 1, "right": decided, "posted": sums.partial_sum(claimed).encode().hex()}
            reply = page.evaluate("d => again(d)", dispute | {"terms": {"recipe": recipe | {"part": 1}}})
            assert reply["state"] == state, reply
