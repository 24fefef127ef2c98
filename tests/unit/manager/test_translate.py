"""Between the wire and the core nothing is lost and nothing odd gets in."""

import pytest

from tests.support.core_sim import Sim
from tests.support.fake_agent import profile_of
from tests.support.manager_process import model, submission
from varuna_manager.core import actions, events
from varuna_manager.core.views import node_views
from varuna_manager.rpc import shown, translate
from varuna_runtime.agent import codec
from varuna_runtime.agent import events as agent_events
from varuna_runtime.agent import records as r
from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Vault, Version
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.generation import Cause, Endpoint, GenerationKind, Running
from varuna_runtime.spec.layout import BatchShape, Layout, Plan, ScheduleKind, Slot, Stage
from varuna_runtime.wire.v1 import agent_pb2, common_pb2, worker_pb2

HEAD = {"at_s": 5.0, "job": "j", "generation": 2, "rank": 1}
VAULT = Vault(node="m", host="h", port=7)
HELLO = {"node": "n-1", "incarnation": "i", "slots": 2, "memory_bytes": 10, "device_kind": "cpu:x"}


def ranks(**body: object) -> tuple[events.Durable, ...]:
    report = agent_pb2.RankReport(job="j", generation=2, rank=1, **body)  # type: ignore[arg-type]
    return translate.rank_events(report, 5.0)


@pytest.mark.parametrize(
    ("body", "event"),
    [
        ({"ready": agent_pb2.Ready()}, events.RankReady(**HEAD)),
        ({"active": agent_pb2.Active(step=3)}, events.RankActive(**HEAD, step=3)),
        ({"drained": common_pb2.Drained(step=4)}, events.RankDrained(**HEAD, step=4)),
        (
            {"drained": common_pb2.Drained(step=4, kept=True)},
            events.RankDrained(**HEAD, step=4, is_kept=True),
        ),
        ({"kept": common_pb2.Kept(step=4)}, events.GenerationKept(**HEAD, step=4)),
        (
            {"save_failed": common_pb2.SaveFailed(step=4, reason="disk full")},
            events.SaveFailed(**HEAD, step=4, reason="disk full"),
        ),
        (
            {"durable": common_pb2.Durable(step=4)},
            events.StepDurable(at_s=5.0, job="j", generation=2, step=4),
        ),
        (
            {"finished": common_pb2.Finished(step=9, weights_sha256="w")},
            events.RankFinished(**HEAD, step=9, weights_sha256="w"),
        ),
        (
            {
                "prepared": agent_pb2.Prepared(
                    plan_hash="p", resume_step=3, endpoint=common_pb2.Endpoint(rank=1, host="h", port=7)
                )
            },
            events.RankPrepared(
                **HEAD,
                plan_hash="p",
                endpoint=Endpoint(rank=1, host="h", port=7),
                resume_step=3,
            ),
        ),
    ],
)
def test_a_report_is_the_event_of_its_kind(body: dict[str, object], event: events.Durable) -> None:
    assert ranks(**body) == (event,)


def test_a_step_tells_whose_ops_took_how_long() -> None:
    done = r.StepDone(
        step=3,
        loss_hex=(0.5).hex(),
        loss=0.5,
        weight=1.0,
        samples=8,
        step_s=0.2,
        grad_norm=None,
        learning_rate=None,
        loss_scale=None,
        is_skipped=False,
        busy_s=0.125,
        busy_samples=8,
    )
    sent = codec.step_report(r.RankKey(job="j", generation=2, rank=0), [done]).steps
    (seen,) = translate.steps(sent, 5.0)
    assert (seen.rank, seen.busy_s, seen.busy_samples) == (0, 0.125, 8)


