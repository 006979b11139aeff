"""A published run: fetches are bounded by the order, and messages do not show its address."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from audited_runs import bundle

import vgame
from vgame.program.file import load_program, save_program
from vgame.program.program import Program, TensorLabel
from vgame.runs import source
from vgame.runs.published import open_published

pytest.importorskip("fsspec", reason="fsspec is not installed: pip install -e '.[remote]'")
HUGE = TensorLabel("huge", (2**20, 2**20))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vgame.train(bundle(), tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def copy(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VGAME_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(run, tmp_path / "copy"))


def many_scalars(program: Program) -> Program:
    return replace(program, scalars=2**26)


def large_state(program: Program) -> Program:
    return replace(program, labels=replace(program.labels, state=(HUGE, *program.labels.state[1:])))


def large_data(program: Program) -> Program:
    return replace(program, labels=replace(program.labels, data=(HUGE, *program.labels.data[1:])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (many_scalars, r"has a table of 6,442,4\d\d,\d{3} bytes of scalars, at most 1,073,741,824 are read"),
        (large_state, "its labels have other sizes than its state"),
        (large_data, "as 120 elements instead of 1099511627776"),
    ],
)
def test_a_table_too_large_for_the_order_is_not_fetched(copy: Path, change: Callable, message: str) -> None:
    """A gigabyte waits in each file of tensors."""
    path = copy / "job/program.vgp"
    save_program(change(load_program(path)), path)
    for name in ("initial", "data", "scalars"):
        with open(copy / f"job/{name}.safetensors", "r+b") as file:
            file.truncate(2**30)
    with pytest.raises(vgame.StoreError, match=message):
        open_published([f"file://{copy}"])
    assert not list((copy.parent / "cache").rglob("*.safetensors"))


def test_scalars_beyond_the_steps_of_the_order(copy: Path) -> None:
    with open(copy / "job/scalars.safetensors", "ab") as file:
        file.write(bytes(2**20))
    with pytest.raises(vgame.StoreError, match=r"scalars\.safetensors has 1,048,\d{3} bytes, at most 1,\d{3} are exp"):
        open_published([f"file://{copy}"])


def test_a_mirror_replaces_a_damaged_program(run: Path, copy: Path) -> None:
    (copy / "job/program.vgp").write_bytes(b"none")
    assert open_published([f"file://{copy}", f"file://{run}"]).done


def test_a_partly_fetched_job_is_fetched_again(run: Path, copy: Path) -> None:
    folder = open_published([f"file://{copy}"]).folder
    for name in ("program.vgp", "data.safetensors"):
        (folder / "job" / name).unlink()
        assert open_published([f"file://{copy}"]).done


@pytest.mark.parametrize(
    "url",
    [
        "http://user:sesame@127.0.0.1:1/run", "http://sesame@127.0.0.1:1/run", "http://user:ses@sesame@127.0.0.1:1/run",
        "http://127.0.0.1:1/run?signature=sesame", "http://127.0.0.1:1/run#sesame", "http://u:se/sesame@127.0.0.1:1/run",
        "nonsense://user:sesame@127.0.0.1:1/run",
    ],
)  # fmt: skip
def test_messages_show_no_login_of_a_run(url: str, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CONNECT", 1.0)
    with pytest.raises(vgame.VgameError) as caught:
        vgame.audit(url, mirrors=[url])
    assert "127.0.0.1:1/run" in str(caught.value) and "sesame" not in str(caught.value)


def test_bytes_before_the_words_of_a_data_file_are_bounded(copy: Path) -> None:
    (copy / "job/data.json").write_text('{"files": {"0": ["data-0000.words", 1099511627776]}}')
    with pytest.raises(vgame.StoreError, match=r"has 1,099,511,627,776 bytes before its words, 4,294,967,296 are read"):
        open_published([f"file://{copy}"])


@pytest.mark.parametrize("end", ["?token=sesame&x=1", "/?token=sesame"])
def test_the_query_of_a_url_goes_with_each_file(end: str, copy: Path) -> None:
    calls: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def send_head(self):
            calls.append(self.path)
            return super().send_head()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(copy.parent))) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        audit = vgame.audit(f"http://127.0.0.1:{server.server_port}/copy{end}")
        server.shutdown()
    assert audit.match and all(path.endswith(end.lstrip("/")) and path.startswith("/copy/") for path in calls)
    assert any("states/" in path for path in calls)
