"""Seeded random histories of a whole installation on a cloud double, and what must hold after each."""

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.clouds.e2e import MOST, Installation, Truth
from tests.support.clouds.fault_proxy import FaultProxy, Rule, aws_error, html_error

_WRITES = "(SetDesiredCapacity|TerminateInstanceInAutoScalingGroup|SetInstanceProtection)"
_READS = "Describe.*"


@dataclass
class Campaign:
    """Does one random thing after another to an installation, all drawn from one seed."""

    here: Installation
    seed: int
    proxy: FaultProxy | None = None  # before the cloud, if faults can be put there
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        things: list[Callable[[], None]] = [
            self._evict,
            self._evict,
            self._notice,
            self._notice,
            self._evict_all,
            self._shortage,
            self._plenty,
            self._kill_manager,
            self._zombie,
            self._dud,
            self._freeze,
            self._cut_network,
            self._slow_boot,
        ]
        faults: list[Callable[[], None]] = [
            self._throttle,
            self._lose_answer,
            self._page_of_a_load_balancer,
            self._stale,
            self._hang,
        ]
        self._things = things + (faults if self.proxy is not None else [])

    def disturb(self, job: str, times: int) -> None:
        """Do `times` things while the job runs, then let everything be well."""
        for _ in range(times):
            time.sleep(self._random.choice([0.0, 1.0, 1.0]) * self._random.uniform(0.5, 4.0))
            thing = self._random.choice(self._things)
            self.done.append(thing.__name__.strip("_"))
            thing()
            if self.here.status(job).is_over:
                break
        self._mend()

    def _mend(self) -> None:
        self.here.speed_up()
        self.here.relay.mend()
        self.here.site.lend(None)
        self.here.bridge.boot_s = 0.0
        self.here.bridge.num_duds = 0
        if self.proxy is not None:
            self.proxy.heal()

    def _some(self) -> str | None:
        living = self.here.bridge.living()
        return self._random.choice(living) if living else None

    def _evict(self) -> None:
        if (node := self._some()) is not None:
            with suppress(LookupError):  # it went by itself meanwhile
                self.here.site.reclaim(node)

    def _notice(self) -> None:
        if (node := self._some()) is not None:
            with suppress(LookupError):
                self.here.site.reclaim(node, self._random.choice([1.0, 4.0, 15.0]))

    def _evict_all(self) -> None:
        for node in self.here.bridge.living():
            with suppress(LookupError):
                self.here.site.reclaim(node)

    def _shortage(self) -> None:
        self.here.site.lend(self._random.randint(0, MOST - 1))

    def _plenty(self) -> None:
        self.here.site.lend(None)

    def _kill_manager(self) -> None:
        self.here.kill_manager()
        time.sleep(self._random.choice([0.0, 1.0, 5.0]))
        self.here.start_manager()

    def _zombie(self) -> None:
        if (node := self._some()) is not None:
            with suppress(LookupError):
                self.here.bridge[node].kill_processes()

    def _dud(self) -> None:
        self.here.bridge.num_duds += 1

    def _freeze(self) -> None:
        if (node := self._some()) is not None:
            with suppress(LookupError, ProcessLookupError, AssertionError):  # it has no agent yet, or no more
                machine = self.here.bridge[node]
                machine.signal(signal.SIGSTOP)
                time.sleep(self._random.choice([0.5, 2.0, 6.0]))
                machine.signal(signal.SIGCONT)

    def _cut_network(self) -> None:
        self.here.relay.cut()
        time.sleep(self._random.choice([0.5, 2.0, 6.0]))
        self.here.relay.mend()

    def _slow_boot(self) -> None:
        self.here.bridge.boot_s = self._random.choice([0.0, 2.0, 8.0])

    def _throttle(self) -> None:
        self._fault(aws_error(_READS, "Throttling", "Rate exceeded", times=self._random.randint(1, 12)))

    def _lose_answer(self) -> None:
        self._fault(Rule(operation=_WRITES, loses=True, times=self._random.randint(1, 3)))

    def _page_of_a_load_balancer(self) -> None:
        self._fault(html_error(self._random.choice([_WRITES, _READS]), times=self._random.randint(1, 6)))

    def _stale(self) -> None:
        self._fault(Rule(operation=_READS, stale_s=self._random.uniform(1.0, 4.0), times=6))

    def _hang(self) -> None:
        self._fault(Rule(operation=_READS, delay_s=self._random.uniform(1.0, 6.0), times=2))

    def _fault(self, rule: Rule) -> None:
        assert self.proxy is not None
        self.proxy.add(rule)


def survive(here: Installation, job_folder: Path, truth: Truth, campaign: Campaign, *, faults: int) -> None:
    """Train a job through the campaign and check all that must hold."""
    job = here.submit(job_folder)
    here.wait(job, lambda s: s.step > 0, 180.0)
    campaign.disturb(job, faults)
    status = here.wait(job, lambda s: s.is_over, 400.0)
    story = f"seed {campaign.seed}: {', '.join(campaign.done)}\n"
    assert status.has_succeeded, story + here.story(job)
    assert status.weights_sha256 == truth.weights_sha256, story + here.story(job)
    losses: dict[int, set[str]] = {}
    for record in here.client().steps(job):
        losses.setdefault(record.step, set()).add(record.loss_hex)
    assert [losses[step] for step in sorted(losses)] == [{loss} for loss in truth.losses], story
    here.eventually(here.is_quiet, f"{story}no machine left", 180.0)
    assert here.bridge.most <= MOST, f"{story}more machines than the pool may have"
