"""A small dropout model with a tied head, trained on made-up sequences; logs which samples each step used."""

import json
import os
import pathlib
import time

import torch
from torch import nn

import varuna_runtime as varuna

VOCABULARY, WIDTH, LENGTH, SAMPLES = 31, 16, 8, 157


class Sequences(torch.utils.data.Dataset):
    """Sample i is a random sequence whose transform draws from the keyed generators."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
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


def loss(output, batch):
    _, targets, index = batch
    log_samples(index)
    exec(os.environ.get("IN_LOSS", ""))
    time.sleep(pause_s())
    summed = nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum")
    return summed, torch.tensor(float(targets.numel()))


def pause_s():
    """A pause of each micro-batch, fixed or as a file says just now."""
    if "PACE_FILE" in os.environ:
        return float(pathlib.Path(os.environ["PACE_FILE"]).read_text())
    return float(os.environ.get("STEP_PAUSE_S", "0"))


def log_samples(index):
    """One line a micro-batch, in a file a process: the checker maps lines to steps."""
    folder = os.environ.get("SAMPLE_LOG")
    if folder:
        name = f"g{os.environ.get('VARUNA_GENERATION', '0')}-r{os.environ.get('VARUNA_RANK', '0')}"
        with pathlib.Path(folder, name).open("a") as file:
            file.write(" ".join(str(int(i)) for i in index) + "\n")


if __name__ == "__main__":
    exec(os.environ.get("AT_IMPORT", ""))
    result = varuna.train(
        model=build_model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9),
        dataset=Sequences(),
        inputs=lambda batch: (batch[0],),
        batch_size=22,
        clip_grad_norm=0.5,
    )
    answer = {"weights_sha256": result.weights_sha256, "losses": [value.hex() for value in result.losses]}
    pathlib.Path(os.environ["RESULT_FILE"]).write_text(json.dumps(answer))
