"""What a script trains, found out without training; and every way a script can fail, as an answer."""

import sys
import textwrap
from pathlib import Path

import pytest

from varuna_runtime.spec.job import JobSpec
from varuna_runtime.worker.hosts import Host, Result, ScriptStopped
from varuna_runtime.worker.inspection import Failed, Inspected, InspectHost, ask
from varuna_runtime.worker.script import run_script
from varuna_runtime.worker.training import Training

SCRIPT = """
    import sys
    from pathlib import Path

    import torch
    from torch import nn

    import sizes
    import varuna_runtime as varuna

    def build():
        return nn.Sequential(nn.Linear(2, sizes.WIDTH), nn.Linear(sizes.WIDTH, 1))

    if __name__ == "__main__":
        print("noise on stdout")
        Path("seen.txt").write_text(" ".join(sys.argv[1:]))
        varuna.train(
            model=build,
            loss=lambda output, batch: output.sum(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            dataset=[(torch.ones(2), 0.0)] * 10,
            batch_size=4,
            epochs=2,
        )
        raise AssertionError("train came back")
"""


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sizes.py").write_text("WIDTH = 3\n")
    return tmp_path


def script(workdir: Path, text: str) -> Path:
    (workdir / "code" / "train.py").write_text(textwrap.dedent(text))
    return Path("code/train.py")


@pytest.fixture(autouse=True)
def _forget_modules():
    yield
    sys.modules.pop("sizes", None)


def inspected(workdir: Path, text: str, *args: str, spec: JobSpec | None = None) -> object:
    return ask(script(workdir, text), args, workdir, InspectHost(spec))


def test_the_model_and_the_length_are_recorded_and_nothing_is_trained(workdir: Path):
    answer = inspected(workdir, SCRIPT, "--lr", "3")
    assert isinstance(answer, Inspected)
    assert [segment.name for segment in answer.model.segments] == ["0", "1"]
    assert (answer.model.num_samples, answer.model.num_steps) == (10, 5)
    assert (workdir / "seen.txt").read_text() == "--lr 3"


def test_the_job_file_decides_the_length(workdir: Path):
    spec = JobSpec(name="j", entrypoint="train.py", batch_size=5, steps=7)
    answer = inspected(workdir, SCRIPT, spec=spec)
    assert isinstance(answer, Inspected)
    assert answer.model.num_steps == 7


def test_the_surroundings_of_the_process_are_put_back(workdir: Path):
    before = (Path.cwd(), list(sys.argv), list(sys.path), sys.modules["__main__"])
    inspected(workdir, SCRIPT)
    assert (Path.cwd(), sys.argv, sys.path, sys.modules["__main__"]) == before


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("x = 1", "no_train", "ended without calling varuna.train"),
        ("import sys; sys.exit()", "no_train", "ended without calling"),
        ("import sys; sys.exit(3)", "user_error", "exited with 3"),
        ("def f():\n    return 1 / 0\nf()", "user_error", "ZeroDivisionError: division by zero"),
        ("import no_such_module", "user_error", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "user_error", "SyntaxError"),
        ("raise ValueError", "user_error", "ValueError"),
        (SCRIPT.replace("batch_size=4", "batch_size=0"), "refused", "batch_size: seen 0"),
        (SCRIPT.replace("nn.Linear(sizes.WIDTH, 1)", "nn.LazyLinear(1)"), "refused", "lazy"),
        (SCRIPT.replace("batch_size=4,", "batch=4,"), "user_error", "unexpected keyword argument 'batch'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_script_that_cannot_be_trained_is_an_answer(workdir: Path, text: str, kind: str, message: str):
    answer = inspected(workdir, text)
    assert isinstance(answer, Failed)
    assert answer.error.kind == kind
    assert message in answer.error.message
    assert "\n" not in answer.error.message


def test_a_traceback_starts_in_the_script(workdir: Path):
    answer = inspected(workdir, "def f():\n    return 1 / 0\nf()")
    assert isinstance(answer, Failed)
    frames = [line for line in answer.error.detail.splitlines() if line.lstrip().startswith("File")]
    assert [frame.split(", ")[-1] for frame in frames] == ["in <module>", "in f"]


def test_a_missing_script_is_refused(workdir: Path):
    answer = ask(Path("nothing.py"), [], workdir, InspectHost(None))
    assert isinstance(answer, Failed)
    assert answer.error.message == f"entrypoint: no file nothing.py in {workdir}"
    assert answer.error.detail == ""


def test_a_host_that_stops_the_script_is_not_caught_by_it(workdir: Path):
    class Stopping:
        def run(self, training: Training) -> Result:
            raise ScriptStopped

    host: Host = Stopping()
    text = SCRIPT.replace("varuna.train(", "wrapped(").replace(
        "    if __name__",
        "    def wrapped(**arguments):\n        try:\n            varuna.train(**arguments)\n"
        "        except Exception:\n            raise SystemExit('caught') from None\n\n    if __name__",
    )
    run_script(script(workdir, text), [], workdir, host)
    assert (workdir / "seen.txt").exists()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("def f():\n    return 1 / 0\nf()", "code/train.py:2"),
        ("x = 1\ndef f(:", "code/train.py:2"),
        ("import sys\nsys.exit(3)", "code/train.py:2"),
        ("import varuna_runtime as varuna\n\nvaruna.train()", "code/train.py:3"),
        ("x = 1", ""),
    ],
)
def test_a_mistake_is_told_with_its_line(workdir: Path, text: str, where: str):
    answer = inspected(workdir, text)
    assert isinstance(answer, Failed)
    assert answer.error.where == where


def test_a_refusal_speaks_for_itself_without_a_traceback(workdir: Path):
    answer = inspected(workdir, SCRIPT.replace("batch_size=4", "batch_size=0"))
    assert isinstance(answer, Failed)
    assert answer.error.where.startswith("code/train.py:")
    assert answer.error.detail == ""


def test_a_thread_that_workers_would_not_have_is_refused(workdir: Path):
    text = SCRIPT.replace(
        "    if __name__",
        "    import threading\n    done = threading.Event()\n"
        "    threading.Thread(target=done.wait, name='feeder', daemon=True).start()\n\n    if __name__",
    )
    answer = inspected(workdir, text)
    assert isinstance(answer, Failed)
    assert answer.error.kind == "refused"
    assert "runs threads before varuna.train(): feeder" in answer.error.message
