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
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vgame.errors import PARENT_VARIABLE, STOPPED, VgameError, missing_package
from vgame.system.progress import SILENCE, Reporter, drop_unsaid, fail

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__.split("\n")[0]
)

job_app = typer.Typer(no_args_is_help=True, help="Orders: what a client pays for.")
app.add_typer(job_app, name="job")

INTERRUPTED = 130  # what typer makes of Ctrl-C

UsageError = typer.BadParameter.__bases__[0]

Rpc = Annotated[str, typer.Option(help="JSON-RPC endpoint")]
GameAddress = Annotated[str, typer.Option("--game", help="address of the game")]
BundleFolder = Annotated[Path, typer.Option("--bundle", help="folder of the job's bundle")]
StoreFolder = Annotated[Path, typer.Option("--store", help="folder for checkpoints")]
ChainId = Annotated[
    int | None,
    typer.Option("--chain-id", min=1, help="the chain to sign for; without it only a node on loopback is believed"),
]
DeviceName = Annotated[str, typer.Option("--device", help="default, compatible, reversed or cuda")]
Metrics = Annotated[
    str | None, typer.Option("--metrics", help="PORT or HOST:PORT that serves /health and /metrics (Prometheus)")
]
LogFile = Annotated[Path | None, typer.Option("--log-json", help="append every event to this file, as JSON lines")]
Mode = StrEnum("Mode", ["correct", "nearest", "fp32"])
Json = Annotated[bool, typer.Option("--json", help="JSON for programs instead of text")]


def _seat(rpc: str, game: str, bundle: Path, store: Path, device: str, chain_id: int | None, log: Path | None = None):
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.agents.roles import Seat

    return Seat(rpc, game, bundle, store, device, log=log, chain_id=chain_id)


def _heard(role: str, metrics: str | None, log: Path | None, json: bool) -> Reporter:
    """What a role speaks by, and who else hears it."""
    from vgame.agents.telemetry import observe

    reporter = Reporter(json, role)
    observe(reporter, role, metrics, log)
    return reporter


