"""Coverage of PyTorch by the capture: every model of a file, one training step on two devices, as a table.

    python experiments/zoo.py ZOO.py                       all of its models; docs/zoo.md is rewritten
    python experiments/zoo.py ZOO.py --only 'tv:*' --table t.md
    python experiments/zoo.py ZOO.py --autocast            the loss under autocast to bfloat16; docs/zoo-bf16.md

ZOO.py offers `NAMES` ("family:model") and `build(name)` -> (module, inputs, loss): inputs a tuple or a dict of
keywords; loss "ce" cross_entropy(out, labels), "mse", "bce" or "huber" against zeros, "seg" cross_entropy(out["out"],
labels), "hf" out.loss.

Each device is a process of its own with its own environment. The first builds and captures, both execute; the state
roots after the step must be equal. Without dropout, the update is also compared with torch's own gradient in binary32.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from vgame.execute.devices import prepare_environment, use_device

DEVICES = ("default", "compatible")


# ---- one device: a process that answers requests ----


def serve(zoo_file: Path, device: str, autocast: bool) -> None:
    """Reads one JSON request a line, {"name", "folder"}; writes one JSON answer a line."""
    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    zoo = _module(zoo_file) if device == DEVICES[0] else None
    with use_device(device) as kind:
        for line in sys.stdin:
            request = json.loads(line)
            result: dict[str, Any] = {}
            try:
                if zoo is not None:
                    capture(zoo, request["name"], Path(request["folder"]), result, autocast)
                execute(Path(request["folder"]), device, kind, result)
            except Exception as error:
                result["error"] = f"{type(error).__name__}: {error}"[:2000]
            result["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(json.dumps(result), file=answers, flush=True)


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("zoo_of_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def capture(zoo: Any, name: str, folder: Path, result: dict[str, Any], autocast: bool) -> None:
    """Build, capture, lower; writes the bundle to the folder, and torch's results beside it."""
    import torch

    from vgame.job.bundle import Bundle, save_bundle
    from vgame.job.file import Terms
    from vgame.program import capture as capturing
    from vgame.program.lower import lower_captured
    from vgame.program.operators import Philox
    from vgame.program.schedule import Schedule
    from vgame.program.validate import tensors_of, undecidable

    task = make_task(*zoo.build(name), autocast)
    try:
        expected = by_torch(task)
    except RuntimeError as error:  # a kernel missing in the CPU's autocast
        expected, result["torch"] = {}, str(error)[:200]
    started = time.perf_counter()
    captured = capturing.capture(task)
    result["nodes"], result["captured"] = sum(len(c.graph.graph.nodes) for c in captured), time.perf_counter() - started
    lowered = lower_captured(task, captured, Schedule(lr="1"), 1)
    program = lowered.program
    tensors = tensors_of(program, [(t.numel(), not t.is_floating_point()) for t in lowered.data])
    result["operators"], result["undecidable"] = len(program.operators), list(undecidable(program, tensors))
    result["parameters"] = sum(p.numel() for p in task.model.parameters())
    bundle = Bundle(program, lowered.state, lowered.data, lowered.scalars, 1, 1, 1, 5, "correct", Terms())
    save_bundle(bundle, folder / "job")
    if expected and not any(isinstance(op, Philox) for op in program.operators):
        torch.save(expected, folder / "torch.pt")


def by_torch(task: Any) -> dict[str, Any]:
    """Torch's own gradients; restores the model."""
    import torch

    before = {name: t.clone() for name, t in task.model.state_dict().items()}
    task.loss(task.model.train(), task.samples(torch.zeros(1, dtype=torch.int64))).backward()
    gradients = {n: p.grad for n, p in task.model.named_parameters() if p.grad is not None}
    task.model.load_state_dict(before)
    return gradients


def make_task(model: Any, inputs: Any, loss: str, autocast: bool) -> Any:
    """A task with SGD on the inputs, as one sample."""
    import torch

    from vgame.tasks.task import Task

    keywords = isinstance(inputs, dict)
    named = inputs if keywords else {f"input{i}": t for i, t in enumerate(inputs)}

    def compute(model: Any, batch: Any) -> torch.Tensor:
        arguments = {name: batch[name][0] for name in named}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return loss_of(loss, model(**arguments) if keywords else model(*arguments.values()))

    data = {name: t.unsqueeze(0) for name, t in named.items()}
    return Task(model, compute, torch.optim.SGD(model.parameters(), lr=1.0), data, 1)


def loss_of(kind: str, out: Any) -> Any:
    """The loss named in the model's line of the file."""
    import torch
    import torch.nn.functional as F

    if kind == "hf":
        return out.loss
    out = out["out"] if kind == "seg" else out[0] if isinstance(out, tuple | list) else out
    if kind in ("ce", "seg"):
        shape = (out.shape[0], *out.shape[2:])
        labels = torch.arange(torch.Size(shape).numel()).reshape(shape) % out.shape[1]
        return F.cross_entropy(out, labels)
    losses = {"mse": F.mse_loss, "bce": F.binary_cross_entropy_with_logits, "huber": F.smooth_l1_loss}
    return losses[kind](out, torch.zeros_like(out))


def execute(folder: Path, device: str, kind: str, result: dict[str, Any]) -> None:
    """One step of the bundle; the root of the state after it."""
    from vgame.commit.merkle import Kind
    from vgame.commit.tensor import tensors_root
    from vgame.job.bundle import load_bundle
    from vgame.runs.folder import executor_of

    bundle = load_bundle(folder / "job")
    executor = executor_of(bundle, kind)
    started = time.perf_counter()
    step = executor.step(1, executor.initial(bundle.state))
    result["seconds"] = time.perf_counter() - started
    if step.not_finite is not None:
        raise ArithmeticError(f"{bundle.program.operator_name(step.not_finite)} is not finite")
    result["loss"], result["root"] = float(step.loss), tensors_root(Kind.STATE, step.state).hex()
    if device == DEVICES[0] and (folder / "torch.pt").exists():
        result["difference"] = difference(folder, bundle, step)


