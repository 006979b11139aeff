"""A client orders with delivery and loads what it receives into its module; trainer and client are the real agents."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import vgame
from vgame.agents.delivery import delivered_folder, folder_server, receive
from vgame.chain.connection import Chain, Wallet
from vgame.errors import DeliveryError, VgameError
from vgame.job.bundle import Terms, load_bundle
from vgame.job.weights import read_weights
from vgame.system.progress import Reporter

WINDOWS = {"confirm_window": 5_000, "key_window": 5_000, "complaint_window": 5_000}


def task() -> tuple[torch.nn.Module, vgame.Task]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    data = {"x": torch.randn(90, 4), "y": torch.arange(90) % 3}
    loss = lambda m, b: torch.nn.functional.cross_entropy(m(b["x"]), b["y"])  # noqa: E731
    return model, vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5), data, batch=30)


def test_a_client_receives_what_was_trained(tmp_path: Path) -> None:
    model, ordered = task()
    job = vgame.Job(ordered, steps=4, interval=2, seed=7, terms=Terms(**WINDOWS))
    bundle = vgame.prepare(job)
    bundle.save(tmp_path / "bundle")
    with vgame.embedded_chain() as node:
        chain = Chain(node.url)
        client, trainer = (vgame.Game(chain, a, Wallet(chain, k)) for a, k in games(chain, node.keys))
        order = client.post(bundle)
        agent = vgame.TrainerAgent(trainer, order, tmp_path / "bundle", tmp_path / "store", any_terms=True)
        while order.phase != "claimed":
            agent.step()
        folder = delivered_folder(tmp_path / "store", order.job)
        server = folder_server(folder / "public", "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(30):
            if order.phase == "revealed":
                break
            if not agent.step():
                chain.advance(Terms().challenge_window + 1 if order.phase == "claimed" else 1_000)
        url, out = f"http://127.0.0.1:{server.server_port}", tmp_path / "model.safetensors"
        receive(client, load_bundle(tmp_path / "bundle"), order.job, url, out, Reporter(True))
        server.shutdown()
    received, _ = read_weights(out)
    before = model.state_dict()["weight"].clone()
    model.load_state_dict(received)
    run = vgame.train(bundle, tmp_path / "own")
    for key, tensor in run.state_dict().items():
        assert torch.equal(received[key], tensor)
    assert not torch.equal(before, received["weight"])


def games(chain: Chain, keys: tuple[str, ...]) -> list[tuple[str, str]]:
    address = vgame.Game.deploy(Wallet(chain, keys[0])).address
    return [(address, key) for key in keys[:2]]


def test_an_empty_store_serves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match="holds no sealed state"):
        folder_server(tmp_path, "127.0.0.1", 0)


def test_windows_come_together() -> None:
    with pytest.raises((ValueError, VgameError), match="key_window"):
        Terms(confirm_window=5)
