import pytest

from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.wire import launch


@pytest.mark.parametrize(
    "message",
    [
        launch.RunScript(entrypoint="t.py", args=("a", "b\n"), workdir="/w", job_json="{}"),
        launch.ForkRank(job="j", generation=2, rank=3, socket="s", log="l", threads=1),
        launch.KillRank(pid=5),
        launch.ScriptHeld(),
        launch.ScriptFailed(message="m", detail="d\nd"),
        launch.Forked(generation=1, rank=2, pid=3),
        launch.Exited(pid=1, exit_code=None, signal=9),
    ],
)
def test_a_message_is_one_line_and_comes_back_equal(message: launch.Message) -> None:
    line = launch.encode(message)
    assert line.count(b"\n") == 1
    assert launch.decode(line) == message


@pytest.mark.parametrize(
    "line", [b"", b"x", b"[]", b'{"kind":"Boom","body":{}}', b'{"kind":"Forked","body":{}}']
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidInput):
        launch.decode(line)
