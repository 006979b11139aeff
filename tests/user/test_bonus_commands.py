"""A bonus by accuracy from the command line, with the agents of the API: promised, checked, evaluated, paid; or
refunded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import vgame
from vgame.cli import app

MODULE = """
import torch
from vgame import Evaluation, Task

def measure(model, batch):
    return {"correct": (model(batch["x"]).argmax(1) == batch["y"]).sum()}

def task(seed):
    torch.manual_seed(seed)
    model, x = torch.nn.Linear(3, 3), torch.randn(24, 3)
    data = {"x": x, "y": x.argmax(1)}
    loss = lambda m, b: torch.nn.functional.cross_entropy(m(b["x"]), b["y"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Task(model, loss, optimizer, data, batch=8, evaluate=Evaluation(measure, data, 12))
"""
JOB = 'model = "counted:task"\nseed = 9\nsteps = 4\ninterval = 2\n'


class Desk:
    """Commands of several accounts on one chain."""

    def __init__(self, folder: Path, node: vgame.Node, address: str) -> None:
        self.folder, self.node, self.address = folder, node, address
        (folder / "counted.py").write_text(MODULE)
        (folder / "counted.toml").write_text(JOB)

    def __call__(self, who: int | None, *words: object, code: int = 0) -> dict:
        """`who`: the account; None: without a key."""
        place = ["--rpc", self.node.url, "--game", self.address] if words[0] in ("bonus", "job") else []
        command = [*map(str, words), *place, "--json"]
        done = CliRunner().invoke(app, command, env={"VGAME_KEY": None if who is None else self.node.keys[who]})
        if code:
            assert isinstance(done.exception, vgame.VgameError), done.output
            return {"error": str(done.exception)}
        assert done.exit_code == 0, f"{command}: {done.output} {done.exception!r}"
        return json.loads(done.stdout.splitlines()[-1])

    def play(self, job: str, bundle: Path, chain: vgame.Chain) -> Path:
        """The second account plays a job to its end; returns its run."""
        game = vgame.Game(chain, self.address, vgame.Wallet(chain, self.node.keys[1]))
        order = vgame.Order(game, bytes.fromhex(job))
        agent = vgame.TrainerAgent(game, order, bundle, self.folder / "store", any_terms=True)
        while order.phase != "final":
            if not agent.step():
                chain.advance(vgame.Terms().challenge_window + 1)
        return self.folder / "store" / vgame.Bundle.load(bundle).identity.hex()[:16]


def test_a_bonus_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    task, bundle = ("--task", tmp_path / "counted.toml"), tmp_path / "bundle"
    with vgame.embedded_chain() as node:
        chain = vgame.connect(node.url)
        desk = Desk(tmp_path, node, vgame.Game.deploy(vgame.Wallet(chain, node.keys[0])).address)
        desk(0, "prepare", task[1], "--out", bundle)
        job = desk(0, "job", "post", bundle)["job"]
        escrow = ("--escrow", desk(0, "bonus", "deploy")["escrow"])
        promise = ("bonus", "promise", *escrow, "--job", job, "--bundle", bundle, *task, "--total", "correct")
        bonus = desk(0, *promise, "--least", 8, "--amount", "0.5 ether")["bonus"]
        high = desk(0, *promise, "--least", 25, "--amount", "0.5 ether")["bonus"]
        assert "--amount: " in desk(0, *promise, "--least", 8, "--amount", "much", code=1)["error"]
        check = ("bonus", "check", bonus, *escrow, "--bundle", bundle, *task)
        for named in ((), ("--job", job)):
            assert desk(None, *check, *named)["amount"] == 10**18 // 2
        assert "not for job 0707" in desk(None, *check, "--job", "07" * 32, code=1)["error"]
        assert "no key" in desk(None, "bonus", "close", bonus, *escrow, code=1)["error"]
        assert desk(1, "bonus", "close", bonus, *escrow)["outcome"] == "waiting"
        run = desk.play(job, bundle, chain)
        assert desk(2, "bonus", "close", high, *escrow)["outcome"] == "started"
        prepared = ("bonus", "prepare", bonus, *escrow, "--run", run, *task, "--out", tmp_path / "evaluation")
        assert "has not begun" in desk(None, *prepared, code=1)["error"]
        early = desk(None, *prepared[:-1], tmp_path / "early", "--early")
        assert desk(1, "bonus", "close", bonus, *escrow)["outcome"] == "started"
        assert desk(None, *prepared)["initial_root"] == early["initial_root"]
        assert "holds a bundle already" in desk(1, *prepared, code=1)["error"]
        ordered = desk(1, "job", "post", tmp_path / "evaluation")["job"]
        evaluation = desk.play(ordered, tmp_path / "evaluation", chain)
        shown = ("--job", ordered, "--run", run, "--evaluation", evaluation)
        assert desk(2, "bonus", "pay", bonus, *escrow, *shown)["amount"] == 10**18 // 2
        assert "MarkMissed" in desk(2, "bonus", "pay", high, *escrow, *shown, code=1)["error"]
        trainer = vgame.Wallet(chain, node.keys[1]).address
        before = chain.balance(trainer)
        assert desk(1, "bonus", "close", bonus, *escrow)["outcome"] == "paid"
        assert chain.balance(trainer) > before
        assert "is settled" in desk(None, *check, code=1)["error"]
        chain.advance(90 * 86_400)
        assert desk(0, "bonus", "close", high, *escrow)["outcome"] == "returned"
