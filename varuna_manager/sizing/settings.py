"""What sizing needs of manager.yaml: one record of rules a pool, in the order of the file."""

from dataclasses import dataclass

from varuna_manager.pool_settings import AnyPool, LocalPool, Sizing, StaticPool, TracePool

_QUICK_S = 1.0  # looking at processes of this machine costs nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One pool; one that is not sized is only looked at."""

    pool: str
    provider: str
    min: int
    max: int
    price: float | None  # dollars per hour of a node; None: as the provider says
    is_sized: bool
    poll_s: float
    is_near: bool = False  # asking costs nothing and is metered by nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All pools and how they share the demand."""

    rules: tuple[Rules, ...]
    sizing: Sizing

    def of(self, pool: str) -> Rules:
        """Return the rules of a pool."""
        return next(rules for rules in self.rules if rules.pool == pool)


def settings(pools: tuple[AnyPool, ...], sizing: Sizing) -> Settings:
    """Return the rules of these pools."""
    return Settings(rules=tuple(_rules(pool, sizing) for pool in pools), sizing=sizing)


def _rules(pool: AnyPool, sizing: Sizing) -> Rules:
    is_near = isinstance(pool, LocalPool | TracePool) or (isinstance(pool, StaticPool) and not pool.hosts)
    is_fixed = (isinstance(pool, LocalPool) and not pool.sized) or (
        isinstance(pool, StaticPool) and not pool.hosts
    )
    return Rules(
        pool=pool.name,
        provider=pool.provider,
        min=pool.min,
        max=pool.max,
        price=pool.price,
        is_sized=not is_fixed,
        poll_s=min(sizing.poll_s, _QUICK_S) if is_near else sizing.poll_s,
        is_near=is_near,
    )
