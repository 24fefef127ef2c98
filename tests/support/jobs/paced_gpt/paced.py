"""The GPT example, whose files are copied beside this one, with a pause in each micro-batch."""

import json
import os
import pathlib
import time

from data import StandardLibrary
from model import build_model
from train import CONTEXT, make_optimizer, make_scheduler, next_byte_loss

import varuna_runtime as varuna


def paced_loss(logits, batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    return next_byte_loss(logits, batch)


if __name__ == "__main__":
    result = varuna.train(
        model=lambda: build_model(context=CONTEXT),
        loss=paced_loss,
        optimizer=make_optimizer,
        scheduler=make_scheduler,
        dataset=StandardLibrary(context=CONTEXT),
        batch_size=8,
        clip_grad_norm=1.0,
    )
    answer = {"weights_sha256": result.weights_sha256, "losses": [value.hex() for value in result.losses]}
    pathlib.Path(os.environ["RESULT_FILE"]).write_text(json.dumps(answer))
