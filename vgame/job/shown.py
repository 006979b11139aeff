"""For notebooks: facts by name as a table, losses as a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite

POINTS, WIDTH, HEIGHT = 400, 480, 120  # of a curve


def table(rows: Mapping[str, str]) -> str:
    """An HTML table; names and values are escaped, since they come from untrusted files."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>"


def curve(losses: Sequence[float]) -> str:
    """SVG: the finite losses over their steps; empty for fewer than two."""
    every = -(-len(losses) // POINTS) or 1
    points = [(step, float(losses[step])) for step in range(0, len(losses), every) if isfinite(losses[step])]
    if len(points) < 2:
        return ""
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    across, down = WIDTH / (len(losses) - 1), (HEIGHT - 2) / (high - low or 1)
    path = " ".join(f"{step * across:.1f},{1 + (high - loss) * down:.1f}" for step, loss in points)
    title = f"loss from {points[0][1]:.4g} to {points[-1][1]:.4g} in {len(losses)} steps"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img"><title>{title}</title>'
        f'<polyline points="{path}" fill="none" stroke="currentColor"/></svg>'
    )
