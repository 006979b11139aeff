"""The commands, each in a process of its own: order, train, audit, watch, withdraw."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from chains import wait_until
from scene import ETHER, Scene
from web3 import Web3

from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.chain.wallet import Wallet

ROOT = Path(__file__).resolve().parents[2]
JOB = """
model = "vgame.tasks.digits:task"
seed = 3
steps = 4
interval = 2
[args]
batch = 4
[schedule]
lr = "0.1"
[terms]
reward = "1 ether"
trainer_bond = "2 ether"
auditor_bond = "0.2 ether"
"""

DEAD = "http://127.0.0.1:9"


class Hand:
    """A user with a key."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene, self.folder, self.wallet = scene, folder, scene.wallet()
        self.environment = os.environ | {
            "VGAME_KEY": self.wallet.key.hex(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)
        }  # fmt: skip

    def start(self, *command: str) -> subprocess.Popen[str]:
        return forked.Popen(
            [sys.executable, "-m", "vgame.cli", *command], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *command: str, rc: int = 0) -> tuple[list[dict[str, Any]], str]:
        """The output as objects, and the text on stderr."""
        out, err = (process := self.start(*command)).communicate(timeout=300)
        assert process.returncode == rc, err
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")], err


def test_an_order_from_the_command_line_to_the_reward(some_scene: Scene, tmp_path: Path) -> None:
    """The first of two endpoints is dead all the time."""
    (tmp_path / "job.toml").write_text(JOB)
    client, trainer, auditor = (Hand(some_scene, tmp_path) for _ in range(3))
    rpc = ("--rpc", DEAD, "--rpc", some_scene.chain.url, "--json")
    client.run("prepare", "job.toml", "--out", "bundle", "--json")
    deployed, _ = client.run("deploy", *rpc, "--registry", "games.json")
    at = (*rpc, "--game", "games.json")
    held = json.loads((tmp_path / "games.json").read_text())[str(some_scene.chain.chain_id)]
    assert held["game"] == deployed[-1]["game"] and len(held["parts"]) == 6
    for part in held["parts"].values():
        assert Web3.keccak(some_scene.chain.web3.eth.get_code(part["address"])).hex() == part["code"]

    _, complaint = client.run("job", "post", "job.toml", *at, rc=1)
    assert "vgame prepare job.toml" in complaint
    posted, _ = client.run("job", "post", "bundle", *at)
    job = posted[-1]["job"]
    _, complaint = client.run("job", "post", "bundle", *at, rc=1)
    assert f"it is job {job}" in complaint and "--nonce" in complaint

    looker = Hand(some_scene, tmp_path)
    del looker.environment["VGAME_KEY"]
    dry, _ = looker.run("trainer", *at, "--bundle", "bundle", "--store", "none", "--job", job, "--dry-run")
    assert [(d["event"], d.get("call")) for d in dry] == [("snapshot", None), ("duty", "acceptJob")]
    dry, _ = looker.run(
        "receive", job, *at, "--bundle", "bundle", "--from", "http://127.0.0.1:9", "--out", "w.st", "--dry-run"
    )
    assert dry[-1]["call"] == "expire" and dry[-1]["due"] is False and not (tmp_path / "none").exists()
    texts, _ = looker.run("why", job, *at, "--as", "trainer", "--account", trainer.wallet.address)
    assert texts[-1]["call"] == "acceptJob" and texts[-1]["due"]

    common = ("--bundle", "bundle", "--any-terms")
    with_notify = ("--notify", "sh -c 'cat >> notified'")
    training = trainer.start("trainer", *at, *common, "--store", "trainer", "--job", job, *with_notify)
    auditing = auditor.start("auditor", *at, *common, "--store", "auditor", "--device", "compatible", "--once")
    game = Game(some_scene.chain, deployed[-1]["game"])
    try:
        assert wait_until(lambda: game.job(bytes.fromhex(job)).phase is Phase.CLAIMED, 240)
        texts, _ = client.run("status", *at, "--job", job, "--account", client.wallet.address)
        assert texts[-1]["jobs"][0]["phase"] == "claimed" and texts[-1]["account"]["credits"] == 0
        watched, _ = trainer.run("monitor", *at, "--account", trainer.wallet.address, "--once")
        assert [w["event"] for w in watched] == ["calm"]
        own = ("--bundle", "bundle", "--store", "trainer", "--client", client.wallet.address)
        watched, _ = looker.run("monitor", *at, "--account", trainer.wallet.address, "--once", *own)
        assert [(w["event"], w["jobs"]) for w in watched] == [("calm", 1)]
        poor = Wallet(some_scene.chain).address
        watched, _ = looker.run("monitor", *at, "--account", poor, "--once", *with_notify, rc=1)
        assert [w["kind"] for w in watched] == ["balance"]
        some_scene.chain.advance(game.job(bytes.fromhex(job)).spec.challenge_window + 1)
        assert (training.wait(120), auditing.wait(120)) == (0, 0)
    finally:
        for process in (training, auditing):
            process.kill()
    output = [json.loads(line) for line in auditing.stdout]
    assert [line["agrees"] for line in output if line["event"] == "audited"] == [True]
    moves = [line["move"] for line in map(json.loads, training.stdout) if line["event"] == "sent"]
    assert moves == ["acceptJob", "postClaim", "finalize", "withdraw"]
    notified = [json.loads(line) for line in (tmp_path / "notified").read_text().splitlines()]
    assert [(n["role"], n["event"]) for n in notified] == [("monitor", "alarm"), ("trainer", "phase")]
    assert notified[1]["phase"] == "final"
    drawn = [e.args["amount"] for e in game.events("Withdrawn") if e.args["account"] == trainer.wallet.address]
    assert drawn == [3 * ETHER]
    _, complaint = client.run("job", "close", job, *at, rc=1)
    assert "is final, and the contract owes" in complaint
    again, _ = client.run("job", "post", "bundle", *at, "--nonce", "1")
    _, complaint = client.run("job", "close", again[-1]["job"], *at, rc=1)
    assert "is created and cannot be ended yet" in complaint
    some_scene.chain.advance(game.job(bytes.fromhex(again[-1]["job"])).spec.accept_window + 1)
    closed, _ = client.run("job", "close", again[-1]["job"], *at)
    assert (closed[-1]["phase"], closed[-1]["withdrawn"]) == ("expired", ETHER)
    _, complaint = client.run("status", *at, "--job", "07" * 32, rc=1)
    assert f"there is no job {'07' * 32}" in complaint


