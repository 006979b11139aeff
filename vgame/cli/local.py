"""Commands on bundles and runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from vgame.cli.options import (
    ALONE,
    LOOK,
    TOOLS,
    DeviceName,
    GameAddress,
    Json,
    Rpc,
    Validate,
    app,
    check_number,
    job_id,
)
from vgame.errors import VgameError
from vgame.system.progress import NULL_PROGRESS, Reporter
from vgame.system.warned import warn


@app.command(rich_help_panel=ALONE)
def demo(
    json: Json = False,
    attack: Annotated[str | None, typer.Option(help="play one attack only")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a short honest run and one cheat")] = False,
    rpc: Annotated[str | None, typer.Option(help="play on this node instead of the embedded chain")] = None,
    report: Annotated[Path, typer.Option(help="file of the HTML report")] = Path("vgame-report.html"),
    job: Annotated[Path | None, typer.Option(help="another job file instead of the digits")] = None,
) -> None:
    """Play the whole story: an honest claim becomes final, every cheat is convicted."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of this process and its roles; libraries read it when they are loaded
    from vgame.demo import DemoOptions, run_demo

    raise typer.Exit(run_demo(json, DemoOptions(attack, quick, rpc, job), report))


@app.command(rich_help_panel=ALONE)
def prepare(
    job: Annotated[Path, typer.Argument(help="job file (TOML)")],
    out: Annotated[Path, typer.Option(help="folder of the new bundle")],
    force: Annotated[bool, typer.Option("--force", help="overwrite an existing bundle")] = False,
    validate: Validate = None,
    against: Annotated[
        Path | None, typer.Option(help="CSV file of the first losses of your own loop, compared with the program's")
    ] = None,
    json: Json = False,
) -> None:
    """Capture a job's model, write the bundle that all roles need, and print the cost of a run on this machine."""
    if (out / "spec.json").exists() and not force:
        raise VgameError(f"{out} holds a bundle already; choose another folder, or overwrite it with --force")
    from vgame.job.bundle import save_bundle
    from vgame.job.file import read_job_file
    from vgame.job.terms import refused_by_all
    from vgame.runs.prepare import prepare as prepare_bundle
    from vgame.validation.against import losses_of
    from vgame.validation.record import seconds_of

    reporter, losses = Reporter(json), losses_of(against) if against else ()
    place = out.absolute()  # a job's code may change the working directory
    bundle = prepare_bundle(read_job_file(job), NULL_PROGRESS if json else reporter, seconds_of(validate), losses)
    reporter.emit("validated", **bundle.validation)  # as text it is already in the output of prepare
    reporter.stage("hashes and writes the bundle")
    save_bundle(bundle, place)
    if cost := bundle.forecast:
        reporter.emit("forecast", f"a run on this machine, all checkpoints kept: {cost}", **cost.fields)
    program = bundle.program
    text = (
        f"{out}: {len(program.operators)} operators, {len(program.sources)} state tensors, program root "
        f"{program.root.hex()}"
    )
    reporter.emit("prepared", text, **bundle.rendering(), without_gradient=bundle.without_gradient)
    if why := refused_by_all(bundle):
        warn(why)


