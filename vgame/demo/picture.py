"""Pictures for the report, as SVG text: the descent through the nested trees, and the loss curve."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from vgame.commit.merkle import tree_height
from vgame.demo.dossier import Dossier, Tree

WIDTH, TREE_HEIGHT, GAP, BASE = 1080, 120, 26, 140


def descent(dossier: Dossier) -> str:
    """Each tree as a triangle with the path to the leaf that was named; the leaf is the root of the next tree."""
    trees = dossier.descent
    if not trees:
        return ""
    step = (WIDTH - BASE) / len(trees)
    parts = [_tree(tree, i * step, GAP) for i, tree in enumerate(trees)]
    parts += [_link(trees[i], i * step, (i + 1) * step) for i in range(len(trees) - 1)]
    height = TREE_HEIGHT + 3 * GAP + 36
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="descent of {escape(dossier.name)}">'
        f"{''.join(parts)}{_verdict(dossier)}</svg>"
    )


def _leaf_x(tree: Tree, x: float) -> float:
    return x + BASE * (tree.index + 0.5) / (1 << tree_height(tree.leaves))


def _tree(tree: Tree, x: float, y: float) -> str:
    """A triangle, its path from the apex to the leaf level by level, and its captions."""
    height, bottom = tree_height(tree.leaves), y + TREE_HEIGHT
    points = []
    for level in range(height + 1):
        width = 1 << level
        position = tree.index >> (height - level)
        down = level / max(height, 1)
        center = x + BASE / 2 + BASE * ((position + 0.5) / width - 0.5) * down
        points.append(f"{center:.1f},{y + TREE_HEIGHT * down:.1f}")
    filled = BASE * tree.leaves / (1 << height)
    return (
        f'<polygon class="tree" points="{x + BASE / 2:.1f},{y} {x},{bottom} {x + BASE},{bottom}"/>'
        f'<line class="leaves" x1="{x}" y1="{bottom}" x2="{x + filled:.1f}" y2="{bottom}"/>'
        f'<polyline class="path" points="{" ".join(points)}"/>'
        f'<circle class="leaf" cx="{_leaf_x(tree, x):.1f}" cy="{bottom}" r="4"/>'
        f'<text class="kind" x="{x + BASE / 2:.1f}" y="{y - 8}">{escape(tree.name)}</text>'
        f'<text class="caption" x="{x + BASE / 2:.1f}" y="{bottom + 18}">{escape(_short(tree.caption))}</text>'
    )


def _short(text: str) -> str:
    return text if len(text) <= 26 else text[:25] + "…"


def _link(tree: Tree, x: float, next_x: float) -> str:
    """From the named leaf to the apex of the tree whose root it holds."""
    start, end = _leaf_x(tree, x), next_x + BASE / 2
    bottom = GAP + TREE_HEIGHT
    middle = (x + BASE + next_x) / 2
    return f'<path class="link" d="M {start:.1f} {bottom + 5} C {middle:.1f} {bottom + 46}, {middle:.1f} {GAP}, {end:.1f} {GAP}"/>'


def _verdict(dossier: Dossier) -> str:
    if dossier.claimed_bits is None:
        return ""
    exact = f", the contract computed {dossier.exact_bits}" if dossier.exact_bits else ""
    if dossier.part is not None:
        exact = f", decided by partial sum {dossier.part}"
    y = GAP + TREE_HEIGHT + 44
    return f'<text class="bits" x="{WIDTH - 4}" y="{y}">claimed {dossier.claimed_bits}{exact}</text>'


def losses(values: Sequence[float]) -> str:
    """The loss per step."""
    if len(values) < 2:
        return ""
    width, height, top = 1080, 180, max(values)
    points = " ".join(
        f"{i * width / (len(values) - 1):.1f},{height - 10 - (height - 20) * value / top:.1f}"
        for i, value in enumerate(values)
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="loss per step"><polyline class="curve" points="{points}"/>'
        f'<text class="axis" x="4" y="14">loss {top:.2f}</text><text class="axis end" x="{width - 4}" y="{height - 2}">'
        f"step {len(values)}</text></svg>"
    )
