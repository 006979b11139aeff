"""Check before the job that indices in the data are valid, and that integers fit 32 bits: a run would not fail, because
the arithmetic is defined for all values.

In: a captured graph and its task. Out: nothing, or one error that names the data and the sample. Checks every index and
every integer that depends on data and constants alone, including unchanged buffers; not values computed from
parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from vgame.commit.mapped import look_through, source_of
from vgame.errors import DataError, ProgramError, VgameError
from vgame.program.captured import Captured
from vgame.program.constants import ancestors, is_random
from vgame.program.decompositions import ONE_HOT
from vgame.program.origins import line_of_node, place_of
from vgame.tasks.task import Task

aten = torch.ops.aten
MOST_BATCHES = 2**8  # of data in files, about as many are checked at most
Use = tuple[Node, Node, range]  # (node, index, valid range)
BY_DIMENSION = (aten.gather, aten.index_select, aten.scatter, aten.scatter_add, aten.scatter_reduce, aten.index_add)


def check_indices(captured: Captured, task: Task) -> None:
    """Raise DataError if a sample holds an invalid index, ProgramError if a constant does or if an integer does not fit
    32 bits."""
    graph = captured.graph
    places = list(graph.graph.find_nodes(op="placeholder"))[-len(captured.batch) :]
    names = dict(zip(places, captured.batch, strict=True))
    buffers = dict(task.model.named_buffers())
    fixed = {place: buffers[name].detach() for name, place in captured.unchanged_buffers().items()}
    known = _follows_from(graph, set(places), set(fixed))
    uses = [use for use in _uses(graph) if use[1] in known]
    integers = {node for node in known if _is_computed_integer(node)}
    wanted = ancestors({index for _, index, _ in uses} | integers)
    constants = _evaluate(graph, {n for n in wanted if not known[n]}, fixed)
    _refuse_outside([use for use in uses if not known[use[1]]], constants, {}, None)
    _refuse_beyond_32_bits(integers, constants)
    if not any(known[n] for n in wanted):
        return
    uses = [use for use in uses if known[use[1]]]
    read = {node: task.place(name) for node, name in names.items()}
    for samples in _batches(task):
        batch = task.samples(samples)
        values = _evaluate(graph, wanted, constants | {node: batch[name] for node, name in names.items()})
        _refuse_outside(uses, values, read, samples)
        _refuse_beyond_32_bits(integers, values)


def _batches(task: Task) -> Iterator[torch.Tensor]:
    """All samples, batch by batch; of data in files with more than MOST_BATCHES, evenly spaced batches and those with
    the least and the greatest numbers."""
    sources = [(tensor, source) for tensor in task.data.values() if (source := source_of(tensor))]
    starts = range(0, task.population, task.batch)
    if sources and len(starts) > MOST_BATCHES:
        found = [(tensor, look_through(source)) for tensor, source in sources]
        rows = [at // max(tensor[:1].numel(), 1) for tensor, f in found for at in (f.least_at, f.most_at)]
        first = [min(row // task.stride, task.population - 1) for row in rows]  # the last window that reaches a row
        starts = [*first, *range(0, task.population, -(-len(starts) // MOST_BATCHES) * task.batch)]
    for start in starts:
        yield torch.arange(start, start + task.batch) % task.population


def _refuse_outside(
    uses: Iterable[Use], values: Mapping[Node, Any], names: Mapping[Node, str], samples: torch.Tensor | None
) -> None:
    for node, index, rows in uses:
        value = values[index]
        if node.target.overloadpacket is aten.masked_scatter:
            _refuse_few_words(node, value, rows)
            continue
        wrong = (value < rows.start) | (value >= rows.stop)
        if value.dtype != torch.bool and bool(wrong.any()):
            origin = sorted(names[n] for n in ancestors({index}) if n in names)
            raise _beyond(value, wrong.reshape(-1), rows, samples, " and ".join(origin), node)


def _refuse_few_words(node: Node, mask: torch.Tensor, words: range) -> None:
    """masked_scatter takes the first words of its source, one for each true element."""
    needed = int(mask.expand(node.meta["val"].shape).sum())
    if needed > len(words):
        raise DataError(
            f"masked_scatter in {_module(node)} has {len(words)} words for {needed} true elements of its mask; give it "
            f"at least {needed}"
        )


def _is_computed_integer(node: Node) -> bool:
    """Whether a node is a computed integer of a type wider than a program's words; uninitialised memory is not."""
    value = node.meta.get("val")
    empty = "empty" in str(node.target)
    return node.op == "call_function" and isinstance(value, torch.Tensor) and value.dtype == torch.int64 and not empty