@app.command()
def demo(
    json: Json = False,
    attack: Annotated[str | None, typer.Option(help="play one attack only")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a short honest run and one cheat")] = False,
    rpc: Annotated[str | None, typer.Option(help="play on this node instead of the embedded chain")] = None,
    report: Annotated[Path, typer.Option(help="where the HTML report goes")] = Path("vgame-report.html"),
    job: Annotated[Path | None, typer.Option(help="another job file instead of the digits")] = None,
) -> None:
    """Play the whole story: an honest claim becomes final, every cheat is convicted."""
    from vgame.demo import Wishes, run_demo

    raise typer.Exit(run_demo(json, Wishes(attack, quick, rpc, job), report))


@app.command()
def prepare(
    job: Annotated[Path, typer.Argument(help="job file (TOML)")],
    out: Annotated[Path, typer.Option(help="folder of the new bundle")],
    force: Annotated[bool, typer.Option("--force", help="overwrite the bundle that is there")] = False,
    json: Json = False,
) -> None:
    """Capture a job's model and write the bundle that everybody needs."""
    if (out / "spec.json").exists() and not force:
        raise VgameError(f"{out} holds a bundle already; choose another folder, or overwrite it with --force")
    from vgame.job.bundle import prepare as prepare_bundle
    from vgame.job.bundle import read_job_file, save_bundle

    reporter = Reporter(json)
    bundle = prepare_bundle(read_job_file(job), SILENCE if json else reporter)
    reporter.stage("hashes and writes the bundle")
    save_bundle(bundle, out)
    program = bundle.program
    text = f"{out}: {len(program.operators)} operators, {len(program.sources)} state tensors, program root {program.root.hex()}"
    reporter.emit("prepared", text, **bundle.rendering())


@app.command()
def train(
    bundle: Annotated[Path, typer.Argument(help="bundle folder, or a job file (TOML)")],
    out: Annotated[Path, typer.Option(help="folder of the run")],
    device: DeviceName = "default",
    keep: Annotated[int, typer.Option(min=1, help="keep every n-th checkpoint (and the newest)")] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="say where the time goes, by operator and module")] = False,
    json: Json = False,
) -> None:
    """Train without a chain: checkpoints, roots, resumable."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.runs import train_offline

    train_offline(bundle, out, device, keep, Reporter(json), profile)


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    device: DeviceName = "default",
    segment: Annotated[str | None, typer.Option(help="checkpoints I..J only")] = None,
    sample: Annotated[float | None, typer.Option(help="each checkpoint interval with this probability")] = None,
    seed: Annotated[int, typer.Option(help="of the sample; 0: unpredictable")] = 0,
    bundle: Annotated[
        Path | None, typer.Option(help="your order: the run must be one of it, names of tensors too")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes that execute parts at the same time")] = 1,
    record: Annotated[
        Path | None, typer.Option(help="file of what was found equal; with it a stopped audit goes on")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="seconds without a new step after which a worker hangs and is replaced")
    ] = 600.0,
    json: Json = False,
) -> None:
    """Re-execute a run and say MATCH or NO MATCH (exit code 2)."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.runs import audit_offline

    match = audit_offline(run, device, segment, sample, seed, Reporter(json), bundle, workers, record, timeout)
    raise typer.Exit(0 if match else 2)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    job: Annotated[Path, typer.Argument(help="job file (TOML) whose task has an `evaluate`")],
    out: Annotated[Path, typer.Option(help="folder of the evaluation's own run")],
    device: DeviceName = "default",
    json: Json = False,
) -> None:
    """Measure a trained state on held-out data: a run of its own, which anybody can audit or dispute."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.api_evaluation import evaluate as measure
    from vgame.job.bundle import make_task, read_job_file

    reporter = Reporter(json)
    found = measure(run, make_task(read_job_file(job)), out, device=device, progress=not json)
    means = ", ".join(f"{name} {total} ({found.mean(name):.6g} a sample)" for name, total in found.totals.items())
    told = {"run": str(run), "root": found.run.root, "samples": found.samples, "totals": dict(found.totals)}
    reporter.emit("evaluated", f"{found.samples} samples: {means}; run root {found.run.root}", **told)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    out: Annotated[Path, typer.Option(help="the new file, model.safetensors")],
    step: Annotated[int | None, typer.Option(help="after this step; default: the last")] = None,
    slots: Annotated[bool, typer.Option("--slots", help="also what the optimizer keeps")] = False,
    json: Json = False,
) -> None:
    """Write a run's weights as its module loads them: keys, types and tied weights are the module's."""
    from vgame.api import Run

    found = Run.open(run)
    found.export(out, step, slots=slots)
    after = found.step if step is None else step
    text = f"{out}: the weights after step {after} of {found.bundle.steps}, run root {found.root}"
    Reporter(json).emit("exported", text, step=after, root=found.root, job=found.bundle.identity.hex())


@app.command()
def check(
    weights: Annotated[
        Path, typer.Argument(help="a file of `vgame export`, or a checkpoint in a run's folder states/")
    ],
    rpc: Rpc,
    game: GameAddress,
    job: Annotated[str, typer.Option(help="identity of the job, hex")],
    bundle: Annotated[
        Path | None, typer.Option(help="the order: names are checked too, and that none is missing")
    ] = None,
    json: Json = False,
) -> None:
    """Is a file what a final claim certifies, word for word?"""
    identity = _job_id(job)
    from vgame.agents.certified import check_claim

    count, root = check_claim(weights, rpc, game, identity, bundle)
    names = "" if bundle else "; the names are the file's own (--bundle compares them with your order)"
    text = f"{weights} is what the final claim of job {identity.hex()[:16]} certifies: {count} tensors, state root {root.hex()}{names}"
    Reporter(json).emit("checked", text, job=identity.hex(), tensors=count, state=root.hex(), names=bundle is not None)


@app.command()
def locate(
    first: Annotated[Path, typer.Argument(help="folder of a run")],
    second: Annotated[Path, typer.Argument(help="folder of another run of the same job")],
    device: DeviceName = "default",
    json: Json = False,
) -> None:
    """Where two runs part: step, operator, element, both values (exit code 2 if they do)."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.runs import locate as find_difference

    raise typer.Exit(0 if find_difference(first, second, device, Reporter(json)) is None else 2)


