"""What actions are carried out with and clients are served from; opened once by the daemon."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from varuna_manager.clock import Clock
from varuna_manager.links import Links
from varuna_manager.persistence import Database
from varuna_manager.planner.request import PlanOutcome, PlanRequest
from varuna_manager.secrecy import SecretBox
from varuna_runtime.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The outside world of one manager; `plan` never holds up the loop."""

    links: Links
    database: Database
    store: Store
    store_url: str
    secrets: SecretBox
    generation_key: bytes
    clock: Clock
    plan: Callable[[PlanRequest], Coroutine[Any, Any, PlanOutcome]]
