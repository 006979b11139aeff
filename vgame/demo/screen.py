"""The demonstration's output on a terminal; plain lines elsewhere; nothing on stdout with --json."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from vgame.demo.dossier import Dossier
    from vgame.demo.result import Result, Sale


COLUMNS = ("attack", "verdict", "where", "claimed / exact", "moves / gas")
WIDTH = 100  # characters of the table, at most


class Screen:
    """Scenes, lines, live bars, the table at the end."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=quiet, highlight=False, width=None if sys.stdout.isatty() else 200)
        self.live = self.console.is_terminal
        self._bars: Progress | None = None
        self._tasks: dict[str, Any] = {}
        self._last: dict[str, float] = {}

    def say(self, text: str) -> None:
        self.console.print(f"  {text}")

    def scene(self, title: str) -> None:
        """Begin a scene; its bars start empty."""
        self._close()
        self.console.print(f"\n[bold]{title}[/bold]")

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of a role; called from its listener's thread."""
        if event["event"] == "progress":
            self._progress(event["role"], event)
        elif event["event"] == "computed":
            stop = f", not finite at step {event['stop']['step']}" if event["stop"] else ""
            self.say(f"{event['role']}: computed up to step {event['step']} in {event['seconds']:.1f} s{stop}")
        elif event["event"] == "hello":
            self.say(f"{event['role']}: device {event['device']}, raw binary64 product {event['binary64 product']}")

    def _progress(self, role: str, event: dict[str, Any]) -> None:
        if not self.live:
            if event["done"] == event["total"] or time.monotonic() - self._last.get(role, 0) > 10:
                self._last[role] = time.monotonic()
                self.say(f"{role}: {event['what']} {event['done']} of {event['total']} {event['detail']}")
            return
        if self._bars is None:
            columns = [TextColumn("  {task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
            self._bars = Progress(*columns, TextColumn("{task.fields[detail]}"), console=self.console, transient=True)
            self._bars.start()
        if role not in self._tasks:
            self._tasks[role] = self._bars.add_task(role, total=event["total"], detail="")
        self._bars.update(self._tasks[role], completed=event["done"], detail=event["detail"])

    def _close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._tasks = None, {}

    def verdict(self, dossier: Dossier) -> None:
        """One line for a verdict."""
        self._close()
        bits = f": claimed {dossier.claimed}, exact {dossier.exact}" if dossier.exact else ""
        place = f" at step {dossier.step}, {dossier.operator}" if dossier.step else ""
        element = f", element {dossier.element}" if dossier.element is not None else ""
        self.say(f"{dossier.verdict} by {dossier.decided_by}{place}{element}{bits}")

    def sale(self, sale: Sale) -> None:
        """One line for a delivery."""
        by = f" by {sale.fault}" if sale.fault else ""
        refused = f"; the contract refused {', '.join(sale.refused)}" if sale.refused else ""
        requested = f"; {sale.requests} chunks requested" if sale.requests else ""
        money = ", ".join(f"{who} {wei / 1e18:+.3f}" for who, wei in sale.money.items() if wei)
        self.say(f"{sale.name} ({sale.title}): {sale.verdict}{by}{refused}{requested}; {money or 'no gain or loss'}")

    def table(self, result: Result) -> None:
        """The facts at the end."""
        self._close()
        table = Table(title="Verdicts", title_justify="left")
        for column in COLUMNS:
            whole, right = column in (COLUMNS[0], COLUMNS[-1]), column == COLUMNS[-1]
            widest = {"verdict": 12, "claimed / exact": 15}.get(column)
            table.add_column(
                column, overflow="fold", no_wrap=whole, max_width=widest, justify="right" if right else "left"
            )
        for d in [*result.attacks, *result.accusations]:
            place = [f"step {d.step}"] * bool(d.step) + [d.operator or ""]
            place += [f"element {d.element}"] * (d.element is not None)
            exact = d.exact_bits or d.exact
            words = f"{d.claimed_bits or ''} / {exact}" if exact else d.claimed_bits or ""
            gas = f"{len(d.moves)} / {d.gas_descent + d.gas_leaf:,}"
            table.add_row(d.name, f"{d.verdict} by {d.decided_by}", ", ".join(filter(None, place)), words, gas)
        self.console.print(table, width=min(WIDTH, self.console.width))
        money = {name: f"{wei / 1e18:.6f}" for name, wei in result.money.items()}
        self.say(
            f"money in {money['in']} = out {money['out']} + credits {money['credits']} + burnt {money['burnt']} ether: "
            f"{'conserved' if result.conserved else 'NOT CONSERVED'}; {result.seconds:.0f} seconds"
        )
