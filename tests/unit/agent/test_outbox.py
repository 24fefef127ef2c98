from varuna_runtime.agent import codec
from varuna_runtime.agent import records as r
from varuna_runtime.agent.outbox import Outbox
from varuna_runtime.wire.v1 import agent_pb2

KEY = r.RankKey(job="j", generation=1, rank=0)


def step(number: int) -> r.StepDone:
    return r.StepDone(
        step=number,
        loss_hex=(0.5).hex(),
        loss=0.5,
        weight=1.0,
        samples=4,
        step_s=0.1,
        grad_norm=None,
        learning_rate=None,
        loss_scale=None,
        is_skipped=False,
    )


def test_reports_are_kept_in_order_until_acknowledged() -> None:
    outbox = Outbox()
    for generation in (1, 2, 3):
        outbox.add(codec.gone("j", generation))
    assert [message.seq for message in outbox.after(0)] == [1, 2, 3]
    outbox.acknowledge(2)
    assert [message.gone.generation for message in outbox.after(0)] == [3]
    outbox.acknowledge(3)
    assert outbox.is_empty


def test_steps_share_a_message_and_never_pass_a_later_report() -> None:
    outbox = Outbox()
    outbox.add_step(KEY, step(0))
    outbox.add_step(KEY, step(1))
    outbox.add(codec.rank_report(KEY, r.Drained(step=2)))
    first, second = outbox.after(0)
    assert [done.step for done in first.steps.steps] == [0, 1]
    assert second.rank.drained.step == 2


def test_steps_wait_for_a_flush() -> None:
    outbox = Outbox()
    outbox.add_step(KEY, step(0))
    assert outbox.after(0) == ()
    assert not outbox.is_empty
    outbox.flush_steps()
    assert len(outbox.after(0)) == 1


def test_an_overflow_costs_old_steps_and_never_a_report() -> None:
    outbox = Outbox(limit=3)
    outbox.add(codec.rank_report(KEY, r.Ready()))
    for number in range(5):
        outbox.add_step(KEY, step(number))
        outbox.flush_steps()
    kept = outbox.after(0)
    assert kept[0].rank.HasField("ready")
    assert [message.steps.steps[0].step for message in kept[1:]] == [3, 4]
    assert outbox.num_dropped == 3


def test_the_time_of_a_notice_passes_while_it_is_kept() -> None:
    now_s = [100.0]
    outbox = Outbox(now_s=lambda: now_s[0])
    outbox.add(agent_pb2.AgentMessage(notice=agent_pb2.NoticeReport(seconds_left=30.0)))
    assert [message.notice.seconds_left for message in outbox.after(0)] == [30.0]
    now_s[0] = 110.0
    assert [message.notice.seconds_left for message in outbox.after(0)] == [20.0]
    now_s[0] = 1000.0
    assert [message.notice.seconds_left for message in outbox.after(0)] == [0.0]


def test_a_report_is_acknowledged_once_the_manager_said_so() -> None:
    outbox = Outbox()
    outbox.add(codec.gone("j", 1))
    outbox.add(codec.gone("j", 2))
    outbox.acknowledge(1)
    assert outbox.has_acknowledged(1)
    assert not outbox.has_acknowledged(2)
