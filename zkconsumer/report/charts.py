"""Charts as SVG text. Pure. All text from outside is escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 300, 190
_LEFT, _BOTTOM, _TOP, _RIGHT = 52, 28, 12, 12
COLOURS = ("#b3261e", "#1a6fb0", "#2e7d32", "#8e5bb5", "#b26a00", "#546e7a")
#: So that lines on top of each other can be distinguished.
DASHES = ("none", "7 3", "2 3", "9 3 2 3")
#: Colours of members in a timeline; they repeat.
_MEMBERS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7")

Points = Sequence[tuple[float, float]]


def short(value: float) -> str:
    """Return a number in few characters: ``12k``, ``3.4M``, ``0.25``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]


def lines(series: Mapping[str, Points], x_name: str) -> Markup:
    """Draw lines over two logarithmic axes. A value of 0 is drawn as a hollow point on the lowest
    grid line."""
    drawn = [(x, y) for points in series.values() for x, y in points]
    positive = [y for _, y in drawn if y > 0]
    if not drawn or not positive:
        return Markup('<p class="none">nothing to show: all 0</p>')
    ticks = _ticks(min(positive), max(positive))
    low, high = math.log10(ticks[0]), math.log10(max(ticks[-1], ticks[0] * 10))
    xs = [math.log10(x) for x, _ in drawn]
    x_low, x_high = min(xs), max(xs)
    span = x_high - x_low or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / span if x_high > x_low else 0.5
        up = (math.log10(y) - low) / (high - low) if y > 0 else 0.0
        return (
            _LEFT + across * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - up * (HEIGHT - _BOTTOM - _TOP),
        )

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    step = max(1, math.ceil(len(ticks) / 6))
    for tick in ticks[::step]:
        _, y = place(10**x_low, tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">{short(tick)}</text>'
        )
    for x in sorted({x for x, _ in drawn}):
        at, _ = place(x, 1)
        parts.append(
            f'<text x="{at:.1f}" y="{HEIGHT - _BOTTOM + 12}" text-anchor="middle">{short(x)}</text>'
        )
    parts.append(
        f'<text x="{(_LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 3}" text-anchor="middle">'
        f"{escape(x_name)}</text>"
    )
    for index, (name, points) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        spots = [place(x, y) for x, y in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        dash = DASHES[index % len(DASHES)]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" '
            f'points="{path}"/>'
        )
        for (x, y), (_, value) in zip(spots, sorted(points), strict=True):
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" stroke="{colour}" '
                f'fill="{colour if value > 0 else "#fff"}">'
                f"<title>{escape(name)}: {value:,g}</title></circle>"
            )
    return Markup("".join(parts) + "</svg>")


def bars(values: Sequence[float], colour: str) -> Markup:
    """Draw the requests in each second after the event, in at most 300 bars (of several seconds if
    necessary)."""
    group = math.ceil(len(values) / 300) or 1
    rates = [sum(values[i : i + group]) / group for i in range(0, len(values), group)]
    top = max(rates, default=0.0)
    if not top:
        return Markup('<p class="none">no requests</p>')
    width = 520 / max(len(rates), 10)
    parts = ['<svg viewBox="0 0 600 110" role="img">']
    for index, rate in enumerate(rates):
        height = 80 * rate / top
        parts.append(
            f'<rect x="{60 + index * width:.2f}" y="{90 - height:.2f}" width="{width * 0.9:.2f}" '
            f'height="{height:.2f}" fill="{colour}"><title>second {index * group}: {rate:,.0f}/s'
            "</title></rect>"
        )
    parts.append(f'<text x="56" y="16" text-anchor="end">{short(top)}/s</text>')
    parts.append('<text x="60" y="104">0 s</text>')
    parts.append(f'<text x="590" y="104" text-anchor="end">{len(values)} s</text></svg>')
    return Markup("".join(parts))


def timeline(
    spans: Mapping[str, Sequence[tuple[float, float | None, str]]], seconds: float
) -> Markup:
    """Draw the owner of each partition over time, each member in its own colour. Unowned intervals
    are white."""
    if not spans:
        return Markup('<p class="none">no partitions</p>')
    end = max(seconds, 0.001)
    row, height = 12, 12 * len(spans) + 24
    parts = [f'<svg viewBox="0 0 600 {height}" role="img">']
    colours: dict[str, str] = {}
    for index, (partition, owned) in enumerate(spans.items()):
        y = index * row
        parts.append(f'<text x="66" y="{y + 9}" text-anchor="end">{escape(partition[-12:])}</text>')
        for start, stop, member in owned:
            until = end if stop is None else min(stop, end)
            colour = colours.setdefault(member, _MEMBERS[len(colours) % len(_MEMBERS)])
            width = max(0.4, (until - start) / end * 520)
            if start <= end:
                parts.append(
                    f'<rect x="{70 + start / end * 520:.2f}" y="{y + 1}" width="{width:.2f}" '
                    f'height="{row - 2}" fill="{colour}"><title>{escape(partition)}: '
                    f"{escape(member)}, {start:g} s to {until:g} s</title></rect>"
                )
    parts.append(f'<text x="70" y="{height - 6}">event</text>')
    parts.append(f'<text x="590" y="{height - 6}" text-anchor="end">{end:g} s</text></svg>')
    return Markup("".join(parts))
