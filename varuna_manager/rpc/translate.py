"""Between protobuf and the core's records; pure."""

import math
import re
from collections.abc import Iterable
from typing import TypedDict

from varuna_manager.core import actions, events
from varuna_manager.rows import StepRow
from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Vault, Version
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.generation import Cause, Endpoint, GenerationKind, Running
from varuna_runtime.spec.profile import Profile
from varuna_runtime.wire.v1 import agent_pb2, common_pb2

_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_MAX_SLOTS = 1024
_MAX_TEXT = 64 * 2**10
_MAX_NOTE = 500  # characters of what is one line when it is shown

_CAUSES = {common_pb2.FailureCause.Value(cause.name): cause for cause in Cause}
_KINDS = {GenerationKind.TRAIN: common_pb2.TRAIN, GenerationKind.PROFILE: common_pb2.PROFILE}


class _Head(TypedDict):
    at_s: float
    job: str
    generation: int
    rank: int


def joined(hello: agent_pb2.Hello, at_s: float) -> events.NodeJoined:
    """Return the event of an agent's first message; InvalidInput when it is not a proper one."""
    if not _NODE.fullmatch(hello.node):
        raise InvalidInput(f"node: seen {hello.node!r}, wanted letters, digits, dots and dashes, at most 128")
    if not hello.incarnation or len(hello.incarnation) > 128:
        raise InvalidInput("incarnation: wanted a fresh id of 1 to 128 characters")
    if not 1 <= hello.slots <= _MAX_SLOTS:
        raise InvalidInput(f"slots: seen {hello.slots}, wanted 1 to {_MAX_SLOTS}")
    if hello.memory_bytes <= 0:
        raise InvalidInput(f"memory_bytes: seen {hello.memory_bytes}, wanted the bytes of one slot")
    if len(hello.device_kind) > _MAX_NOTE or len(hello.host) > _MAX_NOTE:
        raise InvalidInput(f"device_kind and host: wanted at most {_MAX_NOTE} characters each")
    return events.NodeJoined(
        at_s=at_s,
        node=hello.node,
        incarnation=hello.incarnation,
        slots=hello.slots,
        device_kind=hello.device_kind,
        memory_bytes=hello.memory_bytes,
        host=hello.host,
        notices=hello.notices[:_MAX_NOTE],
        pid=hello.pid,
        running=running(hello.running),
        vault_port=hello.vault_port if 0 < hello.vault_port < 2**16 else 0,
    )


def running(found: Iterable[agent_pb2.Running]) -> tuple[Running, ...]:
    """Return what an agent says it runs."""
    return tuple(Running(job=r.job, generation=r.generation, ranks=tuple(sorted(r.ranks))) for r in found)


def notice(report: agent_pb2.NoticeReport, node: str, incarnation: str, at_s: float) -> events.Durable:
    """Return the event of a notice given or withdrawn, or of a hint; a deadline is on our clock."""
    if report.is_hint:
        detail = report.detail[:_MAX_NOTE] or "the node is at risk"
        return events.NoticeHinted(
            at_s=at_s, node=node, incarnation=incarnation, source=report.source[:_MAX_NOTE], detail=detail
        )
    if report.cancelled:
        return events.NoticeCancelled(at_s=at_s, node=node, incarnation=incarnation)
    left_s = report.seconds_left if 0.0 <= report.seconds_left < math.inf else 0.0  # no number: any moment
    return events.NoticeReceived(
        at_s=at_s,
        node=node,
        incarnation=incarnation,
        deadline_s=at_s + left_s,
        source=report.source[:_MAX_NOTE],
        is_urgent=report.is_urgent,
    )


def notices_changed(
    report: agent_pb2.NoticesHealth, node: str, incarnation: str, at_s: float
) -> events.NoticesChanged:
    """Return the event of a source of notices that answers again, or no longer."""
    state = report.state[:_MAX_NOTE] or "unknown"
    return events.NoticesChanged(at_s=at_s, node=node, incarnation=incarnation, notices=state)


