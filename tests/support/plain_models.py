"""Models as people write them: plain modules without marks, each with something that is awkward to cut."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 8


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut, as torchvision has it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """The 18-layer shape, four channels wide."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4, momentum=None)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(4, 4, 1), BasicBlock(4, 4, 1))
        self.layer2 = nn.Sequential(BasicBlock(4, 8, 2), BasicBlock(8, 8, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Mix(nn.Module):
    """A block that edits in place, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(functional.gelu(self.up(self.norm(x))))
        y += x
        return functional.dropout(y, 0.1, self.training)


class UNet(nn.Module):
    """What goes down is needed again on the way up, over as many cuts as there are levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(Mix() for _ in range(3))
        self.middle = Mix()
        self.up = nn.ModuleList(nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), Mix()) for _ in range(3))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([x, kept.pop()], dim=-1))
        return self.head(x)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.mix = Mix()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(memory).transpose(-1, -2)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.mix(x + weights @ self.value(memory))


class Decode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = Attend()
        self.cross = Attend()

    def forward(self, x: Tensor, causal: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return self.cross(self.own(x, x, causal), memory, mask)


class Translate(nn.Module):
    """Encoder and decoder with one tied table; the encoder's output is used by every decoder block."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, WIDTH)
        self.encoder = nn.ModuleList(Attend() for _ in range(2))
        self.decoder = nn.ModuleList(Decode() for _ in range(2))
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source_mask = (source != 0)[:, None, :]
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        memory = self.table(source) * self.scale
        for block in self.encoder:
            memory = block(memory, memory, source_mask)
        x = self.table(target) * self.scale
        for block in self.decoder:
            x = block(x, causal, memory, source_mask)
        return self.head(x)


class Frozen(nn.Module):
    """The first half does not train, one parameter is never used, one buffer neither."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList(Mix() for _ in range(4))
        self.body[:2].requires_grad_(False)
        self.spare = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.arange(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.body:
            x = block(x)
        return self.head(x)


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Mixture(nn.Module):
    """Experts in a Python loop, weighed by a gate, one table shared by all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(2))
        self.experts = nn.ModuleList(Expert() for _ in range(3))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for gate in self.gates:
            weights = gate(x).softmax(-1).unbind(-1)
            found = [w[..., None] * expert(x) for w, expert in zip(weights, self.experts, strict=True)]
            x = x + torch.stack(found).sum(0)
        return self.head(x)


class Sized(nn.Module):
    """Positions that follow from the length of the input, and a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, WIDTH)
        self.register_buffer("rates", 1.0 / torch.arange(1, WIDTH + 1), persistent=False)
        self.blocks = nn.ModuleList(Mix() for _ in range(3))
        self.head = nn.Linear(WIDTH, 11)

    @torch.no_grad()
    def angles(self, length: int) -> Tensor:
        return torch.outer(torch.arange(length).float(), self.rates).sin()

    def forward(self, tokens: Tensor) -> Tensor:
        angles = self.angles(tokens.shape[1])
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x * angles + torch.arange(x.shape[0])[:, None, None])
        return self.head(x).reshape(tokens.shape[0] * tokens.shape[1], -1)
