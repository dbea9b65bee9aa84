"""Addresses of the public internet, and connections to nothing else.

For hosts that others name: a name is resolved here, every address is checked, and a checked one is connected to, so
that a name cannot lead to one address for the check and to another for the connection (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket

ADDRESSES_MAX = 8
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that is given out (IANA, IPv6 address space): not `::127.0.0.1`, nor the old site-local `fec0::/10`."""

# Addresses that lead to others which the address does not show: 6to4 (RFC 3056), Teredo (RFC 4380); NAT64 (RFC 6052) is
# outside of `_UNICAST`
_HIDDEN = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/32")))


class PrivateAddressError(OSError):
    """A host has an address that is not of the public internet."""


def is_public(address: str) -> bool:
    """Whether an address is of the public internet, and leads nowhere else."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found not in _UNICAST or any(found in network for network in _HIDDEN):
            return False
    return found.is_global and not found.is_multicast


def socket_to(host: str, port: int, timeout_s: float, *, private: bool) -> socket.socket:
    """A connection to the first address of a host that answers. All of them must be public unless `private`.

    Raises PrivateAddressError, OSError.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[:ADDRESSES_MAX]
    addresses = [str(each[4][0]) for each in found]
    hidden = [each for each in addresses if not is_public(each)]
    if hidden and not private:
        raise PrivateAddressError(
            f"`{host}` has the address {hidden[0]}, which is not of the public internet"
        )
    last = OSError(f"`{host}` has no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout_s)
        except OSError as error:
            last = error
    raise last


def is_loopback(host: str) -> bool:
    """Whether a host of an address is this machine's loopback: only root of this machine can read what goes there.
    Looks up no names but `localhost`."""
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
