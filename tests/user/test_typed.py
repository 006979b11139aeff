"""Pages typed as they stand, on `vgame chain`: the guide's market, until the reward is paid; a bonus, until it is."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import pytest
from typed import Terminal, blocks, files, filled, inline, section, terminal

import vgame
from vgame.chain.records import Phase

GUIDE, BONUS = "docs/guide.md", "docs/bonus.md"


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.wide
def test_the_market_of_the_guide_ends_with_a_reward(tmp_path: Path) -> None:
    for name, content in files(section(GUIDE, "1. A task")):
        (tmp_path / name).write_text(content)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.py", "mine.toml"}
    text = section(GUIDE, "3. On a chain")
    with terminal(tmp_path) as shell:
        shell.run(blocks(section(GUIDE, "2. Without a chain"))[0].splitlines()[0])
        (market,) = blocks(text)
        shell.type(filled(market, {"8545": free_port()}))
        shell.wait(r"job \w+: MATCH", 300)
        shell.wait(r"the job ended: final, 3\.000000 ether withdrawn", 300)  # after a window of 120 seconds
        shell.wait(r"│ final ", 60)
        shell.interrupt()
        (run,) = (tmp_path / "trainer").iterdir()
        file = {"FILE": "weights.safetensors"}
        export = filled(inline(text, "vgame export trainer"), file | {"IDENTITY": run.name})
        assert "the weights after step 60 of 60" in shell.run(export)
        assert "is what the final claim of job" in shell.run(filled(inline(text, "vgame check FILE"), file))
        shell.run(f"{inline(text, 'kill')}; wait")  # until the chain has ended


def pass_windows(url: str, game: str, ended: threading.Event) -> None:
    """Lets the challenge window of every claim pass at once."""
    chain = vgame.connect(url)
    contract = vgame.Game(chain, game)
    while not ended.wait(0.5):
        for event in contract.events("ClaimPosted"):
            if (job := contract.job(event.args["job"])).phase is Phase.CLAIMED:
                chain.advance(max(0, job.since + job.spec.challenge_window + 1 - chain.now()))


def bonus_is_paid(shell: Terminal, block: str, url: str) -> None:
    game = shell.run("echo $GAME").strip()
    ended = threading.Event()
    clock = threading.Thread(target=pass_windows, args=(url, game, ended))
    clock.start()
    try:
        told = shell.run(block, 900)
    finally:
        ended.set()
        clock.join()
    assert re.search(r"validated: \d+ of ", told), told
    assert "1.000000 ether for the trainer, who takes it with" in told and "the trainer was paid" in told, told


@pytest.mark.wide
@pytest.mark.timeout(1200)
def test_the_bonus_of_its_page_is_paid(tmp_path: Path) -> None:
    for text in (section(GUIDE, "1. A task"), section(BONUS, "A bonus by accuracy")):
        for name, content in files(text):
            (tmp_path / name).write_text(content)
    page, port = section(BONUS, "A bonus by accuracy"), free_port()
    (market,), (bonus,) = blocks(section(GUIDE, "3. On a chain")), blocks(page)
    before = re.match(r".*^JOB=[^\n]*\n", market, re.MULTILINE | re.DOTALL)[0]
    with terminal(tmp_path) as shell:
        shell.run(inline(page, "vgame prepare rings.toml"), 120)
        shell.run(filled(before, {"8545": port}), 120)
        bonus_is_paid(shell, bonus, f"http://127.0.0.1:{port}")