def rank_events(report: agent_pb2.RankReport, at_s: float) -> tuple[events.AnyEvent, ...]:
    """Return what a rank's report means: one event, and the profile before it if it carries one."""
    head = _Head(at_s=at_s, job=report.job, generation=report.generation, rank=report.rank)
    match report.WhichOneof("report"):
        case "prepared":
            return (_prepared(head, report.prepared),)
        case "ready":
            return (events.RankReady(**head),)
        case "active":
            return (events.RankActive(**head, step=report.active.step),)
        case "durable":
            step = report.durable.step
            return (events.StepDurable(at_s=at_s, job=report.job, generation=report.generation, step=step),)
        case "drained":
            return (events.RankDrained(**head, step=report.drained.step, is_kept=report.drained.kept),)
        case "kept":
            return (events.GenerationKept(**head, step=report.kept.step),)
        case "save_failed":
            reason = report.save_failed.reason[:_MAX_NOTE] or "no reason given"
            return (events.SaveFailed(**head, step=report.save_failed.step, reason=reason),)
        case "peer_silent":
            told = report.peer_silent
            return (events.PeerSilent(**head, peer=told.rank, silent_s=told.silent_s),)
        case "finished":
            return _finished(head, report.finished)
        case "failed":
            return (_failed(head, report.failed),)
        case _:
            raise InvalidInput(f"rank {report.rank} of {report.job} sent an empty report")


def steps(report: agent_pb2.StepReport, at_s: float) -> tuple[events.StepSeen, ...]:
    """Return the committed steps of a report."""
    rank = report.rank if report.HasField("rank") else None
    return tuple(_step(step, report.job, report.generation, at_s, rank) for step in report.steps)


def earlier_steps(report: agent_pb2.RankReport, at_s: float) -> tuple[StepRow, ...]:
    """Return the steps a rank tells again out of its checkpoint; those already recorded are known by key."""
    told = report.active.earlier
    return tuple(step_row(_step(c.step, report.job, c.generation, at_s)) for c in told if c.generation)


def _step(
    step: common_pb2.StepDone, job: str, generation: int, at_s: float, rank: int | None = None
) -> events.StepSeen:
    return events.StepSeen(
        at_s=at_s,
        job=job,
        generation=generation,
        step=step.step,
        loss=step.loss,
        samples=step.samples,
        step_s=step.step_s,
        loss_hex=step.loss_hex,
        rank=rank,
        busy_s=step.busy_s if math.isfinite(step.busy_s) else 0.0,
        busy_samples=step.busy_samples,
        recoverable=step.recoverable if step.HasField("recoverable") else None,
    )


def step_row(seen: events.StepSeen) -> StepRow:
    """Return the row that keeps a committed step."""
    return StepRow(
        job=seen.job,
        step=seen.step,
        generation=seen.generation,
        loss_hex=seen.loss_hex,
        loss=seen.loss,
        samples=seen.samples,
        step_s=seen.step_s,
        at_s=seen.at_s,
    )


def start(
    action: actions.StartRanks,
    *,
    store_url: str,
    secrets: dict[str, str],
    generation_secret: str,
    copies_secret: str,
) -> agent_pb2.ManagerMessage:
    """Return the Start message of one node."""
    return agent_pb2.ManagerMessage(
        start=agent_pb2.Start(
            job=action.job,
            generation=action.generation,
            kind=_KINDS[action.kind],
            plan_json=canonical.dumps(action.plan),
            job_json=canonical.dumps(action.spec),
            model_json=canonical.dumps(action.model),
            ranks=action.ranks,
            bundle=action.bundle,
            store_url=action.spec.checkpoint.store or store_url,
            bundle_store_url=store_url,
            resume_step=action.resume_step,
            secrets=secrets,
            generation_secret=generation_secret,
            copies_secret=copies_secret,
            vaults=[_wire_vault(vault) for vault in action.vaults],
            buddies=[
                agent_pb2.Buddies(rank=rank, vaults=[_wire_vault(vault) for vault in vaults])
                for rank, vaults in sorted(action.buddies.items())
            ],
            unmended_s=action.unmended_s,
        )
    )


def warm(action: actions.WarmNode, *, store_url: str, secrets: dict[str, str]) -> agent_pb2.ManagerMessage:
    """Return the Warm message of one node."""
    return agent_pb2.ManagerMessage(
        warm=agent_pb2.Warm(
            job=action.job,
            job_json=canonical.dumps(action.spec),
            bundle=action.bundle,
            bundle_store_url=store_url,
            secrets=secrets,
        )
    )


