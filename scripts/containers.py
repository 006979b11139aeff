"""Build and run the container files: an image for the roles, then the compose file from an order to a final claim.

    python scripts/containers.py                  # needs podman or docker, with compose, and the npm packages
    python scripts/containers.py --base ROOT.tar  # if the base image cannot be pulled: a root file system with
                                                  # Python 3.11 and pip in its place

anvil is taken from the npm packages, in an image made here. Exit code 0: the trainer's claim became final in its
container, the auditor's root was the same, page and health endpoints answered. 3: no container engine, or no base
image.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from vgame.agents.client import post_job
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.chain.wallet import Wallet, deploy_game
from vgame.errors import ChainError
from vgame.job.bundle import save_bundle
from vgame.job.file import read_job_file
from vgame.runs.prepare import prepare

ROOT = Path(__file__).resolve().parent.parent
BASE = "docker.io/library/python:3.11-slim-bookworm"
ANVIL = ROOT / "node_modules" / "@foundry-rs" / "anvil-linux-amd64" / "bin" / "anvil"
RPC = "http://127.0.0.1:8545"
ANSWERS = {"page": "http://127.0.0.1:8100", "trainer": "http://127.0.0.1:9101/health",
           "auditor": "http://127.0.0.1:9102/health"}  # fmt: skip
NO_ENGINE = 3


def run(*command: str, **options: object) -> None:
    print("$", " ".join(command), file=sys.stderr)
    subprocess.run(command, check=True, stdout=sys.stderr, **options)


def engine() -> tuple[str, list[str]] | None:
    """The available engine, and its compose command."""
    for name, compose in (("podman", ["podman-compose"]), ("docker", ["docker", "compose"])):
        works = shutil.which(name) and subprocess.run([name, "ps"], capture_output=True, check=False).returncode == 0
        if works and (path := shutil.which(compose[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")):
            return name, [path, *compose[1:]]
    return None


def build(name: str, base: Path | None, folder: Path, options: list[str]) -> None:
    """The images `vgame` and `vgame-anvil`."""
    if base:
        run(name, "import", "-c", "ENV PIP_BREAK_SYSTEM_PACKAGES=1", str(base), BASE)
    run(name, "build", *options, "-f", str(ROOT / "deploy" / "Dockerfile"), "-t", "vgame", str(ROOT))
    shutil.copy(ANVIL, folder / "anvil")
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY anvil /usr/local/bin/anvil\n")
    run(name, "build", *options, "-t", "vgame-anvil", str(folder))


def until(what: str, condition: Callable[[], bool], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"within {seconds:.0f} seconds {what} did not happen")
        time.sleep(1)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200 and len(reply.read()) > 0
    except OSError:
        return False


def has_block() -> bool:
    try:
        return Chain(RPC).now() > 0
    except ChainError:
        return False


def write(folder: Path, **values: str) -> None:
    """Write the files that the compose file needs."""
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def play(compose: list[str], folder: Path) -> dict:
    """Play deploy/compose.yaml with a small job."""
    job_file = read_job_file(ROOT / "vgame" / "tasks" / "digits.toml")
    bundle = prepare(job_file.model_copy(update={"steps": 20, "interval": 5}))
    save_bundle(bundle, folder / "bundle")
    shutil.copy(ROOT / "deploy" / "compose.yaml", folder / "compose.yaml")
    keys = {"TRAINER_KEY": secrets.token_hex(32), "AUDITOR_KEY": secrets.token_hex(32)}
    write(folder, ANVIL_IMAGE="vgame-anvil", GAME="none", JOB="none", **keys)
    run(*compose, "up", "-d", "anvil", cwd=folder)
    until("a first block", has_block, 60)
    chain = Chain(RPC)
    client, *roles = Wallet(chain), *(Wallet(chain, key) for key in keys.values())
    for wallet in (client, *roles):
        chain.fund(wallet.address, 100 * 10**18)
    game = Game(chain, deploy_game(client), client)
    job = post_job(game, bundle, 0)
    write(folder, ANVIL_IMAGE="vgame-anvil", GAME=game.address, JOB=job.hex(), **keys)
    run(*compose, "up", "-d", cwd=folder)
    until("the claim", lambda: game.job(job).phase is Phase.CLAIMED, 300)
    for what, url in ANSWERS.items():
        until(f"an answer of the {what}", lambda url=url: answers(url), 120)
    until("the audit", lambda: ": MATCH, own root" in logs(compose, folder), 120)
    chain.advance(bundle.terms.challenge_window + 1)
    until("the final claim", lambda: game.job(job).phase is Phase.FINAL, 120)
    return {"phase": game.job(job).phase.name, "disputes": game.job(job).disputes, "answers": list(ANSWERS)}


def logs(compose: list[str], folder: Path) -> str:
    """The logs of trainer, auditor and watch."""
    command = [*compose, "logs", "trainer", "auditor", "watch"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, help="a root file system (tar) in the place of the base image")
    parser.add_argument("--build-option", action="append", default=[], help="of the engine's build command; repeatable")
    arguments = parser.parse_args()
    found = engine()
    if found is None:
        print("no container engine with compose answers: the container files are only linted", file=sys.stderr)
        return NO_ENGINE
    name, compose = found
    if not arguments.base and subprocess.run([name, "pull", "--quiet", BASE], stdout=sys.stderr).returncode:
        print(f"{BASE} cannot be pulled here: the container files are only linted", file=sys.stderr)
        return NO_ENGINE
    with tempfile.TemporaryDirectory(prefix="vgame-containers-") as folder:
        place = Path(folder)
        build(name, arguments.base, place, arguments.build_option)
        try:
            result = play(compose, place)
        except BaseException:
            print(logs(compose, place), file=sys.stderr)
            raise
        finally:
            subprocess.run([*compose, "down", "-v"], cwd=place, stdout=sys.stderr, check=False)
    print(json.dumps({"engine": name, **result}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
