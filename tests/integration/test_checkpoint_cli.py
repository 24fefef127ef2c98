"""`varuna checkpoint` on the steps of a real job: seen, verified, pruned, taken out, put into a new job."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file
from torch import nn

from tests.support.cli import Shell

pytestmark = pytest.mark.timeout(400)  # the first test trains the job of all others

JOB = """\
name: tiny
entrypoint: train.py
args: ["0.1"]
batch_size: 8
micro_batch_size: 4
steps: 4
checkpoint:
  interval_steps: 1
"""
SCRIPT = """\
import sys
import torch
from torch import nn
import varuna_runtime as varuna

if __name__ == "__main__":
    varuna.train(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)),
        loss=lambda output, batch: ((output - batch[1]) ** 2).sum(),
        optimizer=lambda named: torch.optim.Adam(named, lr=float(sys.argv[1])),
        dataset=torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1)),
        batch_size=8,
    )
"""


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("home"))
    shell("up", "-n", "1")
    yield shell
    shell("down")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "job.yaml").write_text(JOB)
    (folder / "resting.yaml").write_text(JOB.replace("0.1", "0.0"))
    return folder


@pytest.fixture(scope="module")
def trained(up: Shell, folder: Path) -> str:
    """A job at its end."""
    return up("submit", str(folder / "job.yaml"), "--follow", "--json").out.split('"')[3]


@pytest.fixture(scope="module")
def weights(up: Shell, trained: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained weights as Hugging Face's tools take them."""
    path = tmp_path_factory.mktemp("out") / "weights"
    up("checkpoint", "export", trained, "--to", str(path))
    return path


def store(up: Shell) -> str:
    return up.home.store_url


def test_steps_are_shown_with_and_without_the_manager(up: Shell, trained: str) -> None:
    shown = up("checkpoint", "ls", "tiny", "--json").json()
    assert shown[0]["step"] == 4
    assert all(step["is_complete"] for step in shown)
    assert up("checkpoint", "ls", trained, "--store", store(up), "--json").json() == shown
    assert trained in up("checkpoint", "ls", "--store", store(up)).out
    table = up("checkpoint", "ls", trained)
    assert "complete" in table.out
    assert "a job would go on from step 4" in table.err


def test_exported_weights_load_into_the_plain_model(weights: Path) -> None:
    assert [file.name for file in weights.iterdir()] == ["model.safetensors"]
    plain = model()
    plain.load_state_dict(load_file(weights / "model.safetensors"))
    assert load_model(model(), weights / "model.safetensors") == (set(), [])


