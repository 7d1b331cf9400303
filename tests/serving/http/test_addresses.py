"""The addresses under which limits count the hosts that requests come from."""

import pytest

from serving.http.addresses import UNKNOWN, network_of


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.4:5001", "1.2.3.4"),
        ('"1.2.3.4:5001"', "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("[::ffff:1.2.3.4]:5001", "1.2.3.4"),
        ("2001:db8::1", "2001:db8::/64"),
        ("[2001:db8::1]", "2001:db8::/64"),
        ('"[2001:db8::2]:443"', "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("[fe80::2%25eth0]:443", "fe80::/64"),
    ],
)
def test_a_host_counts_as_its_network(host: str, network: str):
    assert network_of(host) == network


@pytest.mark.parametrize(
    "host",
    [
        "",
        "testclient",
        "unknown:5001",
        "_hidden",
        "1.2.3.4.5",
        "1.2.3:80",
        "[1.2",
        "[",
        "²",
        "a" * 9999,
    ],
)
def test_hosts_without_an_address_count_as_one(host: str):
    assert network_of(host) == UNKNOWN
