"""Random histories: the core never raises, keeps its invariants, and a replay gives the same state."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core_invariants import check, check_nobody_is_kept_too_long
from tests.support.core_records import BATCH, MODEL, PROFILE, job_spec, plan_for
from tests.support.core_sim import HOLDABLE, Sim
from varuna_manager.core import events as e
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.journal import decode, encode, is_durable
from varuna_manager.core.state import State
from varuna_manager.core.step import replay, step
from varuna_manager.core.words import What
from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.generation import Cause, Endpoint, Running
from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import Infeasible

NODES = st.sampled_from(["a", "b", "c"])
INCARNATIONS = st.sampled_from(["1", "2"])
JOBS = st.sampled_from(["j", "k"])
SMALL = st.integers(0, 3)
RUNNING = st.lists(st.builds(Running, job=JOBS, generation=SMALL, ranks=st.just((0,))), max_size=2).map(tuple)
PLANS = st.lists(NODES, unique=True, max_size=3).map(lambda names: plan_for([(n, 1) for n in names], BATCH))
SPECS = st.builds(
    lambda low, priority, limit, exactness: job_spec(
        "x", min=low, priority=priority, max_run_time_s=limit, exactness=exactness, worker_crash=1
    ),
    st.integers(1, 2),
    st.integers(0, 2),
    st.none() | st.just(5.0),
    st.sampled_from(Exactness),
)
VERSIONS = st.builds(Version, step=st.sampled_from([0, 5, 9]), generation=SMALL)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "at_s": st.just(0.0),
    "node": NODES,
    "incarnation": INCARNATIONS,
    "job": JOBS,
    "spec": SPECS,
    "model": st.just(MODEL),
    "profile": st.just(PROFILE),
    "outcome": PLANS | st.just(Infeasible(reason="no")),
    "pool_version": st.integers(0, 6),
    "generation": SMALL,
    "rank": SMALL,
    "peer": SMALL,
    "silent_s": st.sampled_from((0.0, 1.2)),
    "peer_rank": st.none() | SMALL,
    "step": st.integers(0, 20),
    "plan_hash": PLANS.map(lambda plan: "" if isinstance(plan, Infeasible) else plan.hash()),
    "endpoint": st.just(Endpoint(rank=0, host="h", port=1)),
    "resume_step": st.sampled_from([0, 0, 0, 5]),
    "running": RUNNING,
    "slots": st.integers(1, 2),
    "device_kind": st.sampled_from(["cpu", "cpu", "gpu"]),
    "deadline_s": st.integers(0, 400).map(float),
    "subject": st.sampled_from(["node:a", "node:b", "job:j", "job:k", "notice:a", "notice:b", "nonsense"]),
    "cause": st.sampled_from(Cause),
    "epoch": SMALL,
    "config": st.none() | st.just(CoreConfig(lease_s=2.0)),
    "memory_bytes": st.just(1),
    "pid": st.just(1),
    "loss": st.just(1.0),
    "samples": st.just(32),
    "step_s": st.just(0.5),
    "ok": st.booleans(),
    "is_machine": st.booleans(),
    "factors": st.lists(st.floats(0.25, 4.0), max_size=2).map(tuple),
    "slow": st.dictionaries(NODES, st.floats(1.0, 20.0), max_size=2),
    "busy_s": st.sampled_from([0.0, 0.1]),
    "busy_samples": SMALL,
    "running_step_s": st.none() | st.just(4.0),
    "is_urgent": st.booleans(),
    "what": st.sampled_from(What),
    "vault_port": st.sampled_from([0, 7]),
    "loaded": st.none() | VERSIONS,
    "loadable": st.lists(VERSIONS, max_size=3).map(tuple),
    "is_kept": st.booleans(),
    "recoverable": st.none() | st.integers(0, 20),
    "places": st.lists(st.builds(e.Place, node=NODES, domain=st.just("x")), max_size=2).map(tuple),
    "price_per_hour": st.none() | st.just(1.0),
}


def _any_event(kind: type[e.AnyEvent]) -> st.SearchStrategy[e.AnyEvent]:
    fields = kind.__dataclass_fields__.values()
    unlisted = {field.name: field.type for field in fields if field.name not in FIELDS}
    assert set(unlisted.values()) <= {str}, f"{kind.__name__}: FIELDS lacks some of {unlisted}"
    return st.builds(kind, **{field.name: FIELDS.get(field.name, st.just("x")) for field in fields})


EVENTS = st.one_of([_any_event(kind) for kind in (*e.Durable.__args__, *e.Volatile.__args__)])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 5)), min_size=15, max_size=40))
def test_any_events_in_any_order_keep_the_invariants_and_replay(
    timed: list[tuple[e.AnyEvent, float]],
) -> None:
    state = State(config=CoreConfig())
    journal, now_s = [], 0.0
    for event, delay_s in timed:
        now_s += delay_s
        event = replace(event, at_s=now_s)
        before = state
        state, actions = step(state, event)
        check(before, state, actions)
        if is_durable(event):
            journal.append(event)
            check_nobody_is_kept_too_long(state, now_s)
        else:
            assert state.durable() == before.durable(), "a volatile event touched durable state"
    copied = [decode(encode(event)) for event in journal]
    assert copied == journal
    assert replay(copied, CoreConfig()) == state.durable()


class CheckedSim(Sim):
    """Checks the invariants after every event."""

    def _one(self, event: e.AnyEvent) -> None:
        before, count = self.state, len(self.actions)
        super()._one(event)
        if is_durable(event):
            check(before, self.state, self.actions[count:])
            check_nobody_is_kept_too_long(self.state, event.at_s)


QUICK = CoreConfig(
    find_timeout_s=5.0,
    plan_timeout_s=5.0,
    activate_timeout_s=10.0,
    prepare_timeout_s=15.0,
    profile_timeout_s=20.0,
    drain_timeout_s=10.0,
    drain_floor_s=1.0,
    drain_guess_s=3.0,
    keep_timeout_s=4.0,
    abort_timeout_s=5.0,
    failure_backoff_cap_s=4.0,
)
NODE_COMMANDS = (
    "join",
    "join-broken",
    "disconnect",
    "rejoin",
    "kill",
    "left",
    "freeze",
    "thaw",
    "notice-short",
    "notice",
    "notice-long",
    "notice-sooner",
    "notice-later",
    "notice-urgent",
    "drain",
    "unnotice",
)
NOTICE_S = {"notice-short": 1.0, "notice": 20.0, "notice-long": 600.0, "notice-urgent": 600.0}
COMMANDS = st.one_of(
    st.tuples(st.sampled_from(NODE_COMMANDS), NODES),
    st.tuples(st.sampled_from(("submit", "train", "durable", "cancel", "finish", "crash")), JOBS),
    st.tuples(st.sampled_from(("hold", "release")), st.sampled_from(HOLDABLE)),
    st.tuples(
        st.sampled_from(("pass", "pass", "stand-still", "hear-nothing", "restart", "return")), st.just("")
    ),
)


def _play(sim: Sim, command: str, name: str) -> None:
    agent, job = sim.agents.get(name), sim.state.jobs.get(name)
    is_live = agent is not None and agent.is_alive
    match command:
        case "join" if not is_live:
            sim.join(name)
        case "join-broken" if not is_live:
            sim.join(name, can_warm=False)
        case "rejoin" if agent and is_live and not agent.is_connected and not agent.is_frozen:
            sim.rejoin(name)
        case "disconnect" | "kill" | "left" | "freeze" if agent and agent.is_reachable:
            getattr(sim, command)(name)
        case "thaw" if agent and agent.is_frozen:
            sim.thaw(name)
        case "notice-short" | "notice" | "notice-long" | "notice-urgent" if is_live:
            sim.notice(name, NOTICE_S[command], is_urgent=command == "notice-urgent")
        case "notice-sooner" | "notice-later" if is_live:
            deadline_s = sim.node(name).notice_deadline_s or sim.now_s
            sim.notice(name, deadline_s - sim.now_s + (-10.0 if command == "notice-sooner" else 10.0))
        case "unnotice" if is_live:
            sim.cancel_notice(name)
        case "drain":
            sim.drain(name)
        case "submit":
            sim.submit(f"more{len(sim.state.jobs)}")
        case "train" | "finish" if job and job.run and job.phase == "RUNNING":
            sim.train(name, 2) if command == "train" else sim.finish(name)
        case "durable" | "cancel" if job and job.generation:
            getattr(sim, command)(name)
        case "crash" if job:
            sim.fail(name, 0, Cause.WORKER_CRASH, "signal 11")
        case "hold" | "release":
            getattr(sim, command)(name)
        case "pass":
            sim.pass_time(2.0)
        case "stand-still":
            sim.now_s += 30.0
            sim.pass_time(0.5)
        case "hear-nothing":
            _hear_nothing(sim)
        case "restart":
            sim.restart()
        case "return":
            sim.return_all()


def _hear_nothing(sim: Sim) -> None:
    """Every rank of every job hears nothing of its peers for a while."""
    for job in list(sim.state.iter_open()):
        for rank in job.run.ranks if job.run else ():
            for peer in set(job.run.ranks if job.run else ()) - {rank}:
                sim.feed(
                    e.PeerSilent(
                        at_s=sim.now_s,
                        job=job.job,
                        generation=job.generation,
                        rank=rank,
                        peer=peer,
                        silent_s=1.0,
                    )
                )
    sim.pass_time(1.5, 0.1)


@settings(max_examples=60, deadline=None)
@given(st.lists(COMMANDS, min_size=10, max_size=40), st.booleans(), st.booleans())
def test_whatever_happens_to_the_pool_a_job_ends_well_once_it_is_quiet(
    commands: list[tuple[str, str]], has_vaults: bool, has_pipelines: bool
) -> None:
    sim = CheckedSim(QUICK)
    sim.has_vaults, sim.has_pipelines = has_vaults, has_pipelines
    for name in "abc":
        sim.join(name)
    sim.submit("j")
    sim.submit("k", min=2)
    for command, name in commands:
        _play(sim, command, name)
    assert replay(sim.journal, sim.config) == sim.state.durable()
    _settle(sim)
    for name in sorted(sim.state.jobs, key=lambda job: sim.job(job).seq):
        _end(sim, name)
    assert all(job.is_over and not job.hosts for job in sim.state.jobs.values())


def _settle(sim: Sim) -> None:
    """Good weather: nothing is held, every node is new or back, time passes."""
    sim.release(*HOLDABLE)
    for name, agent in sorted(sim.agents.items()):
        if agent.is_frozen:
            sim.thaw(name)
    sim.return_all()
    sim.pass_time(40.0, tick_s=1.0)
    for name in "abc":
        sim.left(name)
        sim.join(name)
    sim.pass_time(40.0, tick_s=1.0)


def _end(sim: Sim, name: str) -> None:
    if not sim.job(name).is_over:
        assert sim.job(name).phase == "RUNNING", sim.job(name)
        sim.finish(name)
        sim.pass_time(20.0, tick_s=1.0)