def test_an_interrupted_command_reports_it(tmp_path: Path) -> None:
    def end_on_interrupt() -> None:
        """A shell's background jobs ignore Ctrl-C, and these tests may be one."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-m", "vgame.cli", "chain"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=end_on_interrupt,
    )  # fmt: skip
    try:
        assert process.stdout.readline().startswith("http://")
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, complaint) == (1, "vgame: interrupted; start the same command again to go on\n")


@pytest.mark.wide
def test_unprintable_text_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii:strict"}
    command = [sys.executable, "-m", "vgame.cli", "prepare", "job.toml", "--out", "Bündel"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "B\\xfcndel: " in done.stdout


def test_closed_streams_are_not_replaced_by_other_files(tmp_path: Path) -> None:
    """Started like a daemon: printed text is written into no other file."""
    shell = f'exec "{sys.executable}" -m vgame.cli inspect "{tmp_path}" <&- >&-'
    done = subprocess.run(["sh", "-c", shell], env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"Traceback" not in done.stderr and done.stderr.count(b"\n") == 1
    shell = f'exec "{sys.executable}" -m vgame.cli --help <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", shell], env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode == 0


@pytest.mark.node
def test_a_trainer_waits_for_a_full_disk_and_reports_the_time_left(node: Scene, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    client, trainer = (Hand(node, tmp_path) for _ in range(2))
    client.run("prepare", "job.toml", "--out", "bundle", "--json")
    rpc = ("--rpc", node.chain.url, "--json")
    at = (*rpc, "--game", client.run("deploy", *rpc)[0][-1]["game"])
    job = client.run("job", "post", "bundle", *at)[0][-1]["job"]
    game = Game(node.chain, at[-1])
    training = trainer.start("trainer", *at, "--bundle", "bundle", "--any-terms", "--store", "store", "--job", job)
    try:
        assert wait_until(lambda: any(tmp_path.rglob("store/*/job/spec.json")), 60)  # before that nothing is staked
        resource.prlimit(training.pid, resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        problem = next(json.loads(line) for line in training.stdout if '"problem"' in line)
        assert "cannot be written: File too large" in problem["message"] and "of the time to claim" in problem["clock"]
        assert game.job(bytes.fromhex(job)).phase is Phase.ACCEPTED
        resource.prlimit(training.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert wait_until(lambda: game.job(bytes.fromhex(job)).phase is Phase.CLAIMED, 120)
    finally:
        training.kill()
        training.communicate()


@pytest.mark.parametrize("text", ["no hex", "12"])
def test_an_invalid_job_identity_is_refused_before_any_request(some_scene: Scene, tmp_path: Path, text: str) -> None:
    hand = Hand(some_scene, tmp_path)
    _, complaint = hand.run(
        "status", "--rpc", some_scene.chain.url, "--game", Wallet(some_scene.chain).address, "--job", text, rc=1
    )
    assert "64 hex digits" in complaint
