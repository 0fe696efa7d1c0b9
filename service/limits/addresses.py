"""Which network addresses are the public internet's, and which may be somebody's own."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network

NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
COMPATIBLE = IPv6Network("::/96")
"""IPv4 addresses in IPv6 ones, as of old."""
SIX_TO_FOUR = IPv6Network("2002::/16")
TEREDO = IPv6Network("2001::/32")
UNICAST = IPv6Network("2000::/3")
"""All of IPv6 that is in use."""
RESERVED = [
    ip_network(each)
    for each in ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "3fff::/20", "5f00::/16")
]
"""What one or the other version of Python takes for public."""


def is_public(text: str) -> bool:
    """Whether an address, in the form that a resolver gives it, is a public one; an IPv6 address
    that carries an IPv4 one is none, whatever that is: no public server needs to be reached so."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and (address not in UNICAST or _carries_ipv4(address)):
        return False
    if any(address in network for network in RESERVED):
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


def _carries_ipv4(address: IPv6Address) -> bool:
    wrapped = (*NAT64, COMPATIBLE, SIX_TO_FOUR, TEREDO)
    return address.ipv4_mapped is not None or any(address in network for network in wrapped)
