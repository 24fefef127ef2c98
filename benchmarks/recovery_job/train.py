"""Our training of the subject."""

import os

import subject
import torch

import varuna_runtime as varuna

if __name__ == "__main__":
    result = varuna.train(
        model=subject.build_model,
        loss=lambda output, batch: subject.loss_of(output, batch[1]),
        optimizer=subject.optimizer_of,
        dataset=subject.Text(),
        batch_size=subject.BATCH,
        seed=subject.SEED,
        callbacks=[
            lambda report: subject.stamp(
                report.step, int(os.environ.get("VARUNA_GENERATION", "0")), report.loss
            )
        ],
    )
    if "WEIGHTS" in os.environ:
        torch.save(dict(result.state), os.environ["WEIGHTS"])
