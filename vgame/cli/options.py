"""The command line. Exit codes: 0 fine, 1 the environment or the input, 2 the verdict is "cheated".

Common options of the commands, and their parsers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vgame.errors import VgameError
from vgame.system.progress import Reporter

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__.split("\n")[0]
)


#: Panels of `vgame --help`.
ALONE, ON_CHAIN, LOOK, TOOLS = "Alone", "On a chain", "Look", "Tools"


job_app = typer.Typer(no_args_is_help=True, help="Post, close and delegate orders.")


bonus_app = typer.Typer(
    no_args_is_help=True, help="Promise, check and pay a bonus by accuracy on a committed test set."
)


WORKERS = "processes that execute parts of the run at the same time"
Rpc = Annotated[list[str], typer.Option("--rpc", help="JSON-RPC endpoint; may be repeated: looks use them in turn")]


GameAddress = Annotated[
    str, typer.Option("--game", help="address of the game, or the file of `vgame deploy --registry`")
]


BundleFolder = Annotated[Path, typer.Option("--bundle", help="folder of the job's bundle")]


StoreFolder = Annotated[Path, typer.Option("--store", help="folder for checkpoints")]


ChainId = Annotated[
    int | None,
    typer.Option("--chain-id", min=1, help="the chain to sign for; or VGAME_CHAIN_ID; not needed on loopback"),
]


DeviceName = Annotated[str, typer.Option("--device", help="default, compatible, reversed or cuda")]


Metrics = Annotated[
    str | None, typer.Option("--metrics", help="PORT or HOST:PORT that serves /health and /metrics (Prometheus)")
]


LogFile = Annotated[Path | None, typer.Option("--log-json", help="append every event to this file, as JSON lines")]


Notify = Annotated[
    str | None,
    typer.Option(
        "--notify", metavar="COMMAND", help="program to run for disputes and alarms, with a JSON object on its input"
    ),
]


Mode = StrEnum("Mode", ["correct", "nearest", "fp32"])


Json = Annotated[bool, typer.Option("--json", help="JSON for programs instead of text")]


Workers = Annotated[int, typer.Option("--workers", min=1, help=WORKERS)]


Validate = Annotated[
    float | None,
    typer.Option(help="seconds for comparing the program with your code; 0: no comparison", show_default="60"),
]


def seat_of(
    rpc: Sequence[str], game: str, bundle: Path, store: Path, device: str, chain_id: int | None,
    log: Path | None = None, published: Sequence[str] = (), workers: int = 1,
):  # fmt: skip
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.agents.config import AgentConfig
    from vgame.chain.registry import find

    game, chain_id = find(game, chain_id)
    return AgentConfig(tuple(rpc), game, bundle, store, device, 1, 0.2, log, tuple(published), workers, chain_id)


def role_reporter(role: str, metrics: str | None, log: Path | None, json: bool, notify: str | None = None) -> Reporter:
    """A role's reporter, with its listeners."""
    from vgame.agents.telemetry import observe

    reporter = Reporter(json, role)
    observe(reporter, role, metrics, log, notify)
    return reporter


def wei_of(text: str | None, option: str = "--max-bond") -> int | None:
    from vgame.job.file import wei

    try:
        amount = None if text is None else int(wei(int(text) if text.isascii() and text.isdigit() else text))
    except (ValueError, OverflowError) as error:
        raise VgameError(f"{option}: {error}") from None
    if amount is not None and amount < 0:
        raise VgameError(f"{option}: {text!r} is negative")
    return amount


def check_number(option: str, value: float, least: float, most: float) -> None:
    """INVARIANT: NaN is in no range."""
    if not least <= value <= most:
        raise VgameError(f"{option} {value}: a number from {least:g} to {most:g} is expected")


def job_id(text: str) -> bytes:
    try:
        job = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        job = b""
    if len(job) != 32:
        raise VgameError(
            f"{text!r} is no identity of a job or bonus; 64 hex digits are expected, as `vgame job post` and `vgame "
            "bonus promise` print them"
        )
    return job
