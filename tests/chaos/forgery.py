"""Addresses of images that would have the service ask its own network."""

from __future__ import annotations

from service.core.errors import Problem
from tests.chaos.finding import Finding
from tests.service.features.remote_images.sites import Canary, Names, fetched
from tests.service.features.remote_images.test_addresses import OWN
from tests.service.features.remote_images.test_fetch import FORBIDDEN, hosts_of


async def forged(scale: float) -> list[Finding]:
    """Each form of an address, allowed by a careless operator, with every name leading to a
    canary; and an allowed name that leads to each address that is somebody's own, at first or
    only when it is asked for a second time."""
    canary = Canary()
    refused = tried = reached = 0
    try:
        allowed = f"https://images.test:{canary.port}/"
        cases = [(form.format(port=canary.port), Names()) for form in FORBIDDEN]
        addresses = [each for kind in OWN.values() for each in kind.split()]
        cases += [(allowed, Names(images_test=[[each]])) for each in addresses]
        cases += [(allowed, Names(images_test=[["8.8.8.8", each]])) for each in addresses]
        for url, names in cases:
            tried += 1
            try:
                await fetched(url, hosts_of(url, allowed), names)
            except Problem:
                refused += 1
            reached += canary.connections()
    finally:
        canary.close()
    return [
        Finding(
            f"{len(FORBIDDEN)} forms of addresses of images, and a name that means each of "
            f"{len(addresses)} addresses, alone or beside a public one",
            "a canary at loopback sees 0 connections",
            f"{refused} of {tried} refused, {reached} connections",
            refused == tried and not reached,
        )
    ]
