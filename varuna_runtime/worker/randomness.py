"""Keyed random state of everything that a forward on a device may draw from (contract E3)."""

import torch

from varuna_runtime.partition.seeding import seed_everything


def seed_generators(key: int, device: torch.device) -> None:
    """Seed every global generator that code on `device` may draw from."""
    seed_everything(key)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(key)