def difference(folder: Path, bundle: Any, step: Any) -> float:
    """|update - torch's gradient| / |torch's gradient|, over all parameters together."""
    import torch

    gradients = torch.load(folder / "torch.pt")
    names = [label.name for label in bundle.program.labels.state]
    error = norm = 0.0
    for name, before, after in zip(names, bundle.state, step.state, strict=True):
        if name in gradients:
            wanted = gradients[name].double().reshape(-1)
            error += float((before.double() - after.double() - wanted).square().sum())
            norm += float(wanted.square().sum())
    return (error / norm) ** 0.5 if norm else 0.0


# ---- all models, both devices ----


class Worker:
    """A device's process; started again after a crash."""

    def __init__(self, zoo_file: Path, device: str, autocast: bool) -> None:
        self.command = [sys.executable, __file__, str(zoo_file), "--serve", device, *["--autocast"] * autocast]
        self.process: subprocess.Popen | None = None

    def ask(self, **request: str) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else {"error": f"the process ended with {self.process.wait()}"}

    def stop(self) -> None:
        """End the process, to free its memory."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


def measure(name: str, workers: list[Worker]) -> dict[str, Any]:
    """Both devices' results for one model."""
    with tempfile.TemporaryDirectory(prefix="vgame-zoo-") as folder:
        first = workers[0].ask(name=name, folder=folder)
        second = {} if "error" in first else workers[1].ask(name=name, folder=folder)
    complete = first.get("root") is not None and first["root"] == second.get("root") and not first["undecidable"]
    return {"name": name, "complete": complete, "a": first, "b": second}


def row(r: dict[str, Any]) -> str:
    """One line of the table."""
    a, b = r["a"], r["b"]
    number = lambda value, form: "" if value is None else format(value, form)  # noqa: E731
    problem = a.get("error") or b.get("error") or "; ".join(a.get("undecidable", []))
    roots = " ".join(f"`{x['root'][:8]}`" for x in (a, b) if "root" in x)
    cells = [
        r["name"],
        number(a.get("parameters"), ","),
        number(a.get("nodes"), ","),
        number(a.get("operators"), ","),
        roots,
        number(a.get("seconds"), ".1f"),
        number(b.get("seconds"), ".1f"),
        number(a.get("difference"), ".0e"),
        str(len(a["undecidable"])) if "undecidable" in a else "",
        "yes" if r["complete"] else f"no: {problem[:300]}",
    ]
    return "| " + " | ".join(c.replace("|", "/").replace("\n", " ") for c in cells) + " |"


def table(results: list[dict[str, Any]], source: Path, names: list[str], autocast: bool) -> str:
    """docs/zoo.md or docs/zoo-bf16.md; `names` are all models of the file."""
    results = sorted(results, key=lambda r: names.index(r["name"]))
    missing = [name for name in names if name not in {r["name"] for r in results}]
    complete = sum(r["complete"] for r in results)
    own = "gradient under autocast on the CPU" if autocast else "binary32 gradient"
    command = f"python experiments/zoo.py {source.name}{' --autocast' * autocast}"
    head = f"""# The zoo{" under autocast to bfloat16" * autocast}

{complete} of {len(names)} public architectures complete: one training step (forward, loss,
backward, SGD) is captured, runs on two devices with equal state roots, and every operator is
decidable by the referee.

Written by `{command}`; the file builds the models (torchvision, timm, transformers, classics) in
small forms. Devices: A is `default`, B is `compatible`, each a process of its own
(vgame/execute/devices.py). Nodes: of the captured ATen graph. Root: the first 8 digits of the state
root after the step, on A and on B. Seconds: the step alone, on a shared machine.
Against torch: norm of (update - torch's own {own}) over the norm of the gradient; empty where
dropout makes them incomparable. Undecidable: operators that the referee cannot decide.

| model | parameters | nodes | operators | root A, B | seconds A | seconds B | against torch | undecidable | complete |
|---|---|---|---|---|---|---|---|---|---|
"""
    rest = ["", f"Not measured yet: {', '.join(missing)}."] if missing else []
    return head + "\n".join([*map(row, results), *rest, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names, like 'tv:*'")
    parser.add_argument("--table", type=Path, help="docs/zoo.md, or docs/zoo-bf16.md")
    parser.add_argument("--autocast", action="store_true", help="the loss under autocast to bfloat16")
    parser.add_argument("--json", type=Path, help="all that was measured; models already in it are not measured again")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        prepare_environment(options.serve)
        return serve(options.zoo, options.serve, options.autocast)
    results = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    done = {r["name"] for r in results}
    workers = [Worker(options.zoo, device, options.autocast) for device in DEVICES]
    names = _module(options.zoo).NAMES
    for name in dict.fromkeys(n for pattern in options.only for n in fnmatch.filter(names, pattern)):
        if name not in done:
            results.append(measure(name, workers))
            print(row(results[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
        if max(x.get("memory", 0) for x in (results[-1]["a"], results[-1]["b"])) > 4:
            for worker in workers:
                worker.stop()
    page = Path(__file__).parents[1] / "docs" / ("zoo-bf16.md" if options.autocast else "zoo.md")
    (options.table or page).write_text(table(results, options.zoo, names, options.autocast))
    print(f"{sum(r['complete'] for r in results)} of {len(results)} complete")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
