"""JSON nested deeper than vgame's own is refused, for every recursion limit that a library sets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vgame.chain.http import _Provider
from vgame.system.files import MOST_DEPTH, parse_json

READERS = {"a file": parse_json, "a reply": _Provider("http://127.0.0.1:9").decode_rpc_response}
#: The limit of web3's libraries; JSON nested so deep overflows the C stack.
ALLOWED = 100_000


def ran(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_the_recursion_limit_stays() -> None:
    done = ran(
        "import sys, web3; sys.setrecursionlimit(77_777); import vgame, vgame.chain.connection, vgame.agents.roles; "
        "assert sys.getrecursionlimit() == 77_777, sys.getrecursionlimit()"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text", ["'[' * 10**6", "'{\"a\":' * 10**6", "'[' * 10**6 + ']' * 10**6", "'[\"' + '[' * 10**6"]
)
def test_deep_json_does_not_crash_the_process(text: str) -> None:
    done = ran(
        f"import sys; sys.setrecursionlimit({ALLOWED}); from vgame.system.files import parse_json\n"
        f"try: parse_json(({text}).encode())\nexcept ValueError as error: print(error)"
    )
    assert done.returncode == 0 and len(done.stdout) < 300, (done.returncode, done.stderr[-300:])


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-32-be"])
@pytest.mark.parametrize("read", ["parse_json", "_Provider('http://127.0.0.1:9').decode_rpc_response"])
def test_another_encoding_does_not_hide_the_depth(read: str, code: str) -> None:
    """An escaped quote that ends the string in its bytes: the brackets after it look like part of another one."""
    done = ran(
        f"import sys; sys.setrecursionlimit({ALLOWED}); from vgame.chain.http import _Provider\n"
        "from vgame.system.files import parse_json\n"
        "text = '[\"\\\\\"\",' + '[' * 10**5 + ']' * 10**5 + ']'\n"
        f"try: {read}(text.encode({code!r}))\nexcept ValueError as error: print(error)"
    )
    assert done.returncode == 0 and done.stdout, (done.returncode, done.stderr[-300:])


@pytest.mark.parametrize("reader", READERS)
def test_the_depth_is_counted_outside_of_strings(reader: str) -> None:
    read, inside = READERS[reader], rb'"' + rb"[{\"]" * 3 * MOST_DEPTH + rb'\\"'
    shallow = b"[" * MOST_DEPTH + b"]" * MOST_DEPTH
    assert read(shallow) and read(b"[%s]" % inside) == [(rb"[{]" * 3 * MOST_DEPTH).decode().replace("{]", '{"]') + "\\"]
    assert read(b"[" + b"[],{}," * MOST_DEPTH + b"1]")
    for deep in (
        b"[" + shallow + b"]",
        b'{"a":' * MOST_DEPTH + b"[1]" + b"}" * MOST_DEPTH,
        b'["]"%s]' % (b"," + shallow),
    ):
        with pytest.raises(ValueError, match=f"more than {MOST_DEPTH} lists"):
            read(deep)
