"""Orders of a drill, as lines: invalid ones are refused with one sentence. A run copied while its owner lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgame.demo.cheats import copy_run
from vgame.demo.drills import _order
from vgame.errors import VgameError
from vgame.system.files import half_file, write_atomic

JOB = "ab" * 32
BAD = [
    "", "\xff\xfe", "hello", "[]", "7", "null", '"attack"', "{}", "{", "[" * 5000, '{"job": 5, "accuse": "path"}',
    f'{{"job": "{JOB}"}}', f'{{"job": "{JOB}", "accuse": "loudly"}}', f'{{"job": "{JOB}", "accuse": []}}',
    f'{{"job": "{JOB}", "attack": "wrong_sum"}}', f'{{"job": "{JOB}", "attack": "no such attack", "step": 1}}',
    '{"job": "abcd", "accuse": "path"}', '{"job": "xyz", "accuse": "path"}',
    f'{{"job": "{JOB}", "attack": {{}}, "step": 1}}', f'{{"job": "{JOB}", "attack": "tampered log", "step": "1"}}',
]  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_an_invalid_line_is_named(line: str) -> None:
    with pytest.raises(VgameError, match="is no order of a drill") as caught:
        _order(line.encode("latin-1"))
    assert "\n" not in str(caught.value)


def test_valid_orders_are_read() -> None:
    from vgame.attacks.adversaries import ATTACKS

    name = next(iter(ATTACKS))
    assert _order(f'{{"job": "{JOB}", "attack": "{name}", "step": 3}}'.encode()) == (name, bytes.fromhex(JOB), 3)
    assert _order(f'{{"job": "{JOB}", "accuse": "idle"}}\n'.encode()) == ("idle", bytes.fromhex(JOB), None)


def test_a_run_is_copied_while_its_owner_measures(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    write_atomic(run / "states" / "0000000000.safetensors", b"state")
    (run / ".measured" / "states").mkdir(parents=True)
    with half_file(run, "pace.json"), half_file(run / "states", "0000000005.safetensors"):
        copy_run(run, copy)
    assert [p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file()] == ["states/0000000000.safetensors"]
    assert not (copy / ".measured").exists()
