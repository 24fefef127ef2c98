"""Keyed random state of everything that a forward on a device may draw from (contract E3)."""

import torch

from varuna_runtime.partition.seeding import drawn_in_python, seed_everything


def seed_generators(key: int, device: torch.device) -> None:
    """Seed every global generator that code on `device` may draw from."""
    seed_everything(key)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(key)


def drawn(device: torch.device) -> object:
    """Return something that is equal as long as nobody draws from one of these generators."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return [state.numpy().tobytes() for state in states], drawn_in_python()
