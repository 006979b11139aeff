"""A model card for exported weights: Markdown with the metadata of the Hugging Face hub."""

from __future__ import annotations

import re
from hashlib import file_digest
from pathlib import Path

from vgame.runs.store import Store
from vgame.system.files import open_file
from vgame.system.version import sources

CARD = """\
---
library_name: pytorch
tags:
- vgame
- verified-training
---

# {title}

The weights after step {step} of {steps}, trained by vgame {version}. {repeats}

| | |
|---|---|
{rows}

## How to audit it

With the order (a bundle) and the trainer's run (a folder, or the URL where it is published):

    vgame audit RUN --bundle BUNDLE --device compatible
    vgame export RUN --out again.safetensors --step {step}{options}

The first says MATCH and the run root above, the second writes a file with the digest above. Without the run,
`vgame train BUNDLE --out RUN` repeats it from the order alone. Where the job was claimed on a chain,
`vgame check {file} --rpc URL --game ADDRESS --job JOB` compares this file with the final claim.

## What was checked

- The program and the client's code: {checked}.
- This card lists no audits: it is its author's statement until you repeat one.
"""


REPEATS = "Every result is correctly rounded, so the training can be repeated bit for bit, on other hardware too."
MAY_DIFFER = "In mode `{mode}` an honest training may differ on other hardware."


def card(store: Store, weights: Path, step: int, options: str = "") -> str:
    """The card of a file of weights after a step of a run; `options`: further options of its export."""
    with open_file(weights) as file:
        digest = file_digest(file, "sha256").hexdigest()
    root = store.run_tree.root.hex()
    rows = {"SHA-256 of the file": digest, f"run root, {len(store.roots)} checkpoints": root} | store.bundle.facts
    return CARD.format(
        title=_plain(store.bundle.name or weights.stem),
        step=step,
        steps=store.bundle.steps,
        version=sources(),
        repeats=REPEATS if store.bundle.mode == "correct" else MAY_DIFFER.format(mode=store.bundle.mode),
        rows="\n".join(f"| {name} | {_plain(value)} |" for name, value in rows.items()),
        options=options,
        file=weights.name,
        checked=_plain(store.bundle.checked),
    )


def _plain(text: str) -> str:
    """Escape a name: the client chose it, so none of its characters may be markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#&~])", r"\\\1", text)