def warmed(report: agent_pb2.WarmReport, node: str, incarnation: str, at_s: float) -> events.NodeWarmed:
    """Return the event of a launcher that is ready, or is not."""
    reason = report.reason[:_MAX_TEXT] or ("" if report.ok else "no reason given")
    return events.NodeWarmed(
        at_s=at_s, job=report.job, node=node, incarnation=incarnation, ok=report.ok, reason=reason
    )


Command = (
    actions.ActivateRanks
    | actions.DrainRanks
    | actions.AbortRanks
    | actions.RetireCopies
    | actions.ForgetJob
    | actions.ReleaseNode
    | actions.FenceNode
)


def command(action: Command) -> agent_pb2.ManagerMessage:
    """Return the message of an action that needs nothing but itself."""
    match action:
        case actions.ActivateRanks(job=job, generation=generation):
            endpoints = [common_pb2.Endpoint(rank=e.rank, host=e.host, port=e.port) for e in action.endpoints]
            resume = None if action.resume is None else _wire_version(action.resume)
            body = agent_pb2.Activate(job=job, generation=generation, endpoints=endpoints, resume=resume)
            return agent_pb2.ManagerMessage(activate=body)
        case actions.DrainRanks(job=job, generation=generation, within_s=within_s, reason=reason):
            drain = agent_pb2.Drain(
                job=job, generation=generation, within_s=within_s, reason=reason, persist=action.persist
            )
            return agent_pb2.ManagerMessage(drain=drain)
        case actions.AbortRanks(job=job, generation=generation, reason=reason):
            abort = agent_pb2.Abort(job=job, generation=generation, reason=reason)
            return agent_pb2.ManagerMessage(abort=abort)
        case actions.RetireCopies(job=job, generation=generation):
            return agent_pb2.ManagerMessage(retire=agent_pb2.Retire(job=job, generation=generation))
        case actions.ForgetJob(job=job):
            return agent_pb2.ManagerMessage(forget=agent_pb2.Forget(job=job))
        case actions.ReleaseNode(reason=reason):
            return agent_pb2.ManagerMessage(leave=agent_pb2.Leave(reason=reason))
        case actions.FenceNode(reason=reason):
            return agent_pb2.ManagerMessage(fenced=agent_pb2.Fenced(reason=reason))


def _prepared(head: _Head, report: agent_pb2.Prepared) -> events.RankPrepared:
    told = report.endpoint
    endpoint = Endpoint(rank=head["rank"], host=told.host[:_MAX_NOTE], port=told.port)
    return events.RankPrepared(
        **head,
        plan_hash=report.plan_hash[:_MAX_NOTE],
        endpoint=endpoint,
        resume_step=report.resume_step,
        loaded=_version(report.loaded) if report.HasField("loaded") else None,
        loadable=tuple(_version(found) for found in report.loadable),
    )


def _version(version: common_pb2.Version) -> Version:
    return Version(step=version.step, generation=version.generation)


def _wire_version(version: Version) -> common_pb2.Version:
    return common_pb2.Version(step=version.step, generation=version.generation)


def _wire_vault(vault: Vault) -> common_pb2.Vault:
    return common_pb2.Vault(node=vault.node, host=vault.host, port=vault.port)


def _finished(head: _Head, report: common_pb2.Finished) -> tuple[events.Durable, ...]:
    finished = events.RankFinished(**head, step=report.step, weights_sha256=report.weights_sha256[:_MAX_NOTE])
    if not report.profile_json:
        return (finished,)
    try:
        profile = canonical.loads(Profile, report.profile_json)
    except InvalidInput as err:
        message = "the profile it measured cannot be read"
        cause = Cause.START_FAILED
        return (events.RankFailed(**head, cause=cause, message=message, detail=str(err)[:_MAX_TEXT]),)
    return (events.ProfileReady(at_s=head["at_s"], job=head["job"], profile=profile), finished)


def _failed(head: _Head, report: common_pb2.Failure) -> events.RankFailed:
    return events.RankFailed(
        **head,
        cause=_CAUSES.get(report.cause, Cause.WORKER_CRASH),
        message=report.message[:_MAX_TEXT],
        detail=report.detail[:_MAX_TEXT],
        peer_rank=report.peer_rank if report.HasField("peer_rank") else None,
    )
