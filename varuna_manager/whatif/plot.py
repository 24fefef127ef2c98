"""A comparison as one self-contained SVG: nodes, throughput and layout over time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from varuna_manager.whatif.ledger import Course, Doing, Span
from varuna_manager.whatif.result import Comparison

WIDTH, LEFT, RIGHT, TOP = 1200, 80, 24, 76
NODES_HEIGHT, RATE_HEIGHT, BAND_HEIGHT, GAP = 120, 220, 30, 44
LINES = ("#1f5fbf", "#d1662b", "#2f8a4c", "#8a4fb0")
BANDS = ("#9ec5e8", "#f4c7a1", "#b5dbb0", "#d6c1e6", "#f0e29a", "#a9dcd8", "#eab8c4", "#cfcfcf")
TICKS_S = (1, 10, 60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
MOVING, PARKED, IDEAL, INK = "#c0392b", "#3d3d3d", "#d9dde3", "#222222"
_LEAST_PX = 1.5
"""Narrower pauses are shown in the band, not as a dip of the line, which would be a block of dips."""

Point = tuple[float, float]
ValueOf = Callable[[Span], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """One panel: seconds to the right, values from 0 to `most` upwards."""

    length_s: float
    top: float
    height: float
    most: float

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / max(self.length_s, 1e-9)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / max(self.most, 1e-9))

    def steps(self, parts: Iterable[tuple[float, float, float]]) -> list[Point]:
        """Return the corners of a line through (start, end, value)."""
        return [point for a, b, v in parts for point in ((self.x(a), self.y(v)), (self.x(b), self.y(v)))]


def svg(compared: Comparison, *, title: str, batch_size: int) -> str:
    """Return the picture as the text of an SVG file."""
    length_s = max((course.end_s for course in compared.courses), default=0.0)
    most_nodes = max((best.num_nodes for best in compared.best), default=0)
    most_rate = max((best.samples_per_s for best in compared.best), default=0.0)
    nodes = _Axes(length_s=length_s, top=TOP, height=NODES_HEIGHT, most=_nice(most_nodes))
    rate_top = TOP + NODES_HEIGHT + GAP
    rate = _Axes(length_s=length_s, top=rate_top, height=RATE_HEIGHT, most=_nice(most_rate))
    band_top = rate_top + RATE_HEIGHT + GAP
    height = band_top + len(compared.courses) * (BAND_HEIGHT + 8) + 40
    parts = [
        *_heading(title, [course.policy for course in compared.courses]),
        *_grid(nodes, "nodes"),
        *_nodes(nodes, compared),
        *_grid(rate, "samples/s"),
        *_rates(rate, compared, batch_size),
        *_bands(rate, compared.courses, band_top),
        *_hours(rate, height - 36),
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
            *parts,
            "</svg>\n",
        )
    )


def _heading(title: str, policies: Sequence[str]) -> Iterator[str]:
    yield _text(LEFT, 22, title, size=15)
    words = [("ideal", IDEAL), *((name, _line_colour(i)) for i, name in enumerate(policies))]
    words += [("moving", MOVING), ("parked", PARKED)]
    x = float(LEFT)
    for word, colour in words:
        yield f'<rect x="{x:.0f}" y="31" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 17, 42, word)
        x += 34 + 7.5 * len(word)


def _nodes(axes: _Axes, compared: Comparison) -> Iterator[str]:
    present = axes.steps((b.start_s, b.end_s, b.num_nodes) for b in compared.best)
    yield _area(axes, present)
    for i, course in _first_on_top(compared):
        used = _visible(axes, course, lambda span: float(span.num_nodes))
        yield _line(used, _line_colour(i))


def _rates(axes: _Axes, compared: Comparison, batch_size: int) -> Iterator[str]:
    yield _area(axes, axes.steps((b.start_s, b.end_s, b.samples_per_s) for b in compared.best))
    for i, course in _first_on_top(compared):
        speed = _visible(axes, course, lambda s: batch_size / s.step_s if s.step_s > 0 else 0.0)
        yield _line(speed, _line_colour(i))


def _first_on_top(compared: Comparison) -> list[tuple[int, Course]]:
    return list(enumerate(compared.courses))[::-1]


def _visible(axes: _Axes, course: Course, value: ValueOf) -> list[Point]:
    """Return the line of a course, over the pauses that are too short to see."""
    wide = [s for s in course.spans if s.doing is Doing.TRAINING or _width(axes, s) >= _LEAST_PX]
    ends = [span.start_s for span in wide[1:]] + [span.end_s for span in wide[-1:]]
    return axes.steps((span.start_s, end_s, value(span)) for span, end_s in zip(wide, ends, strict=True))


def _bands(axes: _Axes, courses: Sequence[Course], top: float) -> Iterator[str]:
    names = dict.fromkeys(s.layout for course in courses for s in course.spans if s.layout)
    colours = {name: BANDS[i % len(BANDS)] for i, name in enumerate(names)}
    for i, course in enumerate(courses):
        y = top + i * (BAND_HEIGHT + 8)
        yield _text(LEFT - 8, y + BAND_HEIGHT / 2 + 4, course.policy, anchor="end")
        for span in course.spans:
            yield from _band(axes, span, y, colours)


def _band(axes: _Axes, span: Span, y: float, colours: dict[str, str]) -> Iterator[str]:
    wide = max(1.0, _width(axes, span))
    colour = {Doing.MOVING: MOVING, Doing.PARKED: PARKED}.get(span.doing) or colours[span.layout]
    told = f"{span.layout or span.doing} from {span.start_s:.0f} s, {span.length_s:.1f} s"
    x = axes.x(span.start_s)
    yield (
        f'<rect x="{x:.2f}" y="{y:.0f}" width="{wide:.2f}" height="{BAND_HEIGHT}" fill="{colour}">'
        f"<title>{escape(told)}</title></rect>"
    )
    if wide > 7 * len(span.layout) + 4 and span.layout:
        yield _text(x + wide / 2, y + BAND_HEIGHT / 2 + 4, span.layout, anchor="middle", size=11)


def _grid(axes: _Axes, name: str) -> Iterator[str]:
    for part in range(5):
        value = axes.most * part / 4
        y = axes.y(value)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e6e6e6" fill="none"/>'
        yield _text(LEFT - 8, y + 4, f"{value:,.4g}", anchor="end", size=11)
    yield _text(LEFT, axes.top - 8, name)


def _hours(axes: _Axes, y: float) -> Iterator[str]:
    every_s = next((tick for tick in TICKS_S if axes.length_s / tick <= 14), TICKS_S[-1])
    for tick in range(floor(axes.length_s / every_s) + 1):
        at_s = tick * every_s
        label = f"{at_s / 3600:.3g} h" if every_s >= 1800 else f"{at_s / 60:.3g} min"
        yield _text(axes.x(at_s), y + 18, label, anchor="middle", size=11)


def _width(axes: _Axes, span: Span) -> float:
    return axes.x(span.end_s) - axes.x(span.start_s)


def _line_colour(index: int) -> str:
    return LINES[index % len(LINES)]


def _line(points: Sequence[Point], colour: str) -> str:
    return f'<path d="{_path(points)}" stroke="{colour}" stroke-width="1.6" fill="none"/>'


def _area(axes: _Axes, points: Sequence[Point]) -> str:
    if not points:
        return ""
    corners = [(points[0][0], axes.y(0)), *points, (points[-1][0], axes.y(0))]
    return f'<path d="{_path(corners)}Z" fill="{IDEAL}"/>'


def _path(points: Sequence[Point]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def _nice(value: float) -> float:
    """Return the next of 1, 2, 4, 5, 8 or 10 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    steps = (1, 2, 4, 5, 8, 10)
    return float(next(step for step in steps if step * power >= value * (1 - 1e-9))) * power
