"""Between the agent's records and protobuf, both ways; decides nothing."""

from typing import assert_never

from varuna_runtime.agent import events as e
from varuna_runtime.agent import records as r
from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Vault, Version
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.manifest import EvaluationRecord, Figure
from varuna_runtime.wire.v1 import agent_pb2, common_pb2, worker_pb2

_KINDS = {
    common_pb2.GenerationKind.TRAIN: r.GenerationKind.TRAIN,
    common_pb2.GenerationKind.PROFILE: r.GenerationKind.PROFILE,
}
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}

# --- from the manager ----------------------------------------------------------------------------------


def command(message: agent_pb2.ManagerMessage) -> e.Event | None:
    """Return the supervisor's event of a command; None if the message is none. Raises InvalidInput."""
    match message.WhichOneof("body"):
        case "start":
            return e.StartReceived(order=start_order(message.start))
        case "activate":
            return _activate(message.activate)
        case "drain":
            body = message.drain
            return e.DrainReceived(
                job=body.job, generation=body.generation, within_s=body.within_s, persist=body.persist
            )
        case "abort":
            abort = message.abort
            return e.AbortReceived(job=abort.job, generation=abort.generation, reason=abort.reason)
        case "warm":
            return e.WarmReceived(order=launcher_order(message.warm))
        case "forget":
            return e.ForgetReceived(job=message.forget.job)
        case _:
            return None


def _activate(body: agent_pb2.Activate) -> e.ActivateReceived:
    return e.ActivateReceived(
        job=body.job,
        generation=body.generation,
        endpoints=tuple(_endpoint(item) for item in body.endpoints),
        resume=_version(body.resume) if body.HasField("resume") else None,
    )


def start_order(start: agent_pb2.Start) -> r.StartOrder:
    """Return the validated order; raises InvalidInput."""
    if start.kind not in _KINDS or not start.ranks:
        raise InvalidInput(f"Start of {start.job} generation {start.generation} names no kind or no ranks")
    return r.StartOrder(
        job=start.job,
        generation=start.generation,
        kind=_KINDS[start.kind],
        spec=canonical.loads(JobSpec, start.job_json),
        job_json=start.job_json,
        plan_json=start.plan_json,
        model_json=start.model_json,
        ranks=tuple(start.ranks),
        bundle=start.bundle,
        store_url=start.store_url,
        bundle_store_url=start.bundle_store_url,
        resume_step=start.resume_step if start.HasField("resume_step") else None,
        secrets=dict(start.secrets),
        generation_secret=start.generation_secret,
        copies_secret=start.copies_secret,
        vaults=tuple(_vault(vault) for vault in start.vaults),
        buddies={item.rank: tuple(_vault(vault) for vault in item.vaults) for item in start.buddies},
        unmended_s=start.unmended_s,
    )


def launcher_order(warm: agent_pb2.Warm) -> r.LauncherOrder:
    """Return the validated order; raises InvalidInput."""
    return r.LauncherOrder(
        job=warm.job,
        spec=canonical.loads(JobSpec, warm.job_json),
        job_json=warm.job_json,
        bundle=warm.bundle,
        bundle_store_url=warm.bundle_store_url,
        secrets=dict(warm.secrets),
    )


# --- to the manager ------------------------------------------------------------------------------------


def running(items: tuple[r.Running, ...]) -> list[agent_pb2.Running]:
    """Return what runs here."""
    return [agent_pb2.Running(job=i.job, generation=i.generation, ranks=i.ranks) for i in items]


def rank_report(key: r.RankKey, report: r.RankReport) -> agent_pb2.AgentMessage:
    """Return a message without seq."""
    body = agent_pb2.RankReport(job=key.job, generation=key.generation, rank=key.rank)
    match report:
        case r.Prepared():
            body.prepared.CopyFrom(
                agent_pb2.Prepared(
                    plan_hash=report.plan_hash,
                    endpoint=_wire_endpoint(report.endpoint),
                    resume_step=report.resume_step,
                    loaded=None if report.loaded is None else _wire_version(report.loaded),
                    loadable=[_wire_version(version) for version in report.loadable],
                )
            )
        case r.Ready():
            body.ready.SetInParent()
        case r.Active():
            earlier = [
                common_pb2.CommittedStep(generation=c.generation, step=_wire_step(c.step))
                for c in report.earlier
            ]
            evaluations = [_wire_evaluation(evaluated) for evaluated in report.evaluations]
            body.active.CopyFrom(agent_pb2.Active(step=report.step, earlier=earlier, evaluations=evaluations))
        case r.Evaluated():
            body.evaluation.CopyFrom(_wire_evaluation(report))
        case r.Durable():
            body.durable.CopyFrom(common_pb2.Durable(step=report.step, manifest_key=report.manifest_key))
        case r.Drained():
            body.drained.CopyFrom(common_pb2.Drained(step=report.step, kept=report.is_kept))
        case r.Kept():
            body.kept.CopyFrom(common_pb2.Kept(step=report.step))
        case r.PeerSilent():
            told = common_pb2.PeerSilent(rank=report.rank, silent_s=report.silent_s)
            body.peer_silent.CopyFrom(told)
        case r.SaveFailed():
            body.save_failed.CopyFrom(common_pb2.SaveFailed(step=report.step, reason=report.reason))
        case r.Finished():
            body.finished.CopyFrom(
                common_pb2.Finished(
                    step=report.step, weights_sha256=report.weights_sha256, profile_json=report.profile_json
                )
            )
        case r.Failed():
            body.failed.CopyFrom(_wire_failure(report))
        case _:
            assert_never(report)
    return agent_pb2.AgentMessage(rank=body)


