"""Pages typed as they stand, on `vgame chain`: a bonus; a delivery. On anvil: a trial of a deployment, with the guide's
roles."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typed import Terminal, blocks, files, filled, free_port, inline, section, terminal

import vgame
from vgame.chain.records import Phase

GUIDE, BONUS, DELIVERY, OPERATIONS = "docs/guide.md", "docs/bonus.md", "docs/delivery.md", "docs/operations.md"
ANVIL = Path(__file__).resolve().parents[2] / "node_modules" / ".bin" / "anvil"


@pytest.mark.node
@pytest.mark.wide
@pytest.mark.timeout(1200)
def test_a_deployment_is_tried_on_anvil_first(tmp_path: Path) -> None:
    if not (ANVIL.exists() and shutil.which("node")):
        pytest.skip("the page of operations is not typed: anvil is not installed (npm ci)")
    for name, content in files(section(GUIDE, "1. A task")):
        (tmp_path / name).write_text(content)
    (tried,), (market,), port = (
        blocks(section(OPERATIONS, "On a public network")), blocks(section(GUIDE, "3. On a chain")), free_port()
    )  # fmt: skip
    begin, key, *rest = filled(tried.replace("8545", port), {"anvil": str(ANVIL)}).splitlines()
    with terminal(tmp_path) as shell:
        shell.type(f"{begin[:-1]}--port {port} &")
        shell.wait(r"Listening on", 60)
        keys = dict(re.findall(r"^\((\d)\) (0x\w{64})$", shell.seen, re.MULTILINE))
        posted = shell.run("\n".join([key.replace("0x...", keys["0"]), *rest]), 400)  # blocks of 12 seconds
        (job,) = re.findall(r"^job (\w{64})$", posted, re.MULTILINE)
        values = {"RPC": f"http://127.0.0.1:{port}", "GAME": "games.json", "JOB": job}
        values |= {"TRAINER": keys["1"], "AUDITOR": keys["2"]}
        shell.run("; ".join(f"{name}={value}" for name, value in values.items()))
        shell.type("".join(line for line in market.splitlines(True) if line.startswith("VGAME_KEY")))
        shell.wait(r"job \w+: MATCH", 300)
        shell.wait(r"the job ended: final, 3\.000000 ether withdrawn", 400)
        shell.run("kill %1; wait")


def pass_windows(url: str, game: str, ended: threading.Event) -> None:
    """Lets the challenge window of every claim pass at once."""
    chain = vgame.connect(url)
    contract = vgame.Game(chain, game)
    while not ended.wait(0.5):
        for event in contract.events("ClaimPosted"):
            if (job := contract.job(event.args["job"])).phase is Phase.CLAIMED:
                chain.advance(max(0, job.since + job.spec.challenge_window + 1 - chain.now()))


@contextmanager
def windows_passed(shell: Terminal, url: str) -> Iterator[None]:
    """Lets the windows of the game in the shell's variable pass, while the block runs."""
    game = shell.run("echo $GAME").strip()
    ended = threading.Event()
    clock = threading.Thread(target=pass_windows, args=(url, game, ended))
    clock.start()
    try:
        yield
    finally:
        ended.set()
        clock.join()


def bonus_is_paid(shell: Terminal, block: str, url: str) -> None:
    with windows_passed(shell, url):
        output = shell.run(block, 900)
    assert re.search(r"validated: \d+ of ", output), output
    assert "1.000000 ether for the trainer, who withdraws it with" in output and "the trainer was paid" in output, (
        output
    )


@pytest.mark.wide
@pytest.mark.timeout(1200)
def test_the_bonus_of_its_page_is_paid(tmp_path: Path) -> None:
    for text in (section(GUIDE, "1. A task"), section(BONUS, "A bonus by accuracy")):
        for name, content in files(text):
            (tmp_path / name).write_text(content)
    page, port = section(BONUS, "A bonus by accuracy"), free_port()
    (bonus,) = blocks(page)
    with terminal(tmp_path) as shell:
        shell.run(inline(page, "vgame prepare rings.toml"), 120)
        shell.run(filled(until_job(), {"8545": port}), 120)
        bonus_is_paid(shell, bonus, f"http://127.0.0.1:{port}")


def until_job() -> str:
    """The guide's market as far as its order."""
    (market,) = blocks(section(GUIDE, "3. On a chain"))
    return re.match(r".*^JOB=[^\n]*\n", market, re.MULTILINE | re.DOTALL)[0]


@pytest.mark.wide
@pytest.mark.timeout(1200)
def test_the_delivery_of_its_page_arrives(tmp_path: Path) -> None:
    page, chain, server = section(DELIVERY, "Delivery"), free_port(), free_port()
    ((name, content),), (delivery,) = files(page), blocks(page)
    (tmp_path / name).write_text(content)
    with terminal(tmp_path) as shell:
        shell.run(inline(page, f"vgame prepare {name}"), 120)
        shell.run(filled(until_job(), {"8545": chain}), 120)
        with windows_passed(shell, f"http://127.0.0.1:{chain}"):
            output = shell.run(filled(delivery, {"8600": server}), 600)
        assert re.search(r"model\.safetensors: the state of job \w+, every leaf verified", output), output
        assert output.count("waits for the key") == 1, output  # for any number of looks
        assert (tmp_path / "model.safetensors").stat().st_size > 10**5
        shell.run("kill %1; wait %1")
