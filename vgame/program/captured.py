"""A training step as a captured graph, with the names of its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vgame.program.retrace import output_of, source


@dataclass(frozen=True)
class Captured:
    """A graph over (parameters, buffers, batch) that returns (loss, gradients, new buffers), and the names of each."""

    graph: torch.fx.GraphModule
    parameters: tuple[str, ...]
    trained: tuple[str, ...]  # parameters that get a gradient
    buffers: tuple[str, ...]
    batch: tuple[str, ...]
    without_gradient: tuple[str, ...] = ()  # trainable parameters without a gradient

    def unchanged_buffers(self) -> dict[str, torch.fx.Node]:
        """The placeholders of the buffers that a step does not change."""
        places, results = self.graph.graph.find_nodes(op="placeholder"), output_of(self.graph).args[0][2]
        after = zip(self.buffers, places[len(self.parameters) :], results, strict=False)
        return {name: place for name, place, result in after if place is source(result)}
