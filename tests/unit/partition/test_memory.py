"""No rank holds more of a model than its stage: peak resident memory, in a process of its own."""

import subprocess
import sys

# Counted: the parameters' bytes of the stage against what making them adds to the peak of the process
# after it imported everything and traced the model. Gradients and optimizer state come later, in training.
SCRIPT = """
import gc
import torch
from torch import nn
from varuna_runtime.partition import ExampleInput, cut

WIDTH = 1024

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.inner = nn.Sequential(nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.inner(self.up(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(12))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))

model = cut(Model, lambda: (ExampleInput(shape=(2, WIDTH), dtype="float32"),))
assert model.num_segments == 12, model.warnings
sizes = [segment.param_bytes for segment in model.record_segments]
model.materialise(0, seed=1, device=torch.device("cpu"))
gc.collect()
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
before = kilobytes("VmRSS")
stage = [model.materialise(i, seed=1, device=torch.device("cpu")) for i in range(3, 6)]
print(sum(sizes), sum(sizes[3:6]), 1024 * (kilobytes("VmHWM") - before))
"""


def test_making_a_stage_takes_hardly_more_memory_than_the_stage():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    whole, stage, added = map(int, done.stdout.split())
    assert whole > 200e6
    assert 0.9 * stage < added <= 1.5 * stage
