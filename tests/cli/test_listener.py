"""The port is taken first: a clash is known at once, and port 0 tells which one it got."""

from __future__ import annotations

import socket

import pytest

from sojourn.cli import listener
from sojourn.errors import StartupError


@pytest.fixture
def taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_port_0_gives_a_real_port_that_answers():
    with listener.bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert listener.url(bound) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_b63_port_clash_names_the_port_and_a_way_out(taken):
    with pytest.raises(StartupError, match=rf"Port {taken} .* already in use.*--port"):
        listener.bind("127.0.0.1", taken)


def test_b63_the_port_is_ours_before_anything_is_served():
    with listener.bind("127.0.0.1", 0) as bound, pytest.raises(StartupError, match="already in use"):
        listener.bind("127.0.0.1", bound.getsockname()[1])


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_explained(host):
    with pytest.raises(StartupError, match=r"no address"):
        listener.bind(host, 0)


def test_b63_serve_leaves_in_under_two_seconds(sojourn, taken):
    ran = sojourn("serve", "--port", str(taken))
    assert ran.code == 1
    assert ran.seconds < 2
    assert ran.err.count("\n") == 1
    assert str(taken) in ran.err
    assert "--port" in ran.err
