"""What an address says about who can reach it."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches `host`; of names, only `localhost` is known to be so."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
