"""Addresses for pods on one computer: all of 127.0.0.0/8 is local on Linux, so each pod can have one of its own."""

import random
import socket
from collections.abc import Iterable

_ATTEMPTS = 64


def choose_address(network: str, ports: Iterable[int], taken: set[str], rng: random.Random) -> str:
    """A random address of `network` (the first half of a /16) on which none of the TCP `ports` is used by any process.

    Random, and proven by binding, because other clusters on this computer draw from the same range. Raises OSError when
    64 draws in a row fail.
    """
    wanted = list(ports)
    for _ in range(_ATTEMPTS):
        address = f"{network}.{rng.randrange(0, 256)}.{rng.randrange(1, 255)}"
        if address not in taken and all(port_is_free(address, port) for port in wanted):
            return address
    raise OSError(f"no address of {network}.0.0/16 has the ports {wanted} free after {_ATTEMPTS} draws")


def port_is_free(address: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that only linger in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
