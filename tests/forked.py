"""Python commands that begin at once: each is a fork of one process that has loaded what they all import.

In: a command `[sys.executable, ...]`, as subprocess.Popen takes it, with pipes, folder and environment, and nothing
else. Out: a child of this process. What the libraries read from the environment when they are loaded is what they had
here.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36
LONGEST = 2**20  # bytes of an order


class Popen(subprocess.Popen):
    """A process is forked twice, and its parent ends at once; so it is handed to this process, which can wait for
    it. `file_size`: no file may become larger, as on a disk that is full; `session`: it begins one."""

    def __init__(self, args: Sequence[str], *, file_size: int | None = None, session: bool = False, **how: Any) -> None:
        self.limits = file_size, session
        super().__init__(args, **how)

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
    ) -> None:  # fmt: skip
        assert args[0] == sys.executable and not (preexec_fn or pass_fds or shell)
        files = [own if file == -1 else file for own, file in enumerate((p2cread, c2pwrite, errwrite))]
        environment = dict(os.environ if env is None else env)
        order = json.dumps([list(map(str, args[1:])), str(cwd or os.getcwd()), environment, *self.limits])
        with LOCK:
            socket.send_fds(line := server(), [order.encode()], files)
            self.pid = int(line.recv(32))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


LOCK = threading.Lock()
PIPE = subprocess.PIPE


@cache
def server() -> socket.socket:
    """The way to the process that forks, which ends with this one."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    atexit.register(lambda: (line.close(), process.wait()))
    return line


def run(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess:
    """Twin: subprocess.run with captured text."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how) as process:
        try:
            out, err = process.communicate(timeout=300)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


# ---- the process that forks ----


def serve(line: socket.socket) -> None:
    """A process for each order, until nobody is left to give any."""
    import torch._dynamo
    import torch.distributed

    from vgame.demo.nursery import _load

    _load()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # who asked first may be a thread that blocks some
    gc.set_threshold(100_000)
    gc.freeze()  # a child that never looks at these objects shares their memory
    assert threading.active_count() == 1 and torch.distributed.is_available()
    while True:
        order, files, _, _ = socket.recv_fds(line, LONGEST, 3)
        if not order:
            return
        read, write = os.pipe()
        if (parent := os.fork()) == 0:
            first = os.getpid()
            if pid := os.fork():
                os.write(write, str(pid).encode())
                os._exit(0)
            line.close()
            os.close(read), os.close(write)
            while os.getppid() == first:  # else a command that ends with its parent could take that one for its own
                time.sleep(0.001)
            become(*json.loads(order), files)
        os.waitpid(parent, 0)
        line.send(os.read(read, 32))
        for file in (read, write, *files):
            os.close(file)


def become(
    words: list[str], folder: str, environment: dict[str, str], file_size: int | None, session: bool, files: list[int]
) -> NoReturn:
    """What `python WORDS` would do in a folder."""
    if session:
        os.setsid()
    sys.stdin = sys.stdout = sys.stderr = None  # some close their files when they go
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, 3) for file in files]  # 0, 1 or 2 may have been closed here
    for file in files:
        os.close(file)
    for place, file in enumerate(above):
        os.dup2(file, place)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, closefd=False) for n, mode in enumerate("rww"))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if file_size is not None:  # the interpreter ignores the signal
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))
    code: object = 0
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        execute(words)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code or 0)


def execute(words: list[str]) -> None:
    while words[0] in ("-B", "-P", "-u"):
        words = words[1:]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if words[0] == "-m":
        sys.argv, sys.path[:0] = ["-m", *words[2:]], ["", *paths]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[:0] = ["-c", *words[2:]], ["", *paths]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[:0] = words, [os.path.dirname(os.path.abspath(words[0])), *paths]
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
