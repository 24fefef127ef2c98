from varuna_runtime.wire.v1 import common_pb2, worker_pb2
from varuna_runtime.worker.progress import Progress


def kinds(messages: list[worker_pb2.WorkerProgress]) -> list[str | None]:
    return [m.WhichOneof("body") for m in messages if m.WhichOneof("body") != "beat"]


def finished() -> worker_pb2.WorkerProgress:
    return worker_pb2.WorkerProgress(finished=common_pb2.Finished(step=1))


def test_what_was_said_before_the_stream_came_is_streamed_in_order() -> None:
    progress = Progress(3)
    progress.tell(worker_pb2.WorkerProgress(ready=worker_pb2.WorkerReady()))
    progress.step_begins(0)
    progress.tell(worker_pb2.WorkerProgress(step=common_pb2.StepDone(step=0)))
    progress.tell(finished())
    messages = list(progress.stream())
    assert kinds(messages) == ["ready", "step", "finished"]
    assert {message.generation for message in messages} == {3}
    assert progress.wait_delivered(0.0)


def test_nothing_follows_the_last_word() -> None:
    progress = Progress(1)
    progress.tell(finished())
    progress.tell(worker_pb2.WorkerProgress(failed=common_pb2.Failure(message="late")))
    assert kinds(list(progress.stream())) == ["finished"]


def test_silence_is_filled_with_beats_that_tell_the_running_step() -> None:
    progress = Progress(1)
    progress.step_begins(7)
    beat = next(progress.stream()).beat
    assert beat.step == 7
    assert beat.in_step_s > 0


def test_no_step_is_running_between_two() -> None:
    progress = Progress(1)
    progress.step_begins(7)
    progress.step_ends()
    assert next(progress.stream()).beat.in_step_s == 0.0


def test_a_newer_stream_takes_over() -> None:
    progress = Progress(1)
    old = progress.stream()
    next(old)
    new = progress.stream()
    next(new)
    progress.tell(finished())
    assert list(old) == []
    assert kinds(list(new)) == ["finished"]
