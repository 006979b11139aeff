"""The command line. Exit codes: 0 fine, 1 the environment or the input, 2 the verdict is "cheated".

Torch is imported inside the commands that compute, after the device's environment is set.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from vgame.cli import bonus, local, market  # noqa: F401  each registers its commands
from vgame.cli.options import (
    ON_CHAIN,
    TOOLS,
    BundleFolder,
    ChainId,
    DeviceName,
    GameAddress,
    Json,
    Mode,
    Rpc,
    StoreFolder,
    app,
    bonus_app,
    job_app,
    seat_of,
)
from vgame.errors import PARENT_VARIABLE, STOPPED, VgameError, missing_package
from vgame.system.progress import Reporter, drop_unsaid, fail
from vgame.system.warned import show_as_sentences

app.add_typer(job_app, name="job", rich_help_panel=ON_CHAIN)
app.add_typer(bonus_app, name="bonus", rich_help_panel=ON_CHAIN)

INTERRUPTED = 130  # typer's exit code of Ctrl-C

UsageError = typer.BadParameter.__bases__[0]


def _version(wanted: bool) -> None:
    if wanted:
        from vgame.system.version import sources

        print(f"vgame {sources()}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", callback=_version)] = False,
) -> None:
    """Options of `vgame` itself."""


@app.command(rich_help_panel=TOOLS)
def doctor(device: DeviceName = "default", json: Json = False) -> None:
    """Test this device: its functions, and faults that would change bits."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.execute.devices import use_device
    from vgame.execute.doctor import examine

    reporter, bad = Reporter(json), []
    with use_device(device) as kind:
        for finding in examine(kind):
            mark = {True: "ok  ", False: "BAD ", None: "    "}[finding.ok]
            reporter.emit(
                "finding", f"{mark}{finding.what} {finding.detail}".rstrip(), what=finding.what, ok=finding.ok
            )
            bad += [finding.what] if finding.ok is False else []
    if bad:
        raise VgameError(f"this device must not train or audit: {'; '.join(bad)}")


@app.command(hidden=True)
def adversary(
    rpc: Rpc,
    game: GameAddress,
    bundle: BundleFolder,
    store: StoreFolder,
    device: DeviceName = "default",
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """Drills: play the cheats named on stdin."""
    seat = seat_of(rpc, game, bundle, store, device, chain_id)
    from vgame.demo.drills import run_adversary

    run_adversary(seat, Reporter(json, "adversary"))


@app.command(hidden=True)
def roots(
    bundle: Annotated[Path, typer.Argument()],
    mode: Annotated[Mode, typer.Option()],
    device: DeviceName = "default",
    json: Json = False,
) -> None:
    """State roots of every step in any rounding mode."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.demo.drills import run_roots

    run_roots(bundle, mode.value, device, Reporter(json, "roots"))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(STOPPED)


def _open_streams() -> None:
    """Open closed standard streams (`>&-`) to the null device: otherwise the next file or connection would get their
    numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nowhere, True)
            setattr(sys, name, open(nowhere, mode, closefd=False))  # noqa: SIM115


def main() -> None:
    """Entry point: an expected error is printed as one sentence, with exit code 1."""
    _open_streams()
    show_as_sentences()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # so that processes of a command are stopped with it
    if parent := os.environ.pop(PARENT_VARIABLE, ""):
        threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show must not end an agent
    try:
        try:
            code = app(standalone_mode=False) or 0
        except ModuleNotFoundError as error:
            raise missing_package(error) from None
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except UsageError as error:  # no verdict, so not 2
        error.show()
        sys.exit(1)
    except VgameError as error:
        if not error.reported:
            fail(str(error).replace("\n", "\\n"))  # one line, even if it quotes a node's text
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        fail("interrupted; start the same command again to go on")
        sys.exit(1)
    finally:
        drop_unsaid()


if __name__ == "__main__":
    main()
