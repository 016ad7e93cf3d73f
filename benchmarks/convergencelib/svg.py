"""Line plots as SVG: axes with ticks, a legend, nothing else."""

import math
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 62, 190, 34, 48
COLOURS = ("#0b6fa4", "#d1495b", "#2e8b57", "#e59b16", "#7a4eab", "#4d4d4d", "#17a2a2", "#b5651d",
           "#c71585", "#6b8e23", "#1e3a8a", "#8b0000", "#708090", "#008b8b", "#9acd32", "#ff7f50")
DASHES = ("", "6 3", "2 3")


def ticks(low, high, wanted=6):
    """Round values that span [low, high]."""
    span = high - low
    if span <= 0:
        return [low]
    step = 10 ** math.floor(math.log10(span / wanted))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= wanted)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value):
    return f"{value:.6g}"


def plot(title, x_label, y_label, series, log_x=False):
    """`series`: (name, [(x, y)]) each. Returns the document."""
    points = [point for _, line in series for point in line if not log_x or point[0] > 0]
    if not points:
        return None
    to_x = math.log10 if log_x else float
    xs = [to_x(x) for x, _ in points]
    ys = sorted(y for _, y in points)
    low_x, high_x = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    low_y, high_y = ys[0], ys[min(len(ys) - 1, int(0.995 * len(ys)))]
    high_y = high_y if high_y > low_y else low_y + 1

    def place(x, y):
        across = LEFT + (to_x(x) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        up = (min(y, high_y) - low_y) / (high_y - low_y)
        return across, HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>']
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    x_ticks = (range(math.ceil(low_x), math.floor(high_x) + 1) if log_x
               else ticks(low_x, high_x))
    for tick in x_ticks:
        value = 10 ** tick if log_x else tick
        at = place(value, low_y)[0]
        out.append(f'<path d="M{at:.1f} {TOP}V{bottom}" stroke="#e4e4e4"/>'
                   f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}'
                   '</text>')
    for tick in ticks(low_y, high_y):
        at = place(points[0][0], tick)[1]
        out.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="#e4e4e4"/>'
                   f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    out.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" stroke="#444" fill="none"/>')
    out.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
               f'{escape(x_label)}</text>')
    out.append(f'<text transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)" '
               f'text-anchor="middle">{escape(y_label)}</text>')
    for index, (name, line) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        style = f'stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}" fill="none"'
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in
                        (place(*point) for point in line if not log_x or point[0] > 0))
        out.append(f'<polyline points="{path}" {style}/>')
        y = TOP + 8 + 17 * index
        out.append(f'<path d="M{right + 12} {y}h22" {style}/>'
                   f'<text x="{right + 40}" y="{y + 4}">{escape(name)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