def test_exported_weights_and_optimizer_load_into_plain_torch(
    up: Shell, trained: str, weights: Path, tmp_path: Path
) -> None:
    up(
        *("checkpoint", "export", trained, "--to", str(tmp_path / "all.pt")),
        *("--format", "torch", "--with-optimizer"),
    )
    found = torch.load(tmp_path / "all.pt", weights_only=True)
    plain = model()
    plain.load_state_dict(found["model"])
    optimizer = torch.optim.Adam(plain.named_parameters(), lr=9.0)
    optimizer.load_state_dict(found["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}
    assert found["step"] == 4
    stored = load_file(weights / "model.safetensors")
    assert all(stored[name].equal(value) for name, value in found["model"].items())


def test_a_folder_that_is_there_is_not_written_over(up: Shell, trained: str, weights: Path) -> None:
    assert "is there already" in up("checkpoint", "export", trained, "--to", str(weights), code=1).err


def test_an_imported_state_dict_is_submitted_by_its_id(
    up: Shell, folder: Path, weights: Path, tmp_path: Path
) -> None:
    wanted = load_file(weights / "model.safetensors")
    torch.save(wanted, tmp_path / "weights.pt")
    job_file = str(folder / "resting.yaml")
    done = up("checkpoint", "import", str(tmp_path / "weights.pt"), "--job-file", job_file, "--json").json()
    assert up("submit", job_file, "--id", done["job"], "--follow", "--json").out.split('"')[3] == done["job"]
    assert "wanted a new one of tiny" in up("submit", job_file, "--id", done["job"], code=1).err
    up("checkpoint", "export", done["job"], "--to", str(tmp_path / "out"))
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(found[name].equal(value) for name, value in wanted.items() if "1." not in name)


def test_a_job_starts_from_a_step_of_another(up: Shell, trained: str, folder: Path, tmp_path: Path) -> None:
    step = up("checkpoint", "ls", trained, "--json").json()[1]["step"]
    job = up("submit", str(folder / "job.yaml"), "--from", f"{trained}@{step}").out.strip()
    up("cancel", job)
    up("checkpoint", "export", job, "--step", "0", "--to", str(tmp_path / "ours"))
    up("checkpoint", "export", trained, "--step", str(step), "--to", str(tmp_path / "theirs"))
    ours, theirs = (load_file(tmp_path / of / "model.safetensors") for of in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(value) for name, value in theirs.items())


def test_weights_that_do_not_fit_are_named_and_leave_nothing(up: Shell, folder: Path, tmp_path: Path) -> None:
    before = up("checkpoint", "ls", "--store", store(up)).out
    save_file({"0.weight": torch.zeros(8, 5), "2.bias": torch.zeros(3)}, tmp_path / "odd.safetensors")
    told = up("submit", str(folder / "job.yaml"), "--from", str(tmp_path / "odd.safetensors"), code=1).err
    assert "'0.weight' has shape (8, 5)" in told
    assert "'2.bias' has shape (3,)" in told
    assert up("checkpoint", "ls", "--store", store(up)).out == before


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("wieghts.pt", "no such file or folder of weights, and"),
        ("./gone", "no such file or folder of weights; a step of a job is JOB@STEP"),
        ("tiny@newest", "a step of a job is JOB@STEP"),
        ("tiny@77", "has no step 77 in file://"),
    ],
)
def test_weights_that_are_not_there_are_told(
    named: str, told: str, up: Shell, trained: str, folder: Path
) -> None:
    assert told in up("submit", str(folder / "job.yaml"), "--from", named, code=1).err


def test_a_damaged_step_is_named_and_stops_pruning(up: Shell, trained: str) -> None:
    assert "step 4 is sound" in up("checkpoint", "verify", trained).out
    sound = up("checkpoint", "ls", trained, "--json").json()[1]["step"]
    shard = sorted(up.home.root.glob(f"store/jobs/{trained}/checkpoints/*4/g*/*.safetensors"))[0]
    good = shard.read_bytes()
    shard.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    told = up("checkpoint", "verify", trained, code=1).out
    assert shard.name in told
    assert f"the newest sound step is {sound}" in told
    assert "checksum" in up("checkpoint", "prune", trained, "--keep", "1", code=1).err
    shard.write_bytes(good)


def test_pruning_keeps_the_newest(up: Shell, trained: str) -> None:
    before = up("checkpoint", "ls", trained, "--json").json()
    assert len(before) > 1
    assert "would be free" in up("checkpoint", "prune", trained, "--keep", "1", "--dry-run").out
    assert up("checkpoint", "ls", trained, "--json").json() == before
    up("checkpoint", "prune", trained, "--keep", "1")
    assert up("checkpoint", "ls", trained, "--json").json() == before[:1]


def test_a_job_without_checkpoints_and_a_store_that_is_not_there_are_told(up: Shell, tmp_path: Path) -> None:
    assert "no checkpoints of none" in up("checkpoint", "verify", "none", "--store", store(up), code=1).err
    assert (
        "has no step 3 in"
        in up(*("checkpoint", "verify", "none", "--step", "3", "--store", store(up)), code=1).err
    )
    assert "no checkpoints of none" in up("checkpoint", "ls", "none", "--store", store(up)).out
    missing = up("checkpoint", "ls", "none", "--store", (tmp_path / "gone").as_uri(), code=1)
    assert "no such folder on this machine" in missing.err
