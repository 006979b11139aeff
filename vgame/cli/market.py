"""Commands on a chain."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vgame.cli.options import (
    LOOK,
    ON_CHAIN,
    BundleFolder,
    ChainId,
    DeviceName,
    GameAddress,
    Json,
    LogFile,
    Metrics,
    Notify,
    Rpc,
    StoreFolder,
    Workers,
    app,
    check_number,
    job_app,
    job_id,
    role_reporter,
    seat_of,
    wei_of,
)
from vgame.errors import ChainError, NotYet, VgameError
from vgame.system.progress import NULL_PROGRESS, Reporter
from vgame.system.warned import warn

Role = StrEnum("Role", ["trainer", "auditor", "client"])
Clients = Annotated[
    list[str] | None,
    typer.Option("--client", help="the orders of this address, by state; may be repeated; default: all orders"),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="print the next transaction and the reason; needs no key, sends nothing")
]


@app.command(rich_help_panel=ON_CHAIN)
def chain(
    port: Annotated[int, typer.Option(help="0: any free port", min=0, max=65535)] = 0,
    still: Annotated[bool, typer.Option("--still", help="time passes only with transactions, or by request")] = False,
) -> None:
    """Serve the embedded chain on loopback until interrupted: a URL, then rich accounts and their keys."""
    from vgame.chain.embedded import announce, serve

    server = serve(port, still)
    announce(server)
    server.serve_forever()


@app.command(rich_help_panel=ON_CHAIN)
def deploy(
    rpc: Rpc,
    registry: Annotated[
        Path | None, typer.Option(help="file of games by chain; this game is added; `--game` accepts the file")
    ] = None,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """Deploy the game and its referee with the key in VGAME_KEY, and check that the chain has this version's code.
    After an interruption the same command goes on."""
    from vgame.agents.config import wallet_from_environment
    from vgame.api_chain import Game
    from vgame.chain import registry as games
    from vgame.chain.agreed import retried
    from vgame.chain.connect import connect
    from vgame.chain.deployment import deploy as deploy_parts

    connection = connect(rpc, chain_id)
    reporter = Reporter(json)
    connection.tell = lambda text: reporter.emit("waiting", text, message=text)
    listener = NULL_PROGRESS if json else reporter
    check = lambda: registry and games.check_room(registry, connection.chain_id)  # noqa: E731
    address = deploy_parts(wallet_from_environment(connection), listener, check)
    # ChainError unless all six contracts have this version's code; also at a node that lags behind the deployment
    game = retried(connection, lambda: Game(connection, address), ChainError)
    try:
        if registry:
            retried(connection, lambda: games.record(registry, game), ChainError, NotYet)
    finally:  # print the address even if the file cannot be written
        reporter.emit("deployed", f"game at {address} on chain {connection.chain_id}", game=address)


@job_app.command()
def post(
    job: Annotated[Path, typer.Argument(help="the job's bundle, as `vgame prepare` wrote it")],
    rpc: Rpc,
    game: GameAddress,
    nonce: Annotated[
        int, typer.Option(help="a number that this client has not used for the same order yet", min=0, max=2**64 - 1)
    ] = 0,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """Order a job, and pay its reward."""
    if job.is_file():
        raise VgameError(f"{job} is a file; run `vgame prepare {job} --out BUNDLE` and post the bundle")
    seat = seat_of(rpc, game, job, job, "default", chain_id)
    from vgame.agents.client import post_job
    from vgame.agents.config import open_game
    from vgame.chain.anywhere import anywhere
    from vgame.job.bundle import load_bundle
    from vgame.job.terms import refused_by_all

    contract, bundle, reporter = open_game(seat), load_bundle(job), Reporter(json)
    if why := refused_by_all(bundle, sum(anywhere(contract.chain, lambda: contract.chain.fees(of_all=True)))):
        warn(why)
    identity = post_job(contract, bundle, nonce).hex()
    reporter.emit("posted", f"job {identity}", job=identity)


@job_app.command()
def close(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    rpc: Rpc,
    game: GameAddress,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """End a job after its deadline, and withdraw this account's whole credit: so a client gets its money back."""
    seat, identity = seat_of(rpc, game, Path(), Path(), "default", chain_id), job_id(job)
    from vgame.agents.client import close_job
    from vgame.agents.config import open_game

    phase, amount = close_job(open_game(seat), identity)
    text = f"job {identity.hex()} is {phase.name.lower()}, {amount / 10**18:.6f} ether withdrawn"
    Reporter(json).emit("closed", text, job=identity.hex(), phase=phase.name.lower(), withdrawn=amount)


