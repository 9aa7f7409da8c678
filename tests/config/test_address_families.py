"""Addresses of IPv4 and IPv6: how they are written, and what limits per address count by."""

from __future__ import annotations

import pytest

from headrace.config.addresses import counted_address

pytestmark = pytest.mark.requirement("X2")


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::6", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
    ],
)
def test_one_host_is_counted_once(host: str, counted: str) -> None:
    assert counted_address(host) == counted