@app.command()
def trace(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    step: Annotated[int, typer.Option(help="which step, from 1")],
    operator: Annotated[int | None, typer.Option(help="this operator's output only")] = None,
    element: Annotated[int | None, typer.Option(help="also this word of it")] = None,
    device: DeviceName = "default",
    json: Json = False,
) -> None:
    """Every operator's output root in a step of a run, and any word: to find where one's own execution differs."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.runs import trace as show_trace

    show_trace(run, step, device, Reporter(json), operator, element)


@app.command()
def inspect(
    program: Annotated[Path, typer.Argument(help="bundle folder, run folder or program file")], json: Json = False
) -> None:
    """Operators of a program, their sizes, and the dearest leaf to decide on chain."""
    from vgame.cli.inspect import show

    show(program, Reporter(json))


@app.command()
def terms(
    bundle: Annotated[Path, typer.Argument(help="bundle folder")],
    device: DeviceName = "default",
    slower: Annotated[
        float, typer.Option(help="how many times slower than this device the slowest honest one is")
    ] = 1.0,
    gas_gwei: Annotated[float, typer.Option(help="price of gas, gwei")] = 20.0,
    compute_ether: Annotated[float, typer.Option(help="price of an hour of the training device, ether")] = 0.001,
    audited: Annotated[float, typer.Option(help="how likely a claim is audited, from 1e-9 to 1")] = 0.5,
    censorship: Annotated[int, typer.Option(help="seconds that a player can be kept off the chain, at most")] = 86_400,
    json: Json = False,
) -> None:
    """The smallest safe bonds, clocks and windows of a job, as the table `terms` of its job file."""
    _check_number("--gas-gwei", gas_gwei, 0, 1e9)
    _check_number("--compute-ether", compute_ether, 0, 1e9)
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.terms import propose
    from vgame.job.terms import GWEI, Prices

    prices = Prices(int(gas_gwei * GWEI), int(compute_ether * 10**18), audited, censorship=censorship)
    propose(bundle, device, slower, prices, Reporter(json))


@app.command()
def chain(
    port: Annotated[int, typer.Option(help="0: any free port", min=0, max=65535)] = 0,
    still: Annotated[
        bool, typer.Option("--still", help="time passes only with transactions, or when it is moved")
    ] = False,
) -> None:
    """Serve the embedded chain on loopback until interrupted: a URL, then rich accounts and their keys."""
    from vgame.chain.embedded import announce, serve

    server = serve(port, still)
    announce(server)
    server.serve_forever()


@app.command()
def deploy(rpc: Rpc, chain_id: ChainId = None, json: Json = False) -> None:
    """Deploy the game and its referee with the key in VGAME_KEY, and check that the chain has this version's code."""
    from vgame.agents.roles import wallet_from_environment
    from vgame.chain.connection import connect, deploy_game
    from vgame.chain.game import Game

    connection = connect(rpc, chain_id)
    address = deploy_game(wallet_from_environment(connection))
    Game(connection, address).check_machine()  # what stands there is this version's code, all five parts
    Reporter(json).emit("deployed", f"game at {address} on chain {connection.chain_id}", game=address)


