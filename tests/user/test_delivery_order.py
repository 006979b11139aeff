"""A client orders with delivery and loads the received state into its module; trainer and client are the real
agents."""

from __future__ import annotations

import http.client
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import vgame
from vgame.agents.delivery import delivered_folder, folder_server
from vgame.chain.connection import Chain
from vgame.chain.wallet import Wallet
from vgame.errors import DeliveryError, VgameError
from vgame.job.file import Terms
from vgame.job.weights import read_weights
from vgame.program.program import TensorLabel as L

WINDOWS = {"confirm_window": 5_000, "key_window": 5_000, "complaint_window": 5_000}


def task() -> tuple[torch.nn.Module, vgame.Task]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    data = {"x": torch.randn(90, 4), "y": torch.arange(90) % 3}
    loss = lambda m, b: torch.nn.functional.cross_entropy(m(b["x"]), b["y"])  # noqa: E731
    return model, vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5), data, batch=30)


def test_a_client_receives_the_trained_state(tmp_path: Path) -> None:
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
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        for _ in range(30):
            if order.phase == "revealed":
                break
            if not agent.step():
                chain.advance(Terms().challenge_window + 1 if order.phase == "claimed" else 1_000)
        url, out = f"http://127.0.0.1:{server.server_port}", tmp_path / "model.safetensors"
        received = order.receive(tmp_path / "bundle", url, out)
        server.shutdown()
    assert received.file == out and read_weights(out)[1]["keys"] == {"weight": "weight", "bias": "bias"}
    with pytest.raises(VgameError, match="Linear has no save_pretrained"):
        received.save_pretrained(tmp_path / "saved", model)
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
    with pytest.raises(DeliveryError, match="holds no encrypted state"):
        folder_server(tmp_path, "127.0.0.1", 0)


def test_the_windows_of_delivery_are_set_all_or_none() -> None:
    with pytest.raises((ValueError, VgameError), match="key_window"):
        Terms(confirm_window=5)


KEYS = {"a": ("m.w", "float32"), "tied": ("m.w", "float32"), "count": ("m.n", "int64"), "on": ("m.n", "bool")}


def test_a_received_file_equals_an_export(tmp_path: Path) -> None:
    """Key for key and bit for bit: tied weights, integers of every width, tensors that are not the module's left
    out."""
    from vgame.commit.tensor import tensor_bytes, tensor_root
    from vgame.delivery.received import StateFile
    from vgame.delivery.sealed import Shape, piece_leaves
    from vgame.job.state_keys import state_dict
    from vgame.job.weights import pack_weights

    labels = [L("m.w", (70, 20_000)), L("slot", (5,)), L("m.n", (), True), L("m.e", (0, 3))]
    keys = KEYS | {"small": ("m.n", "uint8"), "empty": ("m.e", "float32")}
    state = [torch.randn(1_400_000), torch.randn(5), torch.tensor([1], dtype=torch.int32), torch.empty(0)]
    sources = [SimpleNamespace(elements=t.numel(), integer=t.dtype == torch.int32) for t in state]
    program = SimpleNamespace(labels=SimpleNamespace(state=labels), sources=sources)
    bundle = SimpleNamespace(program=program, keys=keys, steps=3, identity=bytes(32))
    shape = Shape([t.numel() for t in state])
    with StateFile(tmp_path / "m.safetensors", tmp_path, bundle, [tensor_root(t) for t in state]) as file:
        for piece in reversed(list(shape.pieces())):
            file.write(piece, piece_leaves(tensor_bytes(state[piece.tensor]), piece))
    named = state_dict(keys, labels, state, False)
    (tmp_path / "expected").write_bytes(b"".join(pack_weights(bundle, 3, state, named)))
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "expected").read_bytes()
    found, head = read_weights(tmp_path / "m.safetensors")
    assert set(found) == set(named) and head == read_weights(tmp_path / "expected")[1]
    for key, tensor in named.items():
        assert found[key].dtype == tensor.dtype and torch.equal(found[key], tensor)
    with pytest.raises(ZeroDivisionError), StateFile(tmp_path / "half", tmp_path, bundle, [bytes(32)] * 4):
        raise ZeroDivisionError
    assert sorted(p.name for p in tmp_path.iterdir()) == ["expected", "m.safetensors"]


def test_the_server_gives_four_files_and_nothing_else(tmp_path: Path) -> None:
    """The key lies beside the folder that is served."""
    (tmp_path / "key").write_bytes(b"secret")
    public = tmp_path / "public"
    public.mkdir()
    for name in ("offer.json", "chunks", "hashes", "leaves", "other"):
        (public / name).write_bytes(b"0123456789")
    server = folder_server(public, "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def ask(path: str, wanted: str = "bytes=2-4", method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Range", wanted)
        connection.endheaders()
        with connection.getresponse() as reply:
            return reply.status, reply.read()

    assert ask("/leaves") == (206, b"234") and ask("/leaves", "bytes=8-99") == (206, b"89")
    for path in ("/../key", "/..%2fkey", "/other", "/", "//etc/passwd", "/leaves/../../key", "/leaves?x", "/.key.half"):
        assert ask(path)[0] == 404, path
    for wanted in ("bytes=10-11", "bytes=4-2", f"bytes={'1' * 5_000}-2", f"bytes=2-{'1' * 5_000}"):
        assert ask("/leaves", wanted)[0] == 416, wanted
    assert ask("/leaves", "bytes=0-1,3-4") == (200, b"0123456789")
    assert {ask("/leaves", method=m)[0] for m in ("HEAD", "PUT", "DELETE", "POST")} == {501}
    server.shutdown()