def test_a_step_of_an_older_agent_is_of_no_known_rank() -> None:
    odd = common_pb2.StepDone(step=1, busy_s=float("nan"))
    (seen,) = translate.steps(agent_pb2.StepReport(job="j", generation=2, steps=[odd]), 5.0)
    assert (seen.rank, seen.busy_s) == (None, 0.0)


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_survives_the_wire(cause: Cause) -> None:
    wire = common_pb2.FailureCause.Value(cause.value.upper())
    (failed,) = ranks(failed=common_pb2.Failure(cause=wire, message="m", detail="d", peer_rank=0))
    assert isinstance(failed, events.RankFailed)
    assert (failed.cause, failed.message, failed.detail, failed.peer_rank) == (cause, "m", "d", 0)


def test_a_cause_this_version_does_not_know_counts_as_a_crash() -> None:
    (failed,) = ranks(failed=common_pb2.Failure())
    assert isinstance(failed, events.RankFailed)
    assert failed.cause is Cause.WORKER_CRASH


def test_a_traceback_is_bounded() -> None:
    (failed,) = ranks(failed=common_pb2.Failure(detail="x" * 10**6))
    assert isinstance(failed, events.RankFailed)
    assert len(failed.detail) == 64 * 2**10


def test_a_measured_profile_comes_before_its_rank_is_finished() -> None:
    profile = profile_of(model())
    ready, finished = ranks(finished=common_pb2.Finished(profile_json=canonical.dumps(profile)))
    assert ready == events.ProfileReady(at_s=5.0, job="j", profile=profile)
    assert isinstance(finished, events.RankFinished)


def test_an_unreadable_profile_is_a_failed_start_with_the_reason() -> None:
    (failed,) = ranks(finished=common_pb2.Finished(profile_json=b"{"))
    assert isinstance(failed, events.RankFailed)
    assert failed.cause is Cause.START_FAILED
    assert "Profile" in failed.detail


def test_an_empty_report_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty report"):
        ranks()


def test_a_notice_is_a_deadline_on_our_clock_and_can_be_withdrawn() -> None:
    given = translate.notice(agent_pb2.NoticeReport(seconds_left=30, source="file"), "n", "i", 5.0)
    assert given == events.NoticeReceived(at_s=5.0, node="n", incarnation="i", deadline_s=35.0, source="file")
    urgent = translate.notice(agent_pb2.NoticeReport(seconds_left=30, is_urgent=True), "n", "i", 5.0)
    assert isinstance(urgent, events.NoticeReceived)
    assert urgent.is_urgent
    withdrawn = translate.notice(agent_pb2.NoticeReport(cancelled=True), "n", "i", 5.0)
    assert withdrawn == events.NoticeCancelled(at_s=5.0, node="n", incarnation="i")


@pytest.mark.parametrize("left_s", [-1.0, float("nan"), float("inf")])
def test_a_notice_without_a_sensible_time_is_for_now(left_s: float) -> None:
    given = translate.notice(agent_pb2.NoticeReport(seconds_left=left_s, source="s" * 10**6), "n", "i", 5.0)
    assert isinstance(given, events.NoticeReceived)
    assert (given.deadline_s, len(given.source)) == (5.0, 500)


@pytest.mark.parametrize("field", ["device_kind", "host"])
def test_a_hello_with_a_novel_in_it_is_refused(field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        translate.joined(agent_pb2.Hello(**HELLO | {field: "x" * 501}), 5.0)  # type: ignore[arg-type]


def test_a_hint_is_told_and_moves_nothing() -> None:
    report = agent_pb2.NoticeReport(is_hint=True, source="aws", detail="rebalance recommended")
    assert translate.notice(report, "n", "i", 5.0) == events.NoticeHinted(
        at_s=5.0, node="n", incarnation="i", source="aws", detail="rebalance recommended"
    )


def test_the_health_of_a_source_of_notices_is_bounded_text() -> None:
    changed = translate.notices_changed(agent_pb2.NoticesHealth(state="unavailable " * 100), "n", "i", 5.0)
    assert (changed.node, len(changed.notices)) == ("n", 500)
    assert translate.notices_changed(agent_pb2.NoticesHealth(), "n", "i", 5.0).notices == "unknown"


def test_a_hello_is_a_join() -> None:
    running = [agent_pb2.Running(job="j", generation=2, ranks=[1, 0])]
    joined = translate.joined(agent_pb2.Hello(**HELLO, running=running), 5.0)  # type: ignore[arg-type]
    assert (joined.node, joined.slots, joined.device_kind) == ("n-1", 2, "cpu:x")
    assert joined.running == (Running(job="j", generation=2, ranks=(0, 1)),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node": "../x"}, "node: seen"),
        ({"node": ""}, "node: seen"),
        ({"incarnation": ""}, "incarnation"),
        ({"incarnation": "i" * 129}, "incarnation"),
        ({"slots": 0}, "slots: seen 0"),
        ({"slots": 2000}, "slots: seen 2000"),
        ({"memory_bytes": 0}, "memory_bytes: seen 0"),
    ],
)
def test_an_improper_hello_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        translate.joined(agent_pb2.Hello(**{**HELLO, **change}), 5.0)  # type: ignore[arg-type]


