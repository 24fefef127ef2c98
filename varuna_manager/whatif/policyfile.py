"""A policy as a small file: a name, what it is like, and what differs from the usual costs and thresholds."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from varuna_manager.core.config import CoreConfig
from varuna_manager.whatif.scenario import Costs, Ours, Paper, Policy
from varuna_runtime.spec.job import Name, Objective
from varuna_runtime.spec.mistakes import Mistake
from varuna_runtime.spec.yamlfile import Located, read

Seconds = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class CostChanges(_Strict):
    """Each one that is left out is as on the command line."""

    morph_s: Seconds | None = None
    warm_s: Seconds | None = None
    plan_s: Seconds | None = None
    detect_s: Seconds | None = None
    save_stall_s: Seconds | None = None
    save_write_s: Seconds | None = None


class CoreChanges(_Strict):
    """Thresholds of the core that decide about morphs; each one that is left out is the usual one."""

    lease_s: Seconds | None = None
    drain_timeout_s: Seconds | None = None
    notice_margin_s: Seconds | None = None
    warm_patience_s: Seconds | None = None
    growth_min_gain: Annotated[float, Field(ge=0, le=1)] | None = None
    growth_min_interval_s: Seconds | None = None


class PolicyFile(_Strict):
    """What a policy file may say."""

    name: Name
    """Its column in the result."""
    like: Literal["ours", "paper"]
    """Which manager decides."""
    objective: Objective | None = None
    """Of `ours` only: what its plans are chosen by, instead of the job's."""
    costs: CostChanges = CostChanges()
    core: CoreChanges = CoreChanges()
    """Of `ours` only."""


def parse_policy(text: str, *, source: str, ours: Ours, paper: Paper) -> Policy | tuple[Mistake, ...]:
    """Return the policy in a text of YAML or JSON, on top of `ours` or `paper`; or every mistake."""
    found = read(PolicyFile, text, source=source)
    if not isinstance(found, Located):
        return found
    file = found.value
    core = file.core.model_dump(exclude_none=True)
    if file.like == "paper":
        wanted = "it with `like: ours` only"
        if core:
            return (found.mistake(("core",), seen="thresholds of the core", wanted=wanted),)
        if file.objective is not None:
            return (found.mistake(("objective",), seen=f'"{file.objective}"', wanted=wanted),)
        return replace(paper, name=file.name, costs=_changed(paper.costs, file.costs))
    config: CoreConfig = replace(ours.core, **core)
    costs = _changed(ours.costs, file.costs)
    return replace(ours, name=file.name, objective=file.objective, costs=costs, core=config)


def _changed(costs: Costs, changes: CostChanges) -> Costs:
    given: dict[str, float] = changes.model_dump(exclude_none=True)
    return replace(costs, **given)