def _refuse_beyond_32_bits(integers: set[Node], values: Mapping[Node, Any]) -> None:
    """Raise ProgramError for the first value out of range; conversions of floats that are not finite are exempt, since
    models mask them."""
    for node, value in values.items():
        if node not in integers or _fits(value):
            continue
        given = [values[n] for n in node.all_input_nodes if isinstance(values.get(n), torch.Tensor)]
        for x in given:
            if x.is_floating_point() and x.shape == value.shape:
                value = torch.where(x.isfinite(), value, 0)
        if not _fits(value) and all(_fits(x) for x in given if x.dtype == torch.int64):
            most = max(int(value.min()), int(value.max()), key=abs)
            raise ProgramError(
                f"{node.target} in {_module(node)} gives the integer {most}; vgame computes integers in 32 bits: "
                "use smaller numbers, or convert to float first"
            )


def _fits(value: torch.Tensor) -> bool:
    return not value.numel() or -(2**31) <= int(value.min()) <= int(value.max()) < 2**31


def _module(node: Node) -> str:
    return place_of(node) if node.meta.get("custom", {}).get("module") else f"the loss{line_of_node(node)}"


def _beyond(
    value: torch.Tensor, wrong: torch.Tensor, rows: range, samples: torch.Tensor | None, names: str, node: Node
) -> VgameError:
    first = int(wrong.int().argmax())
    if samples is None:
        what = f"the constant index {int(value.reshape(-1)[first])}"
        return ProgramError(f"{what} does not exist in {_module(node)}: {rows.start} to {rows.stop - 1} are valid")
    each = value.numel() // len(samples)
    sample = f"sample {int(samples[first // each])}" if each * len(samples) == value.numel() else f"samples {samples}"
    place = f"{sample}, but {rows.start} to {rows.stop - 1} are valid in {_module(node)}"
    return DataError(f"the data {names} holds the index {int(value.reshape(-1)[first])} in {place}")


def _uses(graph: GraphModule) -> Iterator[Use]:
    """(node, index, valid range); x[index] counts negative indices from the end."""
    for node in graph.graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        if packet in (aten.embedding, aten._embedding_bag, aten._embedding_bag_forward_only):
            yield node, node.args[1], range(node.args[0].meta["val"].shape[0])
        elif packet is aten.eq and node.meta.get("custom", {}).get(ONE_HOT):
            yield node, node.args[0], range(node.meta["val"].shape[-1])
        elif packet in BY_DIMENSION:
            shape = node.args[0].meta["val"].shape
            yield node, node.args[2], range(shape[node.args[1]] if shape else 1)
        elif packet is aten.put:
            count = node.meta["val"].numel()
            yield node, node.args[1], range(-count, count)
        elif packet is aten.masked_scatter:
            yield node, node.args[1], range(node.args[2].meta["val"].numel())
        elif packet in (aten.index, aten.index_put, aten._unsafe_index, aten._unsafe_index_put):
            shape = node.args[0].meta["val"].shape
            yield from ((node, i, range(-shape[d], shape[d])) for d, i in enumerate(node.args[1]) if i is not None)


def _follows_from(graph: GraphModule, places: set[Node], fixed: set[Node]) -> Mapping[Node, bool]:
    """True for the nodes determined by data, False for those determined by constants alone; the others are absent."""
    known: dict[Node, bool] = {}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            if node in places or node in fixed:
                known[node] = node in places
        elif node.op == "get_attr":
            known[node] = False
        elif node.op == "call_function" and all(n in known for n in node.all_input_nodes) and not is_random(node):
            known[node] = any(known[n] for n in node.all_input_nodes)
    return known


def _evaluate(graph: GraphModule, wanted: set[Node], values: dict[Node, Any]) -> dict[Node, Any]:
    """The wanted nodes' values, by torch."""
    for node in graph.graph.nodes:
        if node in wanted and node not in values:
            if node.op == "get_attr":
                values[node] = getattr(graph, node.target)
            else:
                args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
                try:
                    values[node] = node.target(*args, **kwargs)
                except (RuntimeError, IndexError) as error:
                    raise DataError(
                        f"{node.target} in {place_of(node)} fails with samples of the data, as it would in a loop: "
                        f"{' '.join(str(error).split())}; correct the data, or the shapes that the loss expects"
                    ) from None
    return values
