"""Amounts as people read them; pure text."""


def size(num_bytes: float) -> str:
    """Return a size such as `12 KiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while num_bytes >= 1024 and len(units) > 1:
        num_bytes /= 1024
        units.pop(0)
    return f"{num_bytes:.0f} {units[0]}" if num_bytes >= 100 else f"{num_bytes:.3g} {units[0]}"
