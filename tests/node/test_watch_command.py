"""`vgame watch` as a command: a process, its address, its page; nothing for other sites; ended by Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import forked
from scene import Scene

from vgame.chain.game import Game
from vgame.chain.registry import record
from vgame.chain.wallet import deploy_game


def ask(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(url, headers={k.replace("_", "-"): v for k, v in headers.items()}), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, ""


def test_the_page_is_served_until_it_is_interrupted(some_scene: Scene, tmp_path: Path) -> None:
    game = Game(some_scene.chain, deploy_game(some_scene.wallet()))
    record(tmp_path / "games.json", game)
    command = [sys.executable, "-m", "vgame.cli", "watch", "--rpc", game.chain.url, "--game", "games.json", "--json"]

    def end_on_interrupt() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=end_on_interrupt
    )
    try:
        url = json.loads(process.stdout.readline())["url"].rstrip("/") + "/"
        status, page = ask(url)
        assert status == 200 and "<script" in page and url.startswith("http://127.0.0.1:")
        assert ask(url, Host="elsewhere.example")[0] == 400
        assert ask(f"{url}state", Sec_Fetch_Site="cross-site")[0] == 403
        with urlopen(f"{url}events", timeout=20) as stream:
            lines = [stream.readline().decode()]
            while game.address not in lines[-1]:  # the first state may be empty, then a difference comes
                assert len(lines) < 20, lines
                lines.append(stream.readline().decode())
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, complaint) == (1, "vgame: interrupted; start the same command again to go on\n")


def test_a_missing_game_is_reported(some_scene: Scene, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vgame.cli", "watch", "--rpc", some_scene.chain.url, "--game", "0x" + "11" * 20]
    done = forked.run(command, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("vgame: the code at 0x1111")
    assert done.stderr.count("\n") == 1
