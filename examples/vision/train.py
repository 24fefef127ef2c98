"""Train a ResNet-18 with BatchNorm to tell drawn shapes apart; alone, or on a pool by `job.yaml`."""

import numpy as np
import torch
from torch import Tensor, nn

import varuna_runtime as varuna


class Shapes(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Noisy images of a disc, a square, a cross or a ring, drawn anew each epoch under the sample's key."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        (x, y), size = np.random.uniform(10, 22, 2), np.random.uniform(5, 9)
        dy, dx = np.abs(np.arange(32)[:, None] - y), np.abs(np.arange(32)[None] - x)
        far, near, away = np.maximum(dx, dy), np.minimum(dx, dy), np.hypot(dx, dy)
        drawn = (away < size, far < size, (far < size) & (near < 2), np.abs(away - size) < 1.5)[index % 4]
        image = drawn * np.random.uniform(0.5, 1, (3, 1, 1)) + np.random.normal(0, 0.3, (3, 32, 32))
        return torch.from_numpy(image).float(), index % 4


class Block(nn.Module):
    def __init__(self, fan_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, width, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(fan_in, width, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        shapes = [(max(1, 2**n // 2) * width, 2**n * width, 1 + (n > 0)) for n in range(4)]
        self.blocks = nn.Sequential(*(b for i, o, s in shapes for b in (Block(i, o, s), Block(o, o, 1))))
        self.head = nn.Linear(8 * width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


if __name__ == "__main__":
    result = varuna.train(
        model=ResNet,
        loss=lambda output, batch: nn.functional.cross_entropy(output, batch[1]),
        optimizer=lambda named: torch.optim.SGD(named, lr=0.05, momentum=0.9, weight_decay=1e-4),
        dataset=Shapes(),
        batch_size=32,
        steps=60,
    )
    print(f"loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}\nweights {result.weights_sha256}")