@job_app.command()
def post(
    job: Annotated[Path, typer.Argument(help="the job's bundle, as `vgame prepare` wrote it")],
    rpc: Rpc,
    game: GameAddress,
    nonce: Annotated[
        int, typer.Option(help="a number that this client has not used for the same order", min=0, max=2**256 - 1)
    ] = 0,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """Order a job: pays its reward."""
    if job.is_file():
        raise VgameError(f"{job} is a file; run `vgame prepare {job} --out BUNDLE` and post the bundle")
    seat = _seat(rpc, game, job, job, "default", chain_id)
    from vgame.agents.roles import open_game, post_job
    from vgame.job.bundle import load_bundle

    identity = post_job(open_game(seat), load_bundle(job), nonce).hex()
    Reporter(json).emit("posted", f"job {identity}", job=identity)


@job_app.command()
def close(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    rpc: Rpc,
    game: GameAddress,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """End a job whose time is over, and withdraw all that the contract owes this account: how a client gets money back."""
    seat, identity = _seat(rpc, game, Path(), Path(), "default", chain_id), _job_id(job)
    from vgame.agents.roles import close_job, open_game

    phase, amount = close_job(open_game(seat), identity)
    text = f"job {identity.hex()} is {phase.name.lower()}, {amount / 10**18:.6f} ether withdrawn"
    Reporter(json).emit("closed", text, job=identity.hex(), phase=phase.name.lower(), withdrawn=amount)


@job_app.command()
def delegate(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    account: Annotated[str, typer.Argument(help="address of the delegate")],
    rpc: Rpc,
    game: GameAddress,
    remove: Annotated[bool, typer.Option("--remove", help="it may answer no longer")] = False,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """As the job's trainer, let an account answer for it in disputes (`vgame trainer --delegate`); what it posts binds the trainer."""
    seat, identity = _seat(rpc, game, Path(), Path(), "default", chain_id), _job_id(job)
    from vgame.agents.roles import open_game
    from vgame.chain.connection import checksum_address

    who = checksum_address(account)
    open_game(seat).send("setDelegate", identity, who, not remove)
    text = f"{who} {'answers no longer' if remove else 'may answer'} for the trainer of job {identity.hex()}"
    Reporter(json).emit("delegated", text, job=identity.hex(), account=who, allowed=not remove)


@app.command()
def trainer(
    rpc: Rpc,
    game: GameAddress,
    job: Annotated[str, typer.Option(help="identity of the job, hex")],
    bundle: BundleFolder,
    store: StoreFolder,
    device: DeviceName = "default",
    any_terms: Annotated[bool, typer.Option("--any-terms", help="accept clocks that may be too short")] = False,
    delegate: Annotated[
        bool, typer.Option("--delegate", help="only answer for the job's trainer, which named this account")
    ] = False,
    chain_id: ChainId = None,
    metrics: Metrics = None,
    log_json: LogFile = None,
    json: Json = False,
) -> None:
    """Accept a job, train, claim, defend, withdraw. Start it again after a crash: it goes on."""
    seat = _seat(rpc, game, bundle, store, device, chain_id)
    reporter = _heard("delegate" if delegate else "trainer", metrics, log_json, json)
    from vgame.agents.roles import run_delegate, run_trainer
    from vgame.chain.game import Phase

    identity = _job_id(job)
    phase = run_delegate(seat, identity, reporter) if delegate else run_trainer(seat, identity, reporter, any_terms)
    raise typer.Exit(2 if phase is Phase.CONVICTED else 0)


@app.command()
def deliver(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    store: StoreFolder,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0: any")] = 0,
    json: Json = False,
) -> None:
    """Serve the ciphertext of a job that this store's trainer has claimed; any other server of ranges may do it too."""
    from vgame.agents.delivery import delivered_folder, folder_server

    server = folder_server(delivered_folder(store, _job_id(job)) / "public", host, port)
    url = f"http://{host}:{server.server_port}"
    Reporter(json).emit("serving", f"{url} serves the sealed state; end with Ctrl-C", url=url)
    server.serve_forever()


@app.command()
def receive(
    job: Annotated[str, typer.Argument(help="identity of the job, hex")],
    rpc: Rpc,
    game: GameAddress,
    bundle: BundleFolder,
    source: Annotated[str, typer.Option("--from", help="URL of the folder that the trainer serves")],
    out: Annotated[Path, typer.Option(help="safetensors file to write")],
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """As the job's client, fetch, confirm, wait for the key, decipher; complain, request, decline by the rules of docs/delivery.md."""
    seat, identity = _seat(rpc, game, bundle, Path(), "default", chain_id), _job_id(job)
    from vgame.agents.delivery import receive as receive_state
    from vgame.agents.roles import open_game
    from vgame.job.bundle import load_bundle

    reporter = Reporter(json, "client")
    receive_state(open_game(seat, reporter), load_bundle(bundle), identity, source, out, reporter)


@app.command()
def auditor(
    rpc: Rpc,
    game: GameAddress,
    bundle: BundleFolder,
    store: StoreFolder,
    device: DeviceName = "default",
    once: Annotated[bool, typer.Option(help="stop when all jobs of this bundle have ended")] = False,
    max_bond: Annotated[
        str | None, typer.Option(help='most that is staked, "0.5 ether"; default: the trainer\'s bond')
    ] = None,
    any_terms: Annotated[bool, typer.Option("--any-terms", help="dispute on clocks that may be too short")] = False,
    log: Annotated[Path | None, typer.Option(help="mode logged: the trainer's run folder, or a copy of it")] = None,
    chain_id: ChainId = None,
    metrics: Metrics = None,
    log_json: LogFile = None,
    json: Json = False,
) -> None:
    """Re-execute a bundle, watch the jobs that order it, dispute every claim that differs."""
    seat = _seat(rpc, game, bundle, store, device, chain_id, log)
    from vgame.agents.roles import Limits, run_auditor

    run_auditor(seat, _heard("auditor", metrics, log_json, json), Limits(_wei(max_bond), any_terms), once)


@app.command()
def status(
    rpc: Rpc,
    game: GameAddress,
    job: Annotated[str | None, typer.Option(help="one job only, hex")] = None,
    account: Annotated[str | None, typer.Option(help="address whose money is shown too")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="print again whenever something changed")] = False,
    json: Json = False,
) -> None:
    """Jobs, claims, disputes, clocks and money of a game."""
    from vgame.agents.status import show_status
    from vgame.chain.connection import Chain, checksum_address
    from vgame.chain.game import Game

    only = _job_id(job) if job else None
    who = checksum_address(account) if account else None
    show_status(Game(Chain(rpc), game), Reporter(json), only, who, 2.0 if follow else None)


@app.command()
def monitor(
    rpc: Rpc,
    game: GameAddress,
    account: Annotated[str, typer.Option(help="address of the player to watch over")],
    bundle: Annotated[Path | None, typer.Option(help="bundle, with --store: compare claims with the own run")] = None,
    store: Annotated[Path | None, typer.Option(help="folder of the own run's checkpoints")] = None,
    every: Annotated[float, typer.Option(help="seconds between two looks")] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="look once; exit code 1 if something is alarming")] = False,
    json: Json = False,
) -> None:
    """Alarms: a clock that runs out, an agent that is stuck, a claim that differs, bonds too small, too little ether."""
    from vgame.agents.status import watch
    from vgame.chain.connection import Chain, checksum_address
    from vgame.chain.game import Game

    _check_number("--every", every, 0.1, 86_400)
    if (bundle is None) != (store is None):
        raise VgameError("--bundle and --store belong together: both are needed to compare claims with the own run")
    contract, who = Game(Chain(rpc), game), checksum_address(account)
    forecast = None
    if bundle is not None and store is not None:
        from vgame.agents.roles import forecast as own_roots

        forecast = own_roots(contract, bundle, store)
    found = watch(contract, Reporter(json), who, forecast, every, once)
    raise typer.Exit(1 if found else 0)


@app.command()
def watch(
    rpc: Rpc,
    game: GameAddress,
    bundle: Annotated[
        list[Path] | None,
        typer.Option("--bundle", help="an ordered bundle: names of operators, formulas; may be repeated"),
    ] = None,
    run: Annotated[
        list[Path] | None, typer.Option("--run", help="an own run of `vgame train`; may be repeated")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="an own agent's store of checkpoints, with --bundle")] = None,
    account: Annotated[list[str] | None, typer.Option(help="an own address: alarms, balance; may be repeated")] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="an own role's health endpoint, a URL; may be repeated")
    ] = None,
    port: Annotated[int, typer.Option(help="0: any free port", min=0, max=65535)] = 0,
    every: Annotated[float, typer.Option(help="seconds between two looks")] = 1.0,
    json: Json = False,
) -> None:
    """Serve a page on loopback that shows jobs, disputes and money while they happen."""
    _check_number("--every", every, 0.1, 3_600)
    from vgame.watch.command import Watched, serve_page

    lists = (tuple(given or ()) for given in (account, role))
    watched = Watched(rpc, game, tuple(bundle or ()), tuple(run or ()), store, *lists, port, every)
    serve_page(watched, Reporter(json))


