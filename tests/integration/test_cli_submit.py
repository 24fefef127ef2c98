"""`varuna submit` with real scripts: what is refused before anything starts, and a whole job."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Done, Shell
from tests.support.manager_process import eventually

JOB = "name: tiny\nentrypoint: train.py\nbatch_size: 8\nmicro_batch_size: 4\nsteps: 4\n"
SCRIPT = """\
import torch
from torch import nn
import varuna_runtime as varuna

varuna.train(
    model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
    loss=lambda output, batch: ((output - batch[1]) ** 2).sum(),
    optimizer=lambda named: torch.optim.SGD(named, lr=0.01),
    dataset=torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1)),
    batch_size=8,
)
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("home"))
    shell("up", "-n", "1")
    yield shell
    shell("down")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / ".varunaignore").write_text("job.yaml\n")  # so that its edits keep the bundle and its profile
    return tmp_path


def refused(shell: Shell, folder: Path, *options: str) -> Done:
    """Submit what must be refused, and check that nothing of it is known or stored."""
    before = shell("status", "--json").json()
    done = shell("submit", str(folder / "job.yaml"), *options, code=1)
    assert shell("status", "--json").json() == before
    assert done.out == ""
    return done


def test_mistakes_of_the_file_are_all_told_at_once(up: Shell, folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("train.py", "tarin.py").replace("steps", "stesp"))
    told = refused(up, folder).err.splitlines()
    assert [line.partition("job.yaml:")[2].partition(":")[0] for line in told] == ["5"]
    (folder / "job.yaml").write_text(JOB.replace("train.py", "tarin.py"))
    assert "job.yaml:2: entrypoint: seen no such file" in refused(up, folder).err


def test_a_script_that_raises_is_refused_with_its_traceback(up: Shell, folder: Path) -> None:
    (folder / "train.py").write_text("import torch\n\ndef fail():\n    raise KeyError('weights')\n\nfail()\n")
    told = refused(up, folder).err
    assert "train.py:4: KeyError: 'weights'" in told
    assert 'train.py", line 4, in fail' in told
    assert "varuna_runtime" not in told


def test_a_script_that_never_trains_is_refused(up: Shell, folder: Path) -> None:
    (folder / "train.py").write_text("print('hello')\n")
    assert "ended without calling varuna.train" in refused(up, folder).err


def test_a_script_that_is_killed_is_told_by_its_signal(up: Shell, folder: Path) -> None:
    (folder / "train.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert "train.py ended with SIGKILL before its model was known" in refused(up, folder).err


def test_more_stages_than_segments_is_refused_at_its_line(up: Shell, folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB + "layout:\n  stages: 4\n")
    expected = 'job.yaml:7: layout.stages: seen "4", wanted at most 3, the number of segments of the model'
    assert expected in refused(up, folder).err


def test_a_dry_run_shows_the_plan_and_leaves_no_trace(up: Shell, folder: Path) -> None:
    before = up("status", "--json").json()
    shown = up("submit", str(folder / "job.yaml"), "--dry-run")
    assert "layout 1x1" in shown.out
    assert up("status", "--json").json() == before


def test_a_dry_run_takes_a_profile_and_refuses_one_of_another_model(up: Shell, folder: Path) -> None:
    job, fits, other = (str(folder / name) for name in ("job.yaml", "fits.json", "other.json"))
    numbers = ("--synthetic", "--forward", "7", "--output-size", "1M")
    up("profile", job, *numbers, "--output", fits)
    up("profile", *numbers, "--segments", "40", "--params", "1M", "--output", other)
    assert "it is synthetic" in up("submit", job, "--dry-run", "--profile", fits).out
    told = refused(up, folder, "--dry-run", "--profile", other).err
    assert "other.json: the profile is of another model: it has 40 segments" in told


def test_a_job_is_followed_to_its_end_and_its_profile_serves_dry_runs(up: Shell, folder: Path) -> None:
    done = up("submit", str(folder / "job.yaml"), "--follow")
    job, *_, last = done.out.splitlines()
    assert job.startswith("tiny-")
    assert last.startswith("SUCCEEDED  step 4/4 (100%)")
    assert [step["step"] for step in up("steps", job, "--json").json_lines()] == [0, 1, 2, 3]
    (folder / "job.yaml").write_text(JOB + "nodes: {min: 3, max: 4}\n")
    (told,) = refused(up, folder, "--dry-run").err.splitlines()
    assert told.startswith("no plan: ")


def test_a_secret_reaches_the_script_and_nothing_else(up: Shell, folder: Path) -> None:
    secret = "s3cr3t-value"
    (folder / "job.yaml").write_text(JOB + "secrets: [TOKEN]\n")
    check = f"import os\nassert os.environ['TOKEN'] == '{secret[:6]}' + '{secret[6:]}'\n"
    (folder / "train.py").write_text(check + SCRIPT)
    assert "no variable TOKEN in this shell" in refused(up, folder).err
    command = up.command("submit", str(folder / "job.yaml"), "--follow")
    environment = {**up.environment, "TOKEN": secret}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    job = done.stdout.splitlines()[0]
    told = up("status", job, "--json").out + up("events", "--json").out + done.stdout
    assert secret not in told
    files = (path for path in up.root.rglob("*") if path.is_file())
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_while_the_script_is_inspected_leaves_nothing(
    up: Shell, folder: Path, number: signal.Signals, code: int
) -> None:
    (folder / "train.py").write_text(
        "import os, pathlib, signal\npathlib.Path('pid').write_text(str(os.getpid()))\nsignal.pause()\n"
    )
    scratch = folder / "tmp"
    scratch.mkdir()
    with subprocess.Popen(
        up.command("submit", str(folder / "job.yaml")),
        env={**up.environment, "TMPDIR": str(scratch)},
        start_new_session=True,
    ) as submitting:
        try:
            pid = folder / "pid"
            eventually(lambda: pid.exists() and pid.read_text())
            assert list(scratch.glob("varuna-*"))
            submitting.send_signal(number)
            assert submitting.wait(30) == code
        finally:
            submitting.kill()
    eventually(lambda: not Path(f"/proc/{pid.read_text()}").exists())
    assert list(scratch.glob("varuna-*")) == []
