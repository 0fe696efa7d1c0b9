"""Which addresses are somebody's own, in every form that a resolver may give them."""

from __future__ import annotations

import pytest

from service.features.remote_images.fetch import is_public

pytestmark = pytest.mark.contract
OWN = {
    "this machine": "127.0.0.1 127.0.0.2 127.255.255.254 ::1 0:0:0:0:0:0:0:1",
    "no address": "0.0.0.0 0.1.2.3 ::",
    "private": "10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 192.168.255.255",
    "link-local": "169.254.0.1 169.254.169.254 169.254.170.2 fe80::1 febf::1 fe80::1%eth0",
    "of a provider's translator": "100.64.0.1 100.100.100.200 100.127.255.255",
    "unique local": "fc00::1 fd00::1 fd00:ec2::254 fdff:ffff::1",
    "site-local": "fec0::1 feff::1",
    "broadcast and reserved": "255.255.255.255 240.0.0.1 254.1.2.3",
    "multicast": "224.0.0.1 239.255.255.250 ff02::1 ff0e::1 ff05::2%eth0",
    "benchmarking": "198.18.0.1 198.19.255.255 2001:2::1",
    "documentation": "192.0.2.1 198.51.100.1 203.0.113.1 2001:db8::1 3fff::1",
    "of protocols": "192.0.0.1 192.0.0.8 192.0.0.100 192.0.0.170 192.88.99.1 2001:10::1 5f00::1",
    "discarded": "100::1 100:0:0:1::1",
    "mapped": "::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:a9fe:a9fe ::ffff:8.8.8.8 ::FFFF:7F00:1%lo",
    "compatible": "::127.0.0.1 ::10.0.0.1 ::7f00:1 ::8.8.8.8",
    "translated": "::ffff:0:127.0.0.1 ::ffff:0:8.8.8.8",
    "NAT64": "64:ff9b::127.0.0.1 64:ff9b::7f00:1 64:ff9b::8.8.8.8 64:ff9b:1::1 64:ff9b:1:f::a00:1",
    "6to4": "2002:7f00:1:: 2002:a00:1::1 2002:a9fe:a9fe::1 2002:808:808::1",
    "Teredo": "2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "no address in this form": (
        "localhost 127.1 127.0.1 0177.0.0.1 0x7f.0.0.1 0x7f000001 2130706433 8.8.8 08.8.8.8 "
        "8.8.8.8/32 [::1] [2606:4700::1111] 8.8.8.8:443 １２７.0.0.1 127。0。0。1 ::ffff:127.1 "
        "2606:4700:::1 8.8.8.8. 256.1.1.1 -1.1.1.1"
    ),
}
PUBLIC = (
    "1.1.1.1 8.8.8.8 9.9.9.9 93.184.215.14 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 "
    "169.253.1.1 192.167.1.1 198.17.0.1 198.20.0.1 223.255.255.255 11.0.0.1 126.0.0.1 128.0.0.1 "
    "2606:4700::1111 2001:4860:4860::8888 2a00:1450:4001:81b::200e 2620:fe::fe 2001:200::1"
)


@pytest.mark.parametrize(
    "address",
    [pytest.param(each, id=f"{kind}: {each}") for kind in OWN for each in OWN[kind].split()],
)
def test_what_may_be_somebodys_own_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["", " ", " 127.0.0.1", "8.8.8.8 ", "8.8.8.8\n", "\0", "%eth0"])
def test_what_is_no_address_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_the_rest_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)
