"""Hosts of a network, as network namespaces of this machine: joined by a link that is slow and loses packets."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

#: Properties of a link, best first: delay and loss; or, without kernel support, a rate with a queue that overflows.
SHAPES = (
    ("netem", "delay", "3ms", "1ms", "loss", "1%"),
    ("tbf", "rate", "30mbit", "burst", "8kb", "latency", "4ms"),
)


@dataclass(frozen=True)
class Host:
    """A host: `prefix` precedes a command on it."""

    address: str
    prefix: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    interface: str = ""

    def run(self, *command: str, check: bool = True, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=check, timeout=timeout)

    def sent(self) -> int:
        """Bytes that have left this host."""
        return int(self.run("cat", f"/sys/class/net/{self.interface}/statistics/tx_bytes").stdout)

    def dropped(self) -> int:
        """Packets that the link has lost."""
        words = self.run("tc", "-s", "qdisc", "show", "dev", self.interface).stdout.replace(",", "").split()
        return int(words[words.index("(dropped") + 1])


LOCAL = Host("127.0.0.1")


@contextmanager
def two_hosts() -> Iterator[tuple[tuple[Host, Host], str]]:
    """(two hosts, the properties of their link). Skips the test if namespaces are not allowed."""
    if not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("no ip and tc (iproute2): several hosts are not tested")
    tag = f"vg{os.getpid() % 100000}"
    names, links = (f"{tag}a", f"{tag}b"), (f"{tag}x", f"{tag}y")
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"network namespaces are not allowed here ({made.stderr.strip()}): several hosts are not tested")
    try:
        _do(f"ip netns add {names[1]}")
        _do(f"ip link add {links[0]} netns {names[0]} type veth peer name {links[1]} netns {names[1]}")
        hosts = tuple(
            Host(f"10.77.0.{n}", ("ip", "netns", "exec", name), {"GLOO_SOCKET_IFNAME": link}, link)
            for n, name, link in zip((1, 2), names, links, strict=True)
        )
        shapes = [_shaped(host) for host in hosts]
        yield hosts, shapes[0]
    finally:
        for name in names:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            subprocess.run(["kill", "-9", *pids], capture_output=True)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _shaped(host: Host) -> str:
    for command in (
        f"ip addr add {host.address}/24 dev {host.interface}",
        f"ip link set {host.interface} up",
        "ip link set lo up",
        f"ip route add default dev {host.interface}",  # Ray uses the address of the default route
    ):
        host.run(*command.split())
    for shape in SHAPES:
        if not host.run("tc", "qdisc", "add", "dev", host.interface, "root", *shape, check=False).returncode:
            return " ".join(shape)
    pytest.skip("the kernel shapes no traffic (netem, tbf): slow links are not tested")
    return ""


def _do(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