def step_report(key: r.RankKey, steps: list[r.StepDone]) -> agent_pb2.AgentMessage:
    """Return a message without seq."""
    done = [_wire_step(step) for step in steps]
    report = agent_pb2.StepReport(job=key.job, generation=key.generation, steps=done, rank=key.rank)
    return agent_pb2.AgentMessage(steps=report)


def _wire_step(step: r.StepDone) -> common_pb2.StepDone:
    return common_pb2.StepDone(
        step=step.step,
        loss_hex=step.loss_hex,
        loss=step.loss,
        weight=step.weight,
        samples=step.samples,
        step_s=step.step_s,
        grad_norm=step.grad_norm,
        learning_rate=step.learning_rate,
        loss_scale=step.loss_scale,
        skipped=step.is_skipped,
        busy_s=step.busy_s,
        busy_samples=step.busy_samples,
        recoverable=step.recoverable,
    )


def _wire_evaluation(evaluated: r.Evaluated) -> common_pb2.EvaluationDone:
    record = evaluated.record
    return common_pb2.EvaluationDone(
        step=record.step,
        generation=record.generation,
        samples=record.samples,
        evaluation_s=evaluated.evaluation_s,
        figures=[
            common_pb2.Figure(name=f.name, value_hex=f.value_hex, weight=f.weight) for f in record.figures
        ],
    )


def gone(job: str, generation: int) -> agent_pb2.AgentMessage:
    """Return a message without seq."""
    return agent_pb2.AgentMessage(gone=agent_pb2.GenerationGone(job=job, generation=generation))


def warm_report(job: str, reason: str) -> agent_pb2.AgentMessage:
    """Return a message without seq."""
    return agent_pb2.AgentMessage(warm=agent_pb2.WarmReport(job=job, ok=not reason, reason=reason))


# --- to and from a worker ------------------------------------------------------------------------------


def prepare_request(
    key: r.RankKey, order: r.StartOrder, host: str, vault_socket: str
) -> worker_pb2.PrepareRequest:
    """Return the worker's share of a Start; `vault_socket` is empty where no copies are kept."""
    return worker_pb2.PrepareRequest(
        job=key.job,
        generation=key.generation,
        rank=key.rank,
        kind=_KIND_NUMBERS[order.kind],
        plan_json=order.plan_json,
        job_json=order.job_json,
        model_json=order.model_json,
        store_url=order.store_url,
        resume_step=order.resume_step,
        host=host,
        generation_secret=order.generation_secret,
        vault_socket=vault_socket if order.copies_secret else "",
        copies_secret=order.copies_secret,
        vaults=[_wire_vault(vault) for vault in order.vaults],
        buddies=[_wire_vault(vault) for vault in order.buddies.get(key.rank, ())],
        unmended_s=order.unmended_s,
    )


def activate_request(
    generation: int, endpoints: tuple[r.Endpoint, ...], resume: Version | None
) -> worker_pb2.ActivateRequest:
    """Return the endpoints of every rank and the version they start from."""
    return worker_pb2.ActivateRequest(
        generation=generation,
        endpoints=[_wire_endpoint(item) for item in endpoints],
        resume=None if resume is None else _wire_version(resume),
    )


def prepared(reply: worker_pb2.PrepareReply) -> r.Prepared:
    """Return the report that the reply to Prepare is."""
    return r.Prepared(
        plan_hash=reply.plan_hash,
        endpoint=_endpoint(reply.endpoint),
        resume_step=reply.resume_step,
        loaded=_version(reply.loaded) if reply.HasField("loaded") else None,
        loadable=tuple(_version(version) for version in reply.loadable),
    )


