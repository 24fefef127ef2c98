"""The core's thresholds, in one validated record; never read from a file or the environment here."""

from dataclasses import dataclass

from varuna_runtime.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Every time-out and limit of the core; the order of the time-outs is checked.

    A shorter step must always be able to end before the longer one that waits for it gives up:
    beat < suspect <= lease <= activate <= prepare <= profile, lease <= drain, notice margin <= drain.
    """

    beat_s: float = 0.3
    """How often an agent is heard."""
    suspect_s: float = 1.0
    """A node that is not heard for this long is lost if its ranks' peers hear nothing of it either."""
    lease_s: float = 3.0
    """A node that is not heard for this long is lost."""
    restart_grace_s: float = 7.0
    """Nodes have this much longer than the lease to come back after the manager started again."""
    find_timeout_s: float = 60.0
    """FindProfile unanswered for this long is asked again."""
    plan_timeout_s: float = 120.0
    """MakePlan unanswered for this long is asked again."""
    profile_timeout_s: float = 600.0
    """From the start of a PROFILE generation to its profile."""
    prepare_timeout_s: float = 180.0
    """From Start to every rank prepared: bundle, setup, import, load."""
    activate_timeout_s: float = 60.0
    """From Activate to every rank active."""
    drain_timeout_s: float = 60.0
    """From Drain to every rank drained, where no notice is nearer."""
    keep_timeout_s: float = 30.0
    """Copies of older generations are kept this long for one that trains and does not say it is safe."""
    abort_timeout_s: float = 30.0
    """A node that has not ended an aborted generation after this is fenced."""
    notice_margin_s: float = 2.0
    """A drain must be over this long before the announced end of a node."""
    drain_steps: float = 2.0
    """So many steps may pass until every rank stops: the one under way, and one in which all agree to it."""
    drain_guess_s: float = 15.0
    """What stopping and saving is taken to need beside the steps before the job has drained once."""
    drain_headroom: float = 1.5
    """The next drain may take this many times as long as the last: on other nodes, with more to write."""
    drain_floor_s: float = 5.0
    """What it is taken to need at least."""
    warm_patience_s: float = 10.0
    """Growth waits this long for a node that is warming up; after it, the others go on without it."""
    morph_s: float = 2.0
    """How long a job does not train for a morph, as long as it has had none that could be measured."""
    outlook_horizon_s: float = 1800.0
    """How far ahead losses of nodes are reckoned with."""
    growth_min_gain: float = 0.01
    """Share of the step time that a larger pool must save at least: predictions are no better."""
    growth_min_interval_s: float = 5.0
    """A running job does not grow earlier than this after its last morph."""
    refresh_steps: int = 20
    """So many steps of every rank are judged together."""
    refresh_interval_s: float = 60.0
    """The profile changes no more often: on a shared machine, times go up and down."""
    refresh_min: float = 0.1
    """Share by which the ops of a stage must differ from the profile to change it."""
    refresh_max: float = 4.0
    """One change makes times at most that many times as long or as short."""
    slow_min: float = 0.25
    """Share by which a node must be slower than its peers to be planned with as slow."""
    slow_memory_s: float = 600.0
    """How long a node that was seen to be slow counts as slow."""
    growth_retry_s: float = 60.0
    """A larger pool that was not worth a morph is judged again after this, or when it changes."""
    failure_backoff_s: float = 0.5
    """Wait before the second restart in a row without durable progress; doubles with each further one.

    The first is at once: a killed worker must not cost more than a lost node.
    """
    failure_backoff_cap_s: float = 60.0
    """The longest such wait."""
    fruitless_limit: int = 20
    """Failed generations in a row, whatever the cause, without durable progress; one more ends the job."""
    durable_announce_s: float = 30.0
    """A job's durable steps are announced at most this often."""
    forget_window_s: float = 600.0
    """After a restart, nodes are told again to forget the jobs that ended within this time."""
    gone_memory_s: float = 3600.0
    """How long a node that left or was lost stays visible."""

    def __post_init__(self) -> None:
        """Refuse time-outs in an order in which a node could never get back in."""
        chain = (
            ("beat_s x 3", self.beat_s * 3, "suspect_s", self.suspect_s),
            ("suspect_s", self.suspect_s, "lease_s", self.lease_s),
            ("lease_s", self.lease_s, "activate_timeout_s", self.activate_timeout_s),
            ("activate_timeout_s", self.activate_timeout_s, "prepare_timeout_s", self.prepare_timeout_s),
            ("prepare_timeout_s", self.prepare_timeout_s, "profile_timeout_s", self.profile_timeout_s),
            ("lease_s", self.lease_s, "drain_timeout_s", self.drain_timeout_s),
            ("notice_margin_s", self.notice_margin_s, "drain_timeout_s", self.drain_timeout_s),
            ("drain_floor_s", self.drain_floor_s, "drain_guess_s", self.drain_guess_s),
            (
                "failure_backoff_s",
                self.failure_backoff_s,
                "failure_backoff_cap_s",
                self.failure_backoff_cap_s,
            ),
        )
        for small_name, small, large_name, large in chain:
            if not 0 < small <= large:
                raise InvalidInput(
                    f"{small_name} is {small:g} and {large_name} is {large:g}: "
                    f"wanted 0 < {small_name} <= {large_name}; raise {large_name} or lower the other"
                )

    @property
    def restart_lease_s(self) -> float:
        """How long nodes have to come back after the manager started again."""
        return self.lease_s + self.restart_grace_s

    @property
    def pause_s(self) -> float:
        """If the manager looked away for longer, nobody is suspected for what it did not hear meanwhile."""
        return self.suspect_s / 3

    @property
    def tick_gap_s(self) -> float:
        """If the manager itself stood still for longer, the silence is its own and not the nodes'."""
        return self.lease_s / 2
