"""Drawings of `bench/results/*.csv`: a panel per case, time forward and backward over size, a line per column.

python -m bench.plots
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.results import FOLDER, Row, read

COLORS = {
    "eager": "#888888",
    "torch": "#8c564b",
    "compile": "#1f77b4",
    "autotune": "#17becf",
    "liger": "#2ca02c",
    "autogen": "#d62728",
    "early": "#ff7f0e",
    "tuned": "#9467bd",
}
OTHERS = ("#888888", "#8c564b", "#1f77b4", "#2ca02c", "#d62728", "#ff7f0e", "#9467bd")  # of columns not named above
WIDTH, HEIGHT, MARGIN = 520, 260, 60


def drawing(rows: Sequence[Row]) -> str:
    """The SVG of one GPU's results."""
    cases = list(dict.fromkeys((row.case, row.dtype) for row in rows))
    panels = [_panel([row for row in rows if (row.case, row.dtype) == case], k) for k, case in enumerate(cases)]
    size = f'width="{WIDTH + 150}" height="{(HEIGHT + MARGIN) * len(cases) + 40}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    title = f'<text x="10" y="20" font-size="14">{escape(rows[-1].gpu)}, {escape(rows[-1].versions)}</text>'
    return "\n".join([head, title, *panels, "</svg>\n"])


def _panel(rows: Sequence[Row], number: int) -> str:
    """One case: µs of both directions, logarithmic, over the sizes in the order of their elements."""
    found = [row for row in rows if row.direction == "both" and row.median]
    top = 40 + number * (HEIGHT + MARGIN)
    text = [f'<text x="10" y="{top}" font-weight="bold">{escape(rows[0].case)}, {rows[0].dtype}</text>']
    if not found:
        return text[0]
    sizes = sorted({row.size for row in found}, key=lambda size: (math.prod(map(int, size.split("x"))), size))
    low, high = (f(math.log10(row.median or 1) for row in found) for f in (min, max))

    def place(row: Row) -> tuple[float, float]:
        x = MARGIN + (WIDTH - MARGIN) * (sizes.index(row.size) + 0.5) / len(sizes)
        share = (math.log10(row.median or 1) - low) / ((high - low) or 1)
        return x, top + 10 + (HEIGHT - MARGIN) * (1 - share)

    for k, size in enumerate(sizes):
        x = MARGIN + (WIDTH - MARGIN) * (k + 0.5) / len(sizes)
        turned = f'transform="rotate(-30 {x:.0f} {top + HEIGHT - 30})" text-anchor="end"'
        text.append(f'<text x="{x:.0f}" y="{top + HEIGHT - 30}" {turned}>{size}</text>')
    for row in (min(found, key=lambda row: row.median or 0), max(found, key=lambda row: row.median or 0)):
        text.append(f'<text x="5" y="{place(row)[1]:.0f}">{row.median:.0f} µs</text>')
    for k, column in enumerate(dict.fromkeys(row.column for row in found)):
        latest = {row.size: row for row in found if row.column == column}
        points = [place(latest[size]) for size in sizes if size in latest]
        color = COLORS.get(column, OTHERS[k % len(OTHERS)])
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        text.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        text += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>' for x, y in points]
        text.append(f'<text x="{WIDTH + 15}" y="{top + 20 + 16 * k}" fill="{color}">{escape(column)}</text>')
    return "\n".join(text)


def main(folder: Path = FOLDER) -> int:
    """Draw every file of results."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        print(f"There are no results in {folder.name}/: run bench/gpu_check.sh on a GPU.", file=sys.stderr)
        return 2
    for path in files:
        rows = read(path)
        if not rows:
            continue
        path.with_suffix(".svg").write_text(drawing(rows), encoding="utf-8")
        print(f"{path.with_suffix('.svg').name}: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
