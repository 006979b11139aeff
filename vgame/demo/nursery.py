"""A process that has loaded the modules of the roles and forks for each role: roles start at once, and share its
memory.

It is forked while this process has one thread and has computed nothing, so a role can still be any device: the vendor's
libraries read the environment at their first product.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import NoReturn

import numpy as np

from vgame.errors import PARENT_VARIABLE, VgameError

MODULE = "vgame.cli"


class Forked:
    """A forked process, with the used methods of `subprocess.Popen`; its exit code is not known."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid, self._handle = pid, handle

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(MODULE, timeout or 0)

    def poll(self) -> int | None:
        """None while it runs."""
        return 0 if self._ended(0) else None

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._handle)

    def _ended(self, timeout: float | None) -> bool:
        look = select.poll()  # select.select knows no descriptor above 1023
        look.register(self._handle, select.POLLIN)
        return bool(look.poll(None if timeout is None else 1000 * timeout))

    def _signal(self, which: signal.Signals) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, which)


def is_possible() -> bool:
    """Whether this system supports process descriptors; a container's seccomp filter may refuse them."""
    try:
        handle = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(handle, 0)
        finally:
            os.close(handle)
    except (AttributeError, OSError):
        return False
    return True


class Nursery:
    """The starter of the forking process; create it before any thread."""

    def __init__(self) -> None:
        _load()
        self._lock = Lock()
        self._line, theirs = socket.socketpair()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._line.close()
            _never_return(theirs)
        theirs.close()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[int]) -> Forked:
        """Start `vgame ARGUMENTS` with an environment, and with `files` as its stdin, stdout and stderr."""
        order = os.memfd_create("order")  # of any length, unlike a message of a socket
        with open(order, "wb") as file, self._lock:
            file.write(json.dumps([list(arguments), dict(environment)]).encode())
            file.flush()
            try:
                socket.send_fds(self._line, [b"!"], [*files, order])
                pid, handles, _, _ = socket.recv_fds(self._line, 16, 1)
            except OSError as error:
                raise VgameError(f"the process that starts the roles has ended ({error.strerror})") from None
        if not handles:
            raise VgameError("the process that starts the roles has ended")
        return Forked(int(pid), handles[0])

    def stop(self) -> None:
        """End the nursery and all its roles."""
        self._line.close()
        os.waitpid(self.pid, 0)


def _load() -> None:
    """Import the modules of all roles' commands."""
    import vgame.agents.auditor_service
    import vgame.agents.roles
    import vgame.attacks.cheat
    import vgame.demo.drills
    import vgame.runs.logged_history
    import vgame.runs.logged_store
    import vgame.runs.training  # noqa: F401
    from vgame.arithmetic.numba.philox import fill_shuffle

    fill_shuffle(np.empty(0, np.int32), 0, 1, 0, 0)  # numba needs half a second before its first loop


def _never_return(line: socket.socket) -> NoReturn:
    """Serve orders; this process never returns to the parent's code, even on errors."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # roles share these objects' memory, and Python's garbage collector would write to it
        _serve(line)
    finally:
        os._exit(0)


def _serve(line: socket.socket) -> None:
    """Fork a role for each order, until the other end is closed."""
    while True:
        called, files, _, _ = socket.recv_fds(line, 1, 4)
        if not called:
            return
        if (pid := os.fork()) == 0:
            line.close()
            _become(files)
        handle = os.pidfd_open(pid)
        socket.send_fds(line, [str(pid).encode()], [handle])
        for file in (handle, *files):
            os.close(file)
        with suppress(ChildProcessError):  # the other end is closed
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become(files: list[int]) -> NoReturn:
    """Run the command line, as `python -m` would."""
    code: object = 1
    try:
        with open(files.pop(), "rb") as order:
            order.seek(0)
            arguments, environment = json.load(order)
        sys.stdin = sys.stdout = sys.stderr = None  # some close their files on exit
        above = [fcntl.fcntl(file, fcntl.F_DUPFD, 3) for file in files]  # if the parent had closed 0, 1 or 2
        for file in files:
            os.close(file)
        for place, file in enumerate(above):
            os.dup2(file, place)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = (open(n, mode, closefd=False) for n, mode in enumerate("rww"))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environment | {PARENT_VARIABLE: str(os.getppid())})
        sys.argv = [MODULE, *arguments]
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
