"""The report: a static copy of the story's page, with the story's results."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgame import __version__
from vgame.watch.differences import State, shown
from vgame.watch.static import write_page

if TYPE_CHECKING:
    from vgame.demo.result import Result


def exact_ether(wei: int) -> str:
    """An amount in ether, with all digits."""
    whole, rest = divmod(wei, 10**18)
    return f"{whole}.{rest:018d}".rstrip("0").rstrip(".")


def story_record(result: Result) -> dict[str, Any]:
    """The record above the jobs, about the played scenes only."""
    attempts = "the attempts" if len(result.attacks) > 1 else "one attempt"
    honest = "the honest trainer's claim, re-executed bit by bit on another device, and " if result.honest else ""
    text = (
        f"A client ordered {result.job['steps']} training steps of {shown(result.job['model'])}. Below: "
        f"{honest}{attempts} to cheat, "
    )
    return {
        "title": "Was the network trained as ordered?",
        "text": text + "decided by a smart contract that computes one contested number itself.",
        "cards": _cards(result),
        "facts": _facts(result),
    }


def _cards(result: Result) -> list[dict[str, Any]]:
    honest, cards = result.honest, []
    if honest:
        cards.append(_card(honest["verdict"], "the honest claim", honest["verdict"] == "final"))
        if honest["accuracy"] is not None:
            cards.append(_card(f"{100 * honest['accuracy']:.1f} %", "accuracy on images it never saw"))
    for found, verdict, what in (
        (result.attacks, "convicted", "cheats"),
        (result.accusations, "dismissed", "false accusations"),
    ):
        if found:
            right = sum(d.verdict == verdict for d in found)
            cards.append(_card(f"{right} of {len(found)}", f"{what} {verdict}", right == len(found)))
    if sales := result.exchanges:
        right = sum(s.right for s in sales)
        cards.append(_card(f"{right} of {len(sales)}", "deliveries ended as they must", right == len(sales)))
    if prizes := result.prizes:
        right = all(p.right for p in prizes)
        paid = sum(p.outcome == "paid" for p in prizes)
        ended = f"bonuses by accuracy ended as they must: {paid} paid, {len(prizes) - paid} returned"
        cards.append(_card(f"{sum(p.right for p in prizes)} of {len(prizes)}", ended, right))
    caption = "conserved" if result.conserved else "NOT conserved"
    return [*cards, _card(caption, "money in = out + credits + burnt, to the wei", result.conserved)]


def _card(value: str, label: str, good: bool | None = None) -> dict[str, Any]:
    return {"value": value, "label": label, "good": good}


def _facts(result: Result) -> list[list[str]]:
    """[name, value]"""
    honest, facts = result.honest, []
    if honest:
        facts += [["Trainer's run root", honest["trainer_root"]], ["Auditor's run root", honest["auditor_root"]]]
        raw = "differ" if honest["devices_differ"] else "are equal"
        facts.append(
            [
                "Devices",
                f"the raw binary64 products of the two devices {raw}; correctly rounded training is the same to the "
                "last bit",
            ]
        )
        modes = {"nearest_diverged_at": "Mode nearest (binary64, rounded)", "fp32_diverged_at": "Plain binary32"}
        for key, name in modes.items():
            if key in honest:
                step = honest[key]
                facts.append(
                    [name, f"the two devices differ from step {step} on" if step else "did not differ within the run"]
                )
    if money := result.money:
        paid = (
            f"in {exact_ether(money['in'])} = out {exact_ether(money['out'])} + credits "
            f"{exact_ether(money['credits'])} + burnt "
        )
        facts.append(
            [
                "Money (ether)",
                f"{paid}{exact_ether(money['burnt'])}; the contract's balance is {exact_ether(money['balance'])}",
            ]
        )
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts.append(["Made", f"{when}, vgame {__version__}, torch {version('torch')}, {result.seconds:.0f} seconds"])
    return facts


def write_report(result: Result, state: State, path: Path) -> None:
    """Write the page with the story, atomically."""
    write_page(state | {"story": story_record(result)}, path)