@job_app.command()
def delegate(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    account: Annotated[str, typer.Argument(help="address of the delegate")],
    rpc: Rpc,
    game: GameAddress,
    remove: Annotated[bool, typer.Option("--remove", help="remove this delegate")] = False,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """As the job's trainer, let an account answer in disputes (`vgame trainer --delegate`); its posts bind the
    trainer."""
    seat, identity = seat_of(rpc, game, Path(), Path(), "default", chain_id), job_id(job)
    from vgame.agents.client import set_delegate
    from vgame.agents.config import open_game
    from vgame.chain.records import checksum_address

    address = checksum_address(account)
    set_delegate(open_game(seat), identity, address, not remove)
    text = f"{address} {'answers no longer' if remove else 'may answer'} for the trainer of job {identity.hex()}"
    Reporter(json).emit("delegated", text, job=identity.hex(), account=address, allowed=not remove)


@app.command(rich_help_panel=ON_CHAIN)
def trainer(
    rpc: Rpc,
    game: GameAddress,
    job: Annotated[str, typer.Option(help="identity of the job, hex")],
    bundle: BundleFolder,
    store: StoreFolder,
    device: DeviceName = "default",
    any_terms: Annotated[bool, typer.Option("--any-terms", help="accept clocks that may be too short")] = False,
    delegate: Annotated[
        bool, typer.Option("--delegate", help="only answer disputes for the job's trainer, as its delegate")
    ] = False,
    workers: Workers = 1,
    dry_run: DryRun = False,
    chain_id: ChainId = None,
    metrics: Metrics = None,
    log_json: LogFile = None,
    notify: Notify = None,
    json: Json = False,
) -> None:
    """Accept a job, train, claim, defend, withdraw. If it is started again after a crash, it resumes."""
    if dry_run:
        return _explain_order(rpc, game, job, bundle, "trainer", json)
    seat = seat_of(rpc, game, bundle, store, device, chain_id, workers=workers)
    from vgame.agents.roles import follow_trainer, run_delegate, run_trainer
    from vgame.chain.records import Phase
    from vgame.ranks.group import own_rank

    if own_rank() and not delegate:
        return follow_trainer(seat)
    reporter = role_reporter("delegate" if delegate else "trainer", metrics, log_json, json, notify)

    identity = job_id(job)
    phase = run_delegate(seat, identity, reporter) if delegate else run_trainer(seat, identity, reporter, any_terms)
    raise typer.Exit(2 if phase is Phase.CONVICTED else 0)


@app.command(rich_help_panel=ON_CHAIN)
def deliver(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    store: StoreFolder,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0: any")] = 0,
    json: Json = False,
) -> None:
    """Serve the ciphertext of a job that this store's trainer has claimed; any file server with byte ranges can do it
    too."""
    from vgame.agents.delivery import delivered_folder, folder_server

    server = folder_server(delivered_folder(store, job_id(job)) / "public", host, port)
    url = f"http://{host}:{server.server_port}"
    Reporter(json).emit("serving", f"{url} serves the sealed state; end with Ctrl-C", url=url)
    server.serve_forever()


@app.command(rich_help_panel=ON_CHAIN)
def receive(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    rpc: Rpc,
    game: GameAddress,
    bundle: BundleFolder,
    source: Annotated[str, typer.Option("--from", help="URL of the folder that the trainer serves")],
    out: Annotated[Path, typer.Option(help="safetensors file to write")],
    dry_run: DryRun = False,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """As the job's client, fetch, confirm, wait for the key, decipher; complain, request, decline by the rules of
    docs/delivery.md."""
    if dry_run:
        return _explain_order(rpc, game, job, bundle, "client", json)
    seat, identity = seat_of(rpc, game, bundle, Path(), "default", chain_id), job_id(job)
    from vgame.agents.config import open_game
    from vgame.agents.delivery import receive as receive_state
    from vgame.job.bundle import load_bundle

    reporter = Reporter(json, "client")
    receive_state(open_game(seat, reporter), load_bundle(bundle), identity, source, out, reporter)


@app.command(rich_help_panel=ON_CHAIN)
def auditor(
    rpc: Rpc,
    game: GameAddress,
    bundle: BundleFolder,
    store: StoreFolder,
    device: DeviceName = "default",
    job: Annotated[
        list[str] | None, typer.Option("--job", help="play this job, hex; may be repeated; default: --hunt 8")
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option("--client", help="play the orders of this address; may be repeated")
    ] = None,
    hunt: Annotated[int, typer.Option(help="play all claims of the bundle, at most so many at a time")] = 0,
    once: Annotated[bool, typer.Option(help="stop when all played jobs have ended")] = False,
    max_bond: Annotated[
        str | None, typer.Option(help='largest total stake, "0.5 ether"; default: the trainer\'s bond')
    ] = None,
    any_terms: Annotated[bool, typer.Option("--any-terms", help="dispute on clocks that may be too short")] = False,
    log: Annotated[Path | None, typer.Option(help="mode logged: the trainer's run folder, or a copy of it")] = None,
    published: Annotated[
        list[str] | None,
        typer.Option(help="folder or URL of the trainer's run, whose states save time; repeat it for mirrors"),
    ] = None,
    workers: Workers = 1,
    chain_id: ChainId = None,
    metrics: Metrics = None,
    log_json: LogFile = None,
    notify: Notify = None,
    json: Json = False,
) -> None:
    """Re-execute a bundle, and dispute the claims of the named jobs that differ."""
    check_number("--hunt", hunt, 0, 1000)
    seat = seat_of(rpc, game, bundle, store, device, chain_id, log, published or (), workers)
    from vgame.agents.auditor_service import run_auditor
    from vgame.agents.named_jobs import Limits
    from vgame.chain.records import checksum_address

    named = {"jobs": frozenset(map(job_id, job or ())), "clients": frozenset(map(checksum_address, client or ()))}
    limits = Limits(wei_of(max_bond), any_terms, **named, hunt=hunt)
    run_auditor(seat, role_reporter("auditor", metrics, log_json, json, notify), limits, once)


@app.command(rich_help_panel=LOOK)
def status(
    rpc: Rpc,
    game: GameAddress,
    job: Annotated[str | None, typer.Option(help="one job only, hex")] = None,
    client: Clients = None,
    account: Annotated[str | None, typer.Option(help="also show the money of this address")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="print again after each change")] = False,
    json: Json = False,
) -> None:
    """Show jobs, claims, disputes, clocks and money of a game."""
    from vgame.agents.status import show_status
    from vgame.chain.records import checksum_address
    from vgame.chain.registry import open_reading

    only = job_id(job) if job else None
    address = checksum_address(account) if account else None
    clients = tuple(map(checksum_address, client or ()))
    show_status(open_reading(rpc, game), Reporter(json), only, address, 2.0 if follow else None, clients)


@app.command(rich_help_panel=LOOK)
def why(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    rpc: Rpc,
    game: GameAddress,
    role: Annotated[Role | None, typer.Option("--as", help="one role only")] = None,
    account: Annotated[str | None, typer.Option(help="address of the player; default: the player of the role")] = None,
    json: Json = False,
) -> None:
    """Print the next transaction of each role of a job, its deadline and its reason, from the contract's state alone,
    without a key."""
    from vgame.agents.due import ROLES, explain
    from vgame.chain.records import checksum_address
    from vgame.chain.registry import open_reading

    address, roles = checksum_address(account) if account else None, [role.value] if role else list(ROLES)
    explain(open_reading(rpc, game), job_id(job), roles, address, Reporter(json))


def _explain_order(rpc: Sequence[str], game: str, job: str, bundle: Path, role: str, json: bool) -> None:
    """`--dry-run`: check that the bundle matches the order, and print the role's next transaction."""
    from vgame.agents.due import explain
    from vgame.agents.order import find_order
    from vgame.chain.registry import open_reading
    from vgame.job.bundle import load_bundle

    contract, identity = open_reading(rpc, game), job_id(job)
    contract.check_parts()
    find_order(contract, load_bundle(bundle), identity)
    explain(contract, identity, [role], None, Reporter(json))


@app.command(rich_help_panel=LOOK)
def monitor(
    rpc: Rpc,
    game: GameAddress,
    account: Annotated[str, typer.Option(help="address of the watched player")],
    client: Clients = None,
    bundle: Annotated[Path | None, typer.Option(help="bundle, with --store: compare claims with your run")] = None,
    store: Annotated[Path | None, typer.Option(help="folder of your run's checkpoints")] = None,
    every: Annotated[float, typer.Option(help="seconds between two reads")] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="check once; exit code 1 on an alarm")] = False,
    notify: Notify = None,
    json: Json = False,
) -> None:
    """Sound alarms: a clock that runs out, an agent that is stuck, a claim that differs, bonds too small, too little
    ether."""
    from vgame.agents.status import watch
    from vgame.agents.telemetry import observe
    from vgame.chain.records import checksum_address
    from vgame.chain.registry import open_reading

    check_number("--every", every, 0.1, 86_400)
    if (bundle is None) != (store is None):
        raise VgameError("--bundle and --store belong together: both are needed to compare claims with the own run")
    contract, address = open_reading(rpc, game), checksum_address(account)
    forecast = None
    if bundle is not None and store is not None:
        from vgame.agents.client import forecast as own_roots

        forecast = own_roots(contract, bundle, store)
    clients = tuple(map(checksum_address, client or ()))
    reporter = Reporter(json)
    observe(reporter, "monitor", command=notify)
    found = watch(contract, reporter, address, forecast, every, once, clients)
    raise typer.Exit(1 if found else 0)