@app.command(rich_help_panel=ALONE)
def train(
    bundle: Annotated[Path, typer.Argument(help="bundle folder, or a job file (TOML)")],
    out: Annotated[Path, typer.Option(help="folder of the run")],
    device: DeviceName = "default",
    keep: Annotated[int, typer.Option(min=1, help="keep every n-th checkpoint (and the newest)")] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="print the time by operator and module")] = False,
    timeout: Annotated[
        float, typer.Option(help="seconds without a report after which a rank counts as hanging")
    ] = 120.0,
    check: Annotated[
        float, typer.Option(min=0, max=1, help="share of the steps in which ranks also compute each other's parts")
    ] = 0.0,
    tensorboard: Annotated[
        Path | None, typer.Option(help="folder of curves for TensorBoard: loss, rates, cost of a step, roots")
    ] = None,
    json: Json = False,
) -> None:
    """Train without a chain: print the cost first, then write checkpoints and roots. If it is started again, it
    resumes. Started by torchrun, all ranks train together, to the same root."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    # vgame/ranks/health.py reports the cause of a lost connection
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from vgame.cli.runs import train_offline

    train_offline(bundle, out, device, keep, Reporter(json), profile, timeout, check, tensorboard)


@app.command(rich_help_panel=ALONE)
def audit(
    run: Annotated[str, typer.Argument(help="folder of a run, or the URL where it is published")],
    device: DeviceName = "default",
    segment: Annotated[str | None, typer.Option(help="checkpoints I..J only")] = None,
    sample: Annotated[float | None, typer.Option(help="each checkpoint interval with this probability")] = None,
    seed: Annotated[int, typer.Option(help="seed of the sample; 0: unpredictable")] = 0,
    bundle: Annotated[Path | None, typer.Option(help="your order: the run must match it, names of tensors too")] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes that execute parts at the same time")] = 1,
    mirror: Annotated[
        list[str] | None, typer.Option(help="another URL of the same run, used if the first fails; may be repeated")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="address of a Ray cluster that executes the parts; `local` starts one here")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="file that records equal parts; a stopped audit continues from it")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="seconds without a new step after which a worker hangs and is replaced")
    ] = 600.0,
    json: Json = False,
) -> None:
    """Re-execute a run and print MATCH or NO MATCH (exit code 2)."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.runs import audit_offline
    from vgame.runs.parallel_audit import Workers
    from vgame.runs.source import is_url

    if mirror and not is_url(run):
        raise VgameError(f"--mirror {mirror[0]}: {run} is a folder; mirrors are for a run behind a URL")
    crew = Workers(workers, record, timeout, ray)
    place = [run, *(mirror or [])] if is_url(run) else Path(run)
    match = audit_offline(place, device, segment, sample, seed, Reporter(json), bundle, crew)
    raise typer.Exit(0 if match else 2)


@app.command(rich_help_panel=ALONE)
def evaluate(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    job: Annotated[Path, typer.Argument(help="job file (TOML) whose task has an `evaluate`")],
    out: Annotated[Path, typer.Option(help="folder of the evaluation's own run")],
    device: DeviceName = "default",
    validate: Validate = None,
    json: Json = False,
) -> None:
    """Measure a trained state on held-out data: a separate run, which can be audited and disputed."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.api_evaluation import evaluate as measure
    from vgame.job.factory import make_task
    from vgame.job.file import read_job_file

    places = run.absolute(), out.absolute()  # a job's code may change the working directory
    reporter, task = Reporter(json), make_task(read_job_file(job))
    found = measure(places[0], task, places[1], device=device, validate=validate, progress=not json)
    means = ", ".join(f"{name} {total} ({found.mean(name):.6g} a sample)" for name, total in found.totals.items())
    found_values = {"run": str(run), "root": found.run.root, "samples": found.samples, "totals": dict(found.totals)}
    reporter.emit("evaluated", f"{found.samples} samples: {means}; run root {found.run.root}", **found_values)


@app.command(rich_help_panel=ALONE)
def export(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    out: Annotated[Path, typer.Option(help="the new file, model.safetensors")],
    step: Annotated[int | None, typer.Option(help="after this step; default: the last")] = None,
    slots: Annotated[bool, typer.Option("--slots", help="export the optimizer's slots too")] = False,
    average: Annotated[
        bool, typer.Option("--average", help="the averaged weights (EMA, SWA) in place of the trained ones")
    ] = False,
    card: Annotated[
        Path | None, typer.Option(help="also write a model card: roots, order, how to audit it (README.md)")
    ] = None,
    json: Json = False,
) -> None:
    """Write a run's weights for its module: keys, types and tied weights are the module's."""
    from vgame.api_run import Run
    from vgame.system.files import write_atomic

    found = Run.open(run)
    found.export(out, step, slots=slots, average=average)
    if card:
        options = " ".join(["--slots"] * slots + ["--average"] * average)
        write_atomic(card, found.card(out, step, options).encode())
    after = found.step if step is None else step
    what = "averaged weights" if average else "weights"
    text = f"{out}: the {what} after step {after} of {found.bundle.steps}, run root {found.root}"
    Reporter(json).emit("exported", text, step=after, root=found.root, job=found.bundle.identity.hex())


@app.command(rich_help_panel=ALONE)
def pretrained(
    weights: Annotated[Path, typer.Argument(help="a file of `vgame export` or `vgame receive`")],
    job: Annotated[Path, typer.Argument(help="job file (TOML) whose task makes the model")],
    out: Annotated[Path, typer.Option(help="the new folder")],
    json: Json = False,
) -> None:
    """Save weights in their model's own format, with its configuration: for models of transformers and peft."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise VgameError(f"{out} is there already; choose another folder")
    from vgame.api_run import save_pretrained
    from vgame.job.factory import make_task
    from vgame.job.file import read_job_file
    from vgame.job.weights import read_weights

    place = out.absolute()  # a job's code may change the working directory
    save_pretrained(read_weights(weights)[0], str(weights), place, make_task(read_job_file(job)).model)
    Reporter(json).emit("saved", f"{out}: the model with the weights of {weights}", folder=str(out))


