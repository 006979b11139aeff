"""The page as one file: the same views of one final state. It is the demonstration's report."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from vgame.system.files import write_atomic
from vgame.watch.differences import State
from vgame.watch.server import PAGE, SCRIPTS


def static_page(state: State) -> str:
    """INVARIANT: only this script runs (its hash is in the policy), and no text of the state can end its block."""
    style, script = _text("watch.css"), "\n".join(_text(name) for name in SCRIPTS)
    sources = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:"
    policy = f"{sources}; base-uri 'none'; form-action 'none'"
    data = (
        json.dumps(state, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
    head, body = _text("index.html").split("<!-- files -->")[0], _text("index.html").split("<!-- /files -->")[1]
    return (
        head.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">')
        + f"<style>{style}</style>"
        + body.replace(
            "</body>", f'<script type="application/json" id="state">{data}</script>\n<script>{script}</script>\n</body>'
        )
    )


def write_page(state: State, path: Path) -> None:
    """Write the page atomically."""
    write_atomic(path, static_page(state).encode())


def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
