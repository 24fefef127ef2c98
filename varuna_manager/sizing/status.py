"""What a person sees of the pools."""

from dataclasses import dataclass

from varuna_manager.cloud.provider import Instance, InstancePhase
from varuna_manager.core.views import UNKNOWN_S
from varuna_manager.sizing.memory import Memory, PoolMemory
from varuna_manager.sizing.settings import Rules, Settings

_NOT_SIZED = {
    "local": "only `varuna up` and `varuna down` start and end its nodes",
    "static": "its machines dial in by themselves; `varuna nodes` shows them",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool, with the fields of the client protocol; negative: unknown."""

    pool: str
    provider: str
    running: int
    starting: int
    leaving: int
    stopped: int
    desired: int
    wanted: int
    min: int
    max: int
    price: float
    reason: str
    retry_in_s: float
    read_ago_s: float
    warnings: tuple[str, ...]


def pool_views(memory: Memory, settings: Settings, now_s: float) -> tuple[PoolView, ...]:
    """Return all pools in the order of the file."""
    return tuple(_view(rules, memory.of(rules.pool), now_s) for rules in settings.rules)


def _view(rules: Rules, pool: PoolMemory, now_s: float) -> PoolView:
    reading = pool.reading
    machines = reading.instances if reading else ()
    price = rules.price if rules.price is not None or reading is None else reading.price
    return PoolView(
        pool=rules.pool,
        provider=rules.provider,
        running=_num(machines, InstancePhase.RUNNING),
        starting=_num(machines, InstancePhase.STARTING),
        leaving=_num(machines, InstancePhase.LEAVING),
        stopped=_num(machines, InstancePhase.STOPPED),
        desired=reading.desired if reading else 0,
        wanted=pool.wanted,
        min=rules.min,
        max=rules.max,
        price=-1.0 if price is None else price,
        reason=_reason(rules, pool, now_s),
        retry_in_s=max(pool.retry_at_s, pool.quiet_until_s) - now_s if _waits(pool, now_s) else UNKNOWN_S,
        read_ago_s=UNKNOWN_S if reading is None else now_s - pool.read_s,
        warnings=reading.warnings if reading else (),
    )


def _num(machines: tuple[Instance, ...], phase: InstancePhase) -> int:
    return sum(machine.phase is phase for machine in machines)


def _waits(pool: PoolMemory, now_s: float) -> bool:
    return max(pool.retry_at_s, pool.quiet_until_s) > now_s


def _reason(rules: Rules, pool: PoolMemory, now_s: float) -> str:
    if pool.failed is not None:
        return f"{pool.failed.trouble}: {pool.failed.message}"
    if not rules.is_sized:
        return _NOT_SIZED[rules.provider]
    if pool.short and _waits(pool, now_s):
        return pool.short
    return pool.limit