@app.command(rich_help_panel=TOOLS)
def check(
    weights: Annotated[
        Path, typer.Argument(help="a file of `vgame export`, or a checkpoint in a run's folder states/")
    ],
    rpc: Rpc,
    game: GameAddress,
    job: Annotated[str, typer.Option(help="identity of the job, hex")],
    bundle: Annotated[
        Path | None, typer.Option(help="the order: also check names, types and shapes, and that no key is missing")
    ] = None,
    json: Json = False,
) -> None:
    """Check that a file holds the weights that a final claim certifies, word for word."""
    identity = job_id(job)
    from vgame.agents.certified import check_claim

    count, root = check_claim(weights, rpc, game, identity, bundle)
    names = "" if bundle else "; names and types are the file's own (--bundle compares them with your order)"
    text = (
        f"{weights} is what the final claim of job {identity.hex()[:16]} certifies: {count} tensors, state root "
        f"{root.hex()}{names}"
    )
    Reporter(json).emit("checked", text, job=identity.hex(), tensors=count, state=root.hex(), names=bundle is not None)


@app.command(rich_help_panel=LOOK)
def locate(
    first: Annotated[Path, typer.Argument(help="folder of a run")],
    second: Annotated[Path, typer.Argument(help="folder of another run of the same job")],
    device: DeviceName = "default",
    json: Json = False,
) -> None:
    """Find the first difference of two runs: step, operator, element, both values (exit code 2 if there is one)."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.runs import locate as find_difference

    raise typer.Exit(0 if find_difference(first, second, device, Reporter(json)) is None else 2)


@app.command(rich_help_panel=LOOK)
def trace(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    step: Annotated[int, typer.Option(help="number of the step, from 1")],
    operator: Annotated[int | None, typer.Option(help="only this operator's output")] = None,
    element: Annotated[int | None, typer.Option(help="also this element of it")] = None,
    device: DeviceName = "default",
    json: Json = False,
) -> None:
    """Print the root of every operator's output in a step of a run, or any word, to compare it with another
    execution."""
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.runs import trace as show_trace

    show_trace(run, step, device, Reporter(json), operator, element)


@app.command(rich_help_panel=LOOK)
def inspect(
    program: Annotated[Path, typer.Argument(help="bundle folder, run folder or program file")], json: Json = False
) -> None:
    """List the operators of a program, their sizes, and the most expensive leaf to decide on chain."""
    from vgame.cli.inspect import show

    show(program, Reporter(json))


@app.command(rich_help_panel=TOOLS)
def terms(
    bundle: Annotated[Path, typer.Argument(help="bundle folder")],
    device: DeviceName = "default",
    slower: Annotated[
        float, typer.Option(help="how many times slower than this device the slowest honest device is")
    ] = 1.0,
    gas_gwei: Annotated[float, typer.Option(help="price of gas, gwei")] = 20.0,
    compute_ether: Annotated[float, typer.Option(help="price of an hour of the training device, ether")] = 0.001,
    audited: Annotated[float, typer.Option(help="probability that a claim is audited, from 1e-9 to 1")] = 0.5,
    censorship: Annotated[int, typer.Option(help="longest censorship of a player, seconds")] = 86_400,
    json: Json = False,
) -> None:
    """Propose the smallest safe bonds, clocks and windows of a job, as the table `terms` of its job file."""
    check_number("--gas-gwei", gas_gwei, 0, 1e9)
    check_number("--compute-ether", compute_ether, 0, 1e9)
    from vgame.execute.devices import prepare_environment

    prepare_environment(device)
    from vgame.cli.terms import propose
    from vgame.job.terms import GWEI, Prices

    prices = Prices(int(gas_gwei * GWEI), int(compute_ether * 10**18), audited, censorship=censorship)
    propose(bundle, device, slower, prices, Reporter(json))
