"""The report: one self-contained HTML file that can be shown to a client."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from vgame.attacks.adversaries import ATTACKS, TAMPERED_LOG
from vgame.demo import picture
from vgame.system.files import write_atomic

if TYPE_CHECKING:
    from vgame.demo.result import Result


TITLES = {name: attack.title for name, attack in ATTACKS.items()} | {
    TAMPERED_LOG.name: TAMPERED_LOG.title,
    "accuse-any-element": "an honest claim accused, down to an element that is right",
    "accuse-and-idle": "an honest claim accused by somebody who then does nothing",
}

#: What each transaction of a dispute does; named in the report where it happened.
MOVES = {
    "challenge": "the auditor puts down a bond and disputes the claim",
    "reveal": "the hashes some levels below the contested node are shown",
    "select": "the auditor names the first of the revealed nodes that differs from its own",
    "postSegment": "the state roots after every step of the contested interval are committed",
    "postTrace": "the roots of everything that the contested step computed are committed",
    "tie": "shows that a state tensor is the operator's output that the program says it is",
    "tieUnchanged": "the same for a tensor that the program leaves alone",
    "selectState": "the auditor agrees with the trace, and contests that the state follows from it",
    "selectOperator": "the auditor names the operator, with its record from the program",
    "openLeaf": "the words of the contested leaf are shown",
    "selectElement": "the auditor names one word of the leaf",
    "postPartials": "the exact partial sums of a long sum are committed",
    "selectBlock": "the auditor names the partial sum that differs",
    "prove": "the operands are handed in with Merkle proofs; the contract computes the element itself and decides",
    "timeout": "the clock of the side that is to move has run out: it loses",
    "timeoutMany": "the same for many disputes at once",
}


def exact_ether(wei: int) -> str:
    """All digits, in ether."""
    whole, rest = divmod(wei, 10**18)
    return f"{whole}.{rest:018d}".rstrip("0").rstrip(".")


def ether(wei: int) -> str:
    """Signed, in ether."""
    return f"{wei / 10**18:+.4f}".rstrip("0").rstrip(".")


def write_report(result: Result, path: Path) -> None:
    """Render the result; the file is whole or not there."""
    from vgame.demo.result import DEVICE_A, DEVICE_B

    environment = Environment(
        loader=PackageLoader("vgame.demo", "templates"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["ether"] = ether
    environment.filters["exact_ether"] = exact_ether
    environment.filters["descent"] = lambda dossier: Markup(picture.descent(dossier))
    every = [*result.attacks, *result.accusations]
    made = {move.name for dossier in every for move in dossier.moves}
    page = environment.get_template("report.html").render(
        result=result,
        disputes=every,
        losses=Markup(picture.losses(result.losses)),
        titles=TITLES,
        moves={name: text for name, text in MOVES.items() if name in made},
        devices=(DEVICE_A, DEVICE_B),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=version("vgame"),
        torch=version("torch"),
    )
    write_atomic(path, page.encode())