@app.command(rich_help_panel=LOOK)
def watch(
    rpc: Rpc,
    game: GameAddress,
    bundle: Annotated[
        list[Path] | None,
        typer.Option("--bundle", help="an ordered bundle: names of operators, formulas; may be repeated"),
    ] = None,
    run: Annotated[list[Path] | None, typer.Option("--run", help="your run of `vgame train`; may be repeated")] = None,
    store: Annotated[Path | None, typer.Option(help="your agent's store of checkpoints, with --bundle")] = None,
    account: Annotated[list[str] | None, typer.Option(help="your address: alarms, balance; may be repeated")] = None,
    known: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS=NAME", help="a name for an address; may be repeated")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help="your role's health endpoint, a URL; may be repeated")] = None,
    port: Annotated[int, typer.Option(help="0: any free port", min=0, max=65535)] = 0,
    every: Annotated[float, typer.Option(help="seconds between two reads")] = 1.0,
    json: Json = False,
) -> None:
    """Serve a page on loopback that shows jobs, disputes and money while they happen."""
    check_number("--every", every, 0.1, 3_600)
    from vgame.watch.command import Watched, serve_page

    lists = (tuple(given or ()) for given in (account, known, role))
    watched = Watched(rpc, game, tuple(bundle or ()), tuple(run or ()), store, *lists, port, every)
    serve_page(watched, Reporter(json))
