"""The address that goes into tickets and tokens."""

import pytest

from varuna_manager.config import ManagerConfig
from varuna_manager.listening import advertised


@pytest.mark.parametrize(
    ("advertise", "expected"),
    [
        ("", "10.0.0.5:7070"),
        ("manager.example.org", "manager.example.org:7070"),
        ("manager.example.org:443", "manager.example.org:443"),
        ("192.0.2.1", "192.0.2.1:7070"),
        ("2001:db8::1", "[2001:db8::1]:7070"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("[2001:db8::1]", "[2001:db8::1]:7070"),
    ],
)
def test_others_are_told_the_address_that_was_meant_for_them(advertise: str, expected: str) -> None:
    config = ManagerConfig(host="10.0.0.5", advertise=advertise)
    assert advertised(config, "10.0.0.5:7070") == expected
