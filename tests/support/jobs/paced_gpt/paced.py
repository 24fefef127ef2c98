"""The GPT example, whose files are copied beside this one, with a pause in each micro-batch.

How long it is stands in a file that the test rewrites: long while it disturbs, none at the end.
"""

import json
import os
import pathlib
import time

from data import StandardLibrary
from model import build_model
from train import CONTEXT, make_optimizer, make_scheduler, next_byte_loss

import varuna_runtime as varuna


def paced_loss(logits, batch):
    if "PACE_FILE" in os.environ:
        time.sleep(float(pathlib.Path(os.environ["PACE_FILE"]).read_text()))
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
