"""A simulated step as an SVG that needs nothing else: a row a stage, messages as thin lines below it."""

from collections.abc import Iterator
from math import ceil, floor, log10

from varuna_manager.planner.recording import StageRecord, StepRecord, TimedMessage, TimedOp
from varuna_runtime.spec.schedule import OpKind

LEFT, RIGHT, TOP = 90, 30, 56
WIDTH_MIN, WIDTH_MAX = 1200, 8000
NUMBERED = 17  # width of a bar that two digits fit into: what the shortest op is drawn with, if there is room
BAR, LINK, GAP = 22, 4, 6  # heights of a stage's ops, of a direction of its link, and below
ROW = BAR + 2 * LINK + GAP
LETTER = 6.2  # width of one in a bar
COLOURS = {
    OpKind.FORWARD: ("#6aa5e3", "forward"),
    OpKind.RECOMPUTE: ("#f2c65a", "recompute"),
    OpKind.BACKWARD: ("#5fb37c", "backward"),
    OpKind.INPUT: ("#5fb37c", "backward of inputs"),
    OpKind.WEIGHT: ("#b9dca6", "backward of weights"),
}
REDUCTION, ACTIVATIONS, GRADIENTS = "#c58bd6", "#2f6db5", "#2c7a48"
REPLICAS_MAX = 4  # drawn; others look much the same


def picture(step: StepRecord, title: str) -> str:
    """Return the SVG of the first replicas of a step."""
    shown = [rank for rank in step.ranks if rank.replica < REPLICAS_MAX]
    height = TOP + ROW * len(shown) + 40
    width = _width(step)
    scale = (width - LEFT - RIGHT) / step.step_s if step.step_s > 0 else 0.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{_escaped(title)}</text>',
        *_legend(step),
        *_axis(step, scale, TOP + ROW * len(shown)),
    ]
    for row, rank in enumerate(shown):
        parts += _row(step, rank, scale, TOP + ROW * row)
    return "\n".join([*parts, "</svg>\n"])


def _width(step: StepRecord) -> int:
    """Return the width at which the numbers of all micro-batches can be read, within reason."""
    shortest_s = min((ran.end_s - ran.start_s for ran in step.ranks[0].ops), default=0.0)
    wanted = step.step_s / shortest_s * NUMBERED if shortest_s > 0 else WIDTH_MAX
    return int(min(max(LEFT + RIGHT + wanted, WIDTH_MIN), WIDTH_MAX))


def _row(step: StepRecord, rank: StageRecord, scale: float, top: float) -> Iterator[str]:
    replicas = len(step.ranks) // step.num_stages
    name = f"stage {rank.stage}" if replicas == 1 else f"{rank.replica} · stage {rank.stage}"
    yield f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{name}</text>'
    yield f'<rect x="{LEFT}" y="{top}" width="{step.step_s * scale:.2f}" height="{BAR}" fill="#eeeeee"/>'
    for ran in rank.ops:
        yield from _op(ran, scale, top)
    reduction_s = step.reductions_s[rank.stage]
    if reduction_s > 0:
        yield _box(rank.ops[-1].end_s, rank.ops[-1].end_s + reduction_s, scale, top, BAR, REDUCTION)
    for at, colour, sent in ((0, ACTIVATIONS, rank.activations), (1, GRADIENTS, rank.gradients)):
        yield from _link(sent, scale, top + BAR + 1 + at * LINK, colour)


def _op(ran: TimedOp, scale: float, top: float) -> Iterator[str]:
    yield _box(ran.start_s, ran.end_s, scale, top, BAR, COLOURS[ran.op.kind][0])
    width, text = (ran.end_s - ran.start_s) * scale, str(ran.op.micro)
    if width >= LETTER * len(text) + 2:
        middle = LEFT + (ran.start_s + ran.end_s) / 2 * scale
        yield f'<text x="{middle:.2f}" y="{top + 15}" text-anchor="middle">{text}</text>'


def _link(sent: tuple[TimedMessage, ...], scale: float, top: float, colour: str) -> Iterator[str]:
    for message in sent:
        yield _box(message.start_s, message.end_s, scale, top, LINK - 1, colour)


def _box(start_s: float, end_s: float, scale: float, top: float, height: float, colour: str) -> str:
    x, width = LEFT + start_s * scale, (end_s - start_s) * scale
    edge = ' stroke="white" stroke-width="0.5"' if width > 2 else ""
    return f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{height}" fill="{colour}"{edge}/>'


def _legend(step: StepRecord) -> Iterator[str]:
    """Explain the colours that occur."""
    kinds = {ran.op.kind for rank in step.ranks for ran in rank.ops}
    entries = [COLOURS[kind] for kind in OpKind if kind in kinds]
    if any(step.reductions_s):
        entries.append((REDUCTION, "reduction"))
    if step.num_stages > 1:
        entries += [(ACTIVATIONS, "sends activations"), (GRADIENTS, "sends gradients")]
    x = LEFT
    for colour, name in [*entries, ("#eeeeee", "idle")]:
        yield f'<rect x="{x}" y="32" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 16}" y="42">{name}</text>'
        x += 36 + int(LETTER * len(name))


def _axis(step: StepRecord, scale: float, top: float) -> Iterator[str]:
    """Draw a line at each round number of seconds, with about ten of them."""
    if step.step_s <= 0:
        return
    tick_s = _round(step.step_s / 10)
    factor, unit = (1, "s") if step.step_s >= 1 else (1000, "ms") if step.step_s >= 0.001 else (10**6, "us")
    for number in range(floor(step.step_s / tick_s) + 1):
        x = LEFT + number * tick_s * scale
        yield f'<line x1="{x:.2f}" y1="{TOP - 4}" x2="{x:.2f}" y2="{top + 4}" stroke="#bbbbbb"/>'
        label = f"{number * tick_s * factor:.6g} {unit}"
        yield f'<text x="{x:.2f}" y="{top + 18}" text-anchor="middle">{label}</text>'


def _round(seconds: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power: float = 10.0 ** floor(log10(seconds))
    return power * min(step for step in (1, 2, 5, 10) if step >= ceil(seconds / power * 0.999999 * 10) / 10)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