@app.command()
def doctor(device: DeviceName = "default", json: Json = False) -> None:
    """What this device can do, and what would break bits."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.execute.devices import settle
    from vgame.execute.doctor import examine

    reporter, bad = Reporter(json), []
    with settle(device) as kind:
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
    """Drills: play the cheats that are named on stdin."""
    seat = _seat(rpc, game, bundle, store, device, chain_id)
    from vgame.demo.drills import run_adversary

    run_adversary(seat, Reporter(json, "adversary"))


@app.command(hidden=True)
def roots(
    bundle: Annotated[Path, typer.Argument()],
    mode: Annotated[list[Mode], typer.Option(help="may be repeated")],
    device: DeviceName = "default",
    json: Json = False,
) -> None:
    """State roots of every step in any rounding modes."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.demo.drills import run_roots

    run_roots(bundle, [m.value for m in mode], device, Reporter(json, "roots"))


def _wei(text: str | None) -> int | None:
    from vgame.job.bundle import wei

    try:
        amount = None if text is None else int(wei(int(text) if text.isascii() and text.isdigit() else text))
    except (ValueError, OverflowError) as error:
        raise VgameError(f"--max-bond: {error}") from None
    if amount is not None and amount < 0:
        raise VgameError(f"--max-bond: {text!r} is negative")
    return amount


def _check_number(option: str, value: float, least: float, most: float) -> None:
    """INVARIANT: NaN is in no range."""
    if not least <= value <= most:
        raise VgameError(f"{option} {value}: a number from {least:g} to {most:g} is expected")


def _job_id(text: str) -> bytes:
    try:
        job = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        job = b""
    if len(job) != 32:
        raise VgameError(f"{text!r} is no job identity; 64 hex digits are expected, as `vgame job post` prints them")
    return job


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(STOPPED)


def main() -> None:
    """Entry point: an error of the world is one sentence and exit code 1."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # so that what a command started is stopped with it
    if parent := os.environ.pop(PARENT_VARIABLE, ""):
        threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show ends no agent
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
        fail(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        fail("interrupted; start the same command again to go on")
        sys.exit(1)
    finally:
        drop_unsaid()


if __name__ == "__main__":
    main()