def progress(key: r.RankKey, message: worker_pb2.WorkerProgress) -> e.Event | None:
    """Return what the worker says; None for a kind this agent does not know."""
    match message.WhichOneof("body"):
        case "beat":
            return e.RankBeat(key=key, in_step_s=message.beat.in_step_s)
        case "step":
            return e.RankStepped(key=key, step=_step(message.step))
        case _:
            report = _report(message)
            return None if report is None else e.RankReported(key=key, report=report)


def _report(message: worker_pb2.WorkerProgress) -> r.RankReport | None:
    match message.WhichOneof("body"):
        case "ready":
            return r.Ready()
        case "active":
            active = message.active
            earlier = (r.CommittedStep(generation=c.generation, step=_step(c.step)) for c in active.earlier)
            evaluations = tuple(_evaluated(evaluation) for evaluation in active.evaluations)
            return r.Active(step=active.step, earlier=tuple(earlier), evaluations=evaluations)
        case "evaluation":
            return _evaluated(message.evaluation)
        case "durable":
            return r.Durable(step=message.durable.step, manifest_key=message.durable.manifest_key)
        case "drained":
            return r.Drained(step=message.drained.step, is_kept=message.drained.kept)
        case "kept":
            return r.Kept(step=message.kept.step)
        case "peer_silent":
            return r.PeerSilent(rank=message.peer_silent.rank, silent_s=message.peer_silent.silent_s)
        case "save_failed":
            return r.SaveFailed(step=message.save_failed.step, reason=message.save_failed.reason)
        case "finished":
            done = message.finished
            return r.Finished(
                step=done.step, weights_sha256=done.weights_sha256, profile_json=done.profile_json
            )
        case "failed":
            return _failure(message.failed)
        case _:
            return None


def _step(step: common_pb2.StepDone) -> r.StepDone:
    return r.StepDone(
        step=step.step,
        loss_hex=step.loss_hex,
        loss=step.loss,
        weight=step.weight,
        samples=step.samples,
        step_s=step.step_s,
        grad_norm=step.grad_norm if step.HasField("grad_norm") else None,
        learning_rate=step.learning_rate if step.HasField("learning_rate") else None,
        loss_scale=step.loss_scale if step.HasField("loss_scale") else None,
        is_skipped=step.skipped,
        busy_s=step.busy_s,
        busy_samples=step.busy_samples,
        recoverable=step.recoverable if step.HasField("recoverable") else None,
    )


def _evaluated(done: common_pb2.EvaluationDone) -> r.Evaluated:
    figures = tuple(Figure(name=f.name, value_hex=f.value_hex, weight=f.weight) for f in done.figures)
    record = EvaluationRecord(
        step=done.step, samples=done.samples, figures=figures, generation=done.generation
    )
    return r.Evaluated(record=record, evaluation_s=done.evaluation_s)


def _failure(failure: common_pb2.Failure) -> r.Failed:
    name = common_pb2.FailureCause.Name(failure.cause).lower()
    known = name in set(r.Cause)
    return r.Failed(
        cause=r.Cause(name) if known else r.Cause.WORKER_CRASH,
        message=failure.message,
        detail=failure.detail,
        exit_code=failure.exit_code if failure.HasField("exit_code") else None,
        signal=failure.signal if failure.HasField("signal") else None,
        peer_rank=failure.peer_rank if failure.HasField("peer_rank") else None,
    )


def _wire_failure(failed: r.Failed) -> common_pb2.Failure:
    return common_pb2.Failure(
        cause=failed.cause.name,
        message=failed.message,
        detail=failed.detail,
        exit_code=failed.exit_code,
        signal=failed.signal,
        peer_rank=failed.peer_rank,
    )


def _version(version: common_pb2.Version) -> Version:
    return Version(step=version.step, generation=version.generation)


def _wire_version(version: Version) -> common_pb2.Version:
    return common_pb2.Version(step=version.step, generation=version.generation)


def _vault(vault: common_pb2.Vault) -> Vault:
    return Vault(node=vault.node, host=vault.host, port=vault.port)


def _wire_vault(vault: Vault) -> common_pb2.Vault:
    return common_pb2.Vault(node=vault.node, host=vault.host, port=vault.port)


def _endpoint(endpoint: common_pb2.Endpoint) -> r.Endpoint:
    return r.Endpoint(rank=endpoint.rank, host=endpoint.host, port=endpoint.port)


def _wire_endpoint(endpoint: r.Endpoint) -> common_pb2.Endpoint:
    return common_pb2.Endpoint(rank=endpoint.rank, host=endpoint.host, port=endpoint.port)