def test_a_start_carries_everything_a_node_needs() -> None:
    plan = Plan(
        layout=Layout(stages=1, replicas=1),
        stages=(Stage(first=0, last=2, recompute=False),),
        schedule=ScheduleKind.GPIPE,
        batch=BatchShape(batch_size=8, micro_batch_size=4, virtual_replicas=1),
        placement=(Slot(node="n", index=0),),
        predicted_step_s=0.1,
    )
    action = actions.StartRanks(
        node="n",
        incarnation="i",
        job="j",
        generation=3,
        kind=GenerationKind.TRAIN,
        plan=plan,
        spec=submission("b").spec,
        model=model(),
        bundle="b",
        ranks=(0,),
        resume_step=None,
        vaults=(VAULT,),
        buddies={0: (VAULT,)},
        unmended_s=900.0,
    )
    start = translate.start(
        action, store_url="file:///s", secrets={"A": "x"}, generation_secret="g", copies_secret="c"
    ).start
    assert canonical.loads(Plan, start.plan_json).hash() == plan.hash()
    assert (start.kind, list(start.ranks), start.bundle) == (common_pb2.TRAIN, [0], "b")
    assert (start.store_url, start.bundle_store_url) == ("file:///s", "file:///s")
    assert not start.HasField("resume_step")
    assert (dict(start.secrets), start.generation_secret) == ({"A": "x"}, "g")
    vault = common_pb2.Vault(node="m", host="h", port=7)
    assert (list(start.vaults), start.copies_secret) == ([vault], "c")
    assert list(start.buddies) == [agent_pb2.Buddies(rank=0, vaults=[vault])]
    assert start.unmended_s == 900.0


@pytest.mark.parametrize(
    ("action", "body"),
    [
        (actions.ForgetJob(node="n", incarnation="i", job="j"), "forget"),
        (actions.ReleaseNode(node="n", incarnation="i", reason="r"), "leave"),
        (actions.FenceNode(node="n", incarnation="i", reason="r"), "fenced"),
        (actions.AbortRanks(node="n", incarnation="i", job="j", generation=1, reason="r"), "abort"),
        (actions.ActivateRanks(node="n", incarnation="i", job="j", generation=1, endpoints=()), "activate"),
        (
            actions.DrainRanks(node="n", incarnation="i", job="j", generation=1, within_s=2.0, reason="r"),
            "drain",
        ),
    ],
)
def test_an_action_is_the_message_of_its_kind(action: translate.Command, body: str) -> None:
    assert translate.command(action).WhichOneof("body") == body


def test_a_warm_carries_what_a_launcher_needs_and_its_answer_comes_back() -> None:
    spec = submission("b").spec
    action = actions.WarmNode(node="n", incarnation="i", job="j", spec=spec, bundle="b" * 64)
    warm = translate.warm(action, store_url="file:///s", secrets={"KEY": "v"}).warm
    assert (warm.job, warm.bundle, warm.bundle_store_url) == ("j", "b" * 64, "file:///s")
    assert canonical.loads(type(spec), warm.job_json) == spec
    assert dict(warm.secrets) == {"KEY": "v"}
    report = agent_pb2.WarmReport(job="j", ok=False, reason="no module named data")
    assert translate.warmed(report, "n", "i", 5.0) == events.NodeWarmed(
        at_s=5.0, job="j", node="n", incarnation="i", ok=False, reason="no module named data"
    )


