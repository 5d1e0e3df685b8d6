"""Attempts to reach the network, the services of the machine, and sockets that others listen on."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest
from prison import Prison, amply

from treadle.agents.sandbox import landlock
from treadle.agents.sandbox.outcome import Outcome
from treadle.agents.sandbox.sandbox import Sandbox

Attempt = Callable[..., Outcome]


def tried(attempt: Attempt, code: str) -> list[str]:
    """What is printed by code that has ``attempt(call, *arguments)`` to print the name of an error, or "reached"."""
    setup = """
import os, socket
socket.setdefaulttimeout(30)
def attempt(call, *arguments):
    try:
        call(*arguments)
        print("reached")
    except OSError as error:
        print(type(error).__name__ if isinstance(error, socket.gaierror) else os.strerror(error.errno))
"""
    outcome = attempt(setup + code)
    assert (outcome.status, outcome.stderr.text) == ("exited", "")
    return outcome.stdout.text.splitlines()


def test_the_machine_s_own_services_are_not_there(attempt: Attempt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0)
        tcp.settimeout(0)
        answers = tried(
            attempt,
            f"""
attempt(socket.create_connection, ("127.0.0.1", {tcp.getsockname()[1]}))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
attempt(lambda: [sender.sendto(b"hello", ("127.0.0.1", {udp.getsockname()[1]})) for _ in range(3)])
attempt(socket.create_connection, ("::1", {tcp.getsockname()[1]}))
""",
        )
        assert answers[0] == "Connection refused"
        for arrived in (tcp.accept, lambda: udp.recv(16)):
            try:
                arrived()
                reached = True
            except BlockingIOError:
                reached = False
            assert not reached


def test_nobody_else_is_reached(attempt: Attempt) -> None:
    """Addresses of documentation, of the cloud's own service and of everybody: none has a route."""
    answers = tried(
        attempt,
        """
for address in ("192.0.2.1", "169.254.169.254", "8.8.8.8", "10.0.0.1"):
    attempt(socket.create_connection, (address, 80))
    attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b"x", (address, 53))
attempt(socket.create_connection, ("2001:db8::1", 80))
""",
    )
    # The last one where the kernel has no version 6 of the protocol.
    refusals = {"Network is unreachable", "Cannot assign requested address", "Address family not supported by protocol"}
    assert set(answers) <= refusals


def test_no_name_is_resolved_but_its_own(attempt: Attempt) -> None:
    answers = tried(
        attempt,
        f"""
for name in ("example.com", "metadata.google.internal", {socket.gethostname()!r} + ".example"):
    attempt(socket.getaddrinfo, name, 80)
attempt(socket.getaddrinfo, "localhost", 80)
print([name for _, name in socket.if_nameindex()])
print(socket.gethostname())
""",
    )
    assert answers == ["gaierror", "gaierror", "gaierror", "reached", "['lo']", "sandbox"]


def test_abstract_sockets_of_the_machine_are_not_there(attempt: Attempt) -> None:
    name = f"\0treadle-escape-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert tried(attempt, f"attempt(socket.socket(socket.AF_UNIX).connect, {name!r})") == ["Connection refused"]


def test_abstract_sockets_stay_out_of_reach_with_the_network(prison: Prison) -> None:
    """They belong to the network's namespace, which is the machine's then."""
    if landlock.abi() < landlock.HOLDS_SIGNALS:
        pytest.skip(f"Landlock of this kernel is at version {landlock.abi()}, {landlock.HOLDS_SIGNALS} holds them")
    name = f"\0treadle-escape-{os.getpid()}"
    code = f"""
import socket
try:
    socket.socket(socket.AF_UNIX).connect({name!r})
    print("reached")
except OSError as error:
    print(error.strerror)
"""
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as tcp:
        server.bind(name)
        server.listen()
        code += f"socket.create_connection(('127.0.0.1', {tcp.getsockname()[1]}))\nprint('connected')"
        outcome = prison.within(lambda sandbox: sandbox.run_python(code, limits=amply()), has_network=True)
    assert outcome.stdout.text == "Operation not permitted\nconnected\n"


def test_other_families_of_sockets_are_refused(attempt: Attempt) -> None:
    answers = tried(
        attempt,
        """
for family, kind in ((17, 3), (40, 1), (38, 5), (44, 3), (30, 1), (29, 3), (21, 5)):
    attempt(socket.socket, family, kind)
for protocol in (132, 33, 255):
    attempt(socket.socket, socket.AF_INET, 1 if protocol == 132 else 3, protocol)
attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 12)
""",
    )
    assert "reached" not in answers


def test_processes_of_one_sandbox_may_talk_to_each_other(attempt: Attempt) -> None:
    code = """
server = socket.create_server(("127.0.0.1", 0))
attempt(socket.create_connection, server.getsockname())
"""
    assert tried(attempt, code) == ["reached"]


LISTEN = """
import socket
server = socket.create_server(("127.0.0.1", 40123))
open("up", "w").close()
server.accept()
"""
CONNECT = """
import os, socket, time
while not os.path.exists("up"):
    time.sleep(0.01)
try:
    socket.create_connection(("127.0.0.1", 40123))
    print("reached")
except OSError as error:
    print(error.strerror)
"""


def test_calls_at_the_same_time_do_not_reach_each_other(prison: Prison) -> None:
    async def listen_and_connect(sandbox: Sandbox) -> Outcome:
        listening = asyncio.create_task(sandbox.run_python(LISTEN, limits=amply()))
        try:
            return await sandbox.run_python(CONNECT, limits=amply())
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    assert prison.within(listen_and_connect).stdout.text == "Connection refused\n"
