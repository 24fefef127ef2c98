"""Relations between keys of manager.yaml, each mistake with its line; pure."""

from varuna_manager.pool_settings import PoolBase, Sizing
from varuna_runtime.spec.mistakes import Path
from varuna_runtime.spec.yamlfile import Draft

_MAX = int(PoolBase.model_fields["max"].default)
_BACKOFF_S = float(Sizing.model_fields["backoff_s"].default)
_BACKOFF_CAP_S = float(Sizing.model_fields["backoff_cap_s"].default)


def cross_checks(draft: Draft) -> None:
    """Add every relation that does not hold to the mistakes of the file."""
    pools = draft.get("pools")
    first_of: dict[str, int] = {}
    first_host_of: dict[str, int] = {}
    for index, pool in enumerate(pools if isinstance(pools, list) else ()):
        if isinstance(pool, dict):
            _check_name(draft, ("pools", index, "name"), pool.get("name"), first_of)
            _check_bounds(draft, ("pools", index), pool)
            _check_place(draft, ("pools", index), pool)
            _check_hosts(draft, ("pools", index, "hosts"), pool.get("hosts"), first_host_of)
    _check_backoff(draft)


def _check_hosts(draft: Draft, at: Path, hosts: object, first_of: dict[str, int]) -> None:
    """Two agents of one name would push each other out for ever."""
    for index, host in enumerate(hosts if isinstance(hosts, list) else ()):
        if isinstance(host, dict):
            _check_name(draft, (*at, index, "node"), host.get("node"), first_of)


def _check_name(draft: Draft, path: Path, name: object, first_of: dict[str, int]) -> None:
    if not isinstance(name, str):
        return
    if name in first_of:
        wanted = f"a name of its own; the first is on line {first_of[name]}"
        draft.add(path, seen=f'"{name}" a second time', wanted=wanted)
    first_of.setdefault(name, draft.marks[path].line)


def _check_bounds(draft: Draft, at: Path, pool: dict[str, object]) -> None:
    least, most = pool.get("min", 0), pool.get("max", _MAX)
    if isinstance(least, int) and isinstance(most, int) and 0 <= most < least:
        written = "" if "max" in pool else " by default"
        draft.add(
            (*at, "min"),
            seen=f'"{least}"',
            wanted=f"at most max, which is {most}{written}",
            hint=f"set max to {least} or more",
        )


def _check_place(draft: Draft, at: Path, pool: dict[str, object]) -> None:
    """A managed instance group is of one zone or of one region."""
    if pool.get("provider") != "gcp":
        return
    zone, region = pool.get("zone"), pool.get("region")
    if zone and region:
        draft.add((*at, "region"), seen="both zone and region", wanted="one of the two")
    elif not zone and not region:
        hint = "add `zone: ...`, or `region: ...` for a regional group"
        draft.add(at, seen="neither zone nor region", wanted="one of the two", hint=hint)


def _check_backoff(draft: Draft) -> None:
    sizing = draft.get("sizing")
    found = sizing if isinstance(sizing, dict) else {}
    first_s, cap_s = found.get("backoff_s", _BACKOFF_S), found.get("backoff_cap_s", _BACKOFF_CAP_S)
    if isinstance(first_s, int | float) and isinstance(cap_s, int | float) and first_s > cap_s:
        key = "backoff_s" if "backoff_s" in found else "backoff_cap_s"
        draft.add(
            ("sizing", key),
            seen=f"backoff_s = {first_s:g} and backoff_cap_s = {cap_s:g}",
            wanted="backoff_s at most backoff_cap_s",
        )