def test_a_launcher_that_is_not_ready_has_a_reason() -> None:
    assert translate.warmed(agent_pb2.WarmReport(job="j"), "n", "i", 5.0).reason == "no reason given"


def test_a_node_keeps_its_pool_when_the_provider_lists_it_no_more() -> None:
    sim = Sim()
    sim.join("a")
    place = events.Place(node="a", domain="z1")
    sim.feed(events.NodesPlaced(at_s=sim.now_s, pool="p", places=(place,), price_per_hour=None))
    sim.left("a")
    (view,) = node_views(sim.state, sim.now_s)
    assert shown.node_status(view, "").pool == "p"
    assert shown.node_status(view, "q").pool == "q"


NEW = Version(step=9, generation=2)
OLD = Version(step=5, generation=0)


def test_what_a_rank_can_load_comes_through_agent_and_wire() -> None:
    reply = worker_pb2.PrepareReply(
        plan_hash="p",
        resume_step=9,
        loaded=common_pb2.Version(step=9, generation=2),
        loadable=[common_pb2.Version(step=9, generation=2), common_pb2.Version(step=5)],
    )
    sent = codec.rank_report(r.RankKey(job="j", generation=3, rank=1), codec.prepared(reply)).rank
    (heard,) = translate.rank_events(sent, 5.0)
    assert isinstance(heard, events.RankPrepared)
    assert (heard.loaded, heard.loadable) == (NEW, (NEW, OLD))


def test_what_ranks_start_from_comes_through_wire_and_agent() -> None:
    action = actions.ActivateRanks(node="n", incarnation="i", job="j", generation=3, endpoints=(), resume=NEW)
    heard = codec.command(translate.command(action))
    assert isinstance(heard, agent_events.ActivateReceived)
    request = codec.activate_request(3, heard.endpoints, heard.resume)
    assert (request.resume.step, request.resume.generation) == (9, 2)


@pytest.mark.parametrize("persist", [True, False])
def test_how_a_drain_ends_comes_through_wire_and_agent(persist: bool) -> None:
    action = actions.DrainRanks(
        node="n", incarnation="i", job="j", generation=3, within_s=1.0, reason="r", persist=persist
    )
    heard = codec.command(translate.command(action))
    assert isinstance(heard, agent_events.DrainReceived)
    assert heard.persist is persist


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ({"kept": common_pb2.Kept(step=4)}, r.Kept(step=4)),
        ({"drained": common_pb2.Drained(step=4, kept=True)}, r.Drained(step=4, is_kept=True)),
        (
            {"save_failed": common_pb2.SaveFailed(step=4, reason="disk full")},
            r.SaveFailed(step=4, reason="disk full"),
        ),
    ],
)
def test_what_a_worker_says_of_copies_and_saves_is_passed_on(
    said: dict[str, object], heard: r.RankReport
) -> None:
    key = r.RankKey(job="j", generation=2, rank=1)
    event = codec.progress(key, worker_pb2.WorkerProgress(**said))  # type: ignore[arg-type]
    assert event == agent_events.RankReported(key=key, report=heard)
    (field,) = said
    assert getattr(codec.rank_report(key, heard).rank, field) == said[field]


def test_nodes_without_copies_of_older_generations_are_told_so() -> None:
    action = actions.RetireCopies(node="n", incarnation="i", job="j", generation=4)
    assert translate.command(action).retire == agent_pb2.Retire(job="j", generation=4)


def test_a_port_that_is_none_means_no_vault() -> None:
    ports = [translate.joined(agent_pb2.Hello(**HELLO, vault_port=p), 5.0).vault_port for p in (7, -1, 2**16)]
    assert ports == [7, 0, 0]
