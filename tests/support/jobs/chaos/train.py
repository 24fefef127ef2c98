"""A small dropout model with a tied head that says what it does, and hurts itself where a file says so.

In CHAOS_FOLDER it writes which samples each process used, and while it imports a file of that name. A file
`at-PLACE` there holds what the first process that comes to this place does to itself.
"""

import ctypes
import json
import os
import pathlib
import signal
import time

FOLDER = pathlib.Path(os.environ["CHAOS_FOLDER"]) if "VARUNA_INCARNATION" in os.environ else None
IMPORT_S = 0.3


def come_to(place):
    """Do to this process what was laid there for it; only one takes it."""
    if FOLDER is None:
        return
    try:
        (FOLDER / f"at-{place}").rename(taken := FOLDER / f"taken-{place}-{os.getpid()}")
    except FileNotFoundError:
        return
    act = taken.read_text()
    if act == "exit":
        os._exit(1)
    if act == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.Signals[act])


if __name__ == "__main__" and FOLDER is not None:
    (FOLDER / f"importing-{os.getpid()}").touch()
    time.sleep(IMPORT_S)  # libraries of users take longer

import torch  # noqa: E402
from torch import nn  # noqa: E402

import varuna_runtime as varuna  # noqa: E402

VOCABULARY, WIDTH, LENGTH, SAMPLES = 31, 16, 8, 1571


class Sequences(torch.utils.data.Dataset):
    """Sample i is a random sequence whose transform draws from the keyed generators."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        come_to("data")
        tokens = torch.arange(LENGTH + 1) * (index + 3) % VOCABULARY
        noise = torch.randint(0, 3, tokens.shape)
        tokens = (tokens + noise) % VOCABULARY
        return tokens[:-1], tokens[1:], index


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.narrow(torch.relu(self.wide(self.norm(x)))))


class Head(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x):
        return x @ self.weight.t()


def build_model():
    embedding = nn.Embedding(VOCABULARY, WIDTH)
    return nn.Sequential(embedding, Block(), Block(), Block(), Block(), Head(embedding))


def make_optimizer(parameters):
    """Made anew by each worker, before it loads."""
    come_to("load")
    return torch.optim.AdamW(parameters, lr=3e-3)


def summed_loss(output, batch):
    targets = batch[1]
    summed = nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum")
    return summed, torch.tensor(float(targets.numel()))


def loss(output, batch):
    if FOLDER is not None:
        log_samples(batch[2])
        come_to("loss")
        time.sleep(float((FOLDER / "pace").read_text()))
    return summed_loss(output, batch)


def log_samples(index):
    """One line a micro-batch: the wall clock, which all share, and the samples."""
    generation, rank = (os.environ.get(f"VARUNA_{name}", "0") for name in ("GENERATION", "RANK"))
    name = f"used-g{generation}-r{rank}-{os.getpid()}"
    with (FOLDER / name).open("a") as file:
        file.write(" ".join([str(time.time()), *(str(int(i)) for i in index)]) + "\n")


if __name__ == "__main__":
    if FOLDER is not None:
        come_to("import")
        (FOLDER / f"importing-{os.getpid()}").unlink()
    result = varuna.train(
        model=build_model,
        loss=loss,
        optimizer=make_optimizer,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9),
        dataset=Sequences(),
        inputs=lambda batch: (batch[0],),
        batch_size=22,
        clip_grad_norm=0.5,
    )
    answer = {"weights_sha256": result.weights_sha256, "losses": [value.hex() for value in result.losses]}
    pathlib.Path(os.environ["RESULT_FILE"]).write_text(json.dumps(answer))
