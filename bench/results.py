"""Read and extend the results of measurements, a CSV file per GPU."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

FOLDER = Path(os.environ.get("BENCH_RESULTS") or Path(__file__).parent / "results")
DIRECTIONS = ("forward", "backward", "both")
OURS = ("autogen", "early", "tuned")  # columns
COMPARED = ("eager", "compile", "liger")  # columns beside "autogen"
OUT_OF_MEMORY = "out of memory"

Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Row:
    """One direction of one case in one column. What could not be measured is empty, and `note` says why.

    Times are µs: the median, and the 20th and 80th percentile. `error` is the largest difference from float64, as a
    share of the largest number there. `gradients` is of how many inputs backward computed theirs. That was 1 in all
    versions up to 2429de29, also of losses of several embeddings (infonce, CosineEmbeddingLoss, TripletMarginLoss,
    MarginRankingLoss) and of GaussianNLLLoss, so that backward and both are not to be compared with later ones.
    """

    gpu: str
    versions: str
    case: str
    size: str
    dtype: str
    column: str
    direction: str
    p20: float | None = None
    median: float | None = None
    p80: float | None = None
    gigabytes_per_second: float | None = None
    percent_of_copy: float | None = None
    launches: int | None = None
    syncs: int | None = None
    peak_bytes: int | None = None
    error: float | None = None
    note: str = ""
    gradients: int = 1

    @property
    def key(self) -> Key:
        """What a row is a measurement of, all directions together."""
        return self.versions, self.case, self.size, self.dtype, self.column


_NUMBERS = {
    each.name: int if "int" in str(each.type) else float for each in fields(Row) if each.type not in ("str", str)
}


def file_of(gpu: str, folder: Path = FOLDER) -> Path:
    """Where the results of a GPU are kept."""
    return folder / (re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".csv")


def append(rows: Iterable[Row], path: Path) -> None:
    """Add rows to a file, which gets a header if it is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        for row in rows:
            writer.writerow({name: "" if value is None else value for name, value in asdict(row).items()})


def read(path: Path) -> list[Row]:
    """All rows of a file; a last line that a killed run left unfinished is not one."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1].decode()
    rows = []
    for found in csv.DictReader(whole.splitlines()):
        values = {name: _parsed(name, text) for name, text in found.items()}
        rows.append(Row(**values))  # type: ignore[arg-type]
    return rows


def _parsed(name: str, text: str) -> str | float | int | None:
    if name not in _NUMBERS:
        return text
    return _NUMBERS[name](text) if text else None


def repair(path: Path) -> None:
    """Cut off a line that a killed run left unfinished."""
    if path.exists():
        content = path.read_bytes()
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def measured(rows: Iterable[Row]) -> set[Key]:
    """What has been measured in all directions, or has no room in memory. What failed is tried again."""
    directions: dict[Key, set[str]] = {}
    for row in rows:
        if row.median is not None or row.note.startswith(OUT_OF_MEMORY):
            directions.setdefault(row.key, set()).add(row.direction)
    return {key for key, found in directions.items() if found >= set(DIRECTIONS)}


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each case, column and direction."""
    return list({(row.case, row.size, row.dtype, row.column, row.direction): row for row in rows}.values())


@dataclass(frozen=True)
class Speedups:
    """How many times as fast "autogen" is as something else: a ratio of medians for each case, ascending."""

    ratios: dict[str, float]

    @property
    def mean(self) -> float:
        """The geometric mean."""
        return math.exp(sum(map(math.log, self.ratios.values())) / len(self.ratios))

    @property
    def count(self) -> int:
        """How many cases both were measured in."""
        return len(self.ratios)

    @property
    def least(self) -> float:
        """The smallest ratio."""
        return min(self.ratios.values())

    @property
    def least_case(self) -> str:
        """The case of the smallest: its name, size and dtype."""
        return min(self.ratios, key=self.ratios.__getitem__)


def speedup_over(columns: Sequence[str], rows: Iterable[Row]) -> Speedups | None:
    """Over the fastest of some columns in each case, forward and backward together, by the last row of each.

    A case is a loss at a size and a dtype. None if no case was measured both in ours and in one of the columns.
    """
    times: dict[str, dict[str, float]] = {}
    for row in latest(rows):
        if row.direction == "both" and row.median is not None:
            times.setdefault(f"{row.case} {row.size} {row.dtype}", {})[row.column] = row.median
    ratios = {}
    for case, found in times.items():
        others = [found[column] for column in columns if column in found]
        if others and "autogen" in found:
            ratios[case] = min(others) / found["autogen"]
    return Speedups(dict(sorted(ratios.items(), key=lambda each: each[1]))) if ratios else None


def speedups(rows: Iterable[Row]) -> dict[str, Speedups]:
    """Over each of the columns `COMPARED` that has cases in common with ours."""
    rows = list(rows)
    return {column: found for column in COMPARED if (found := speedup_over([column], rows))}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, between neighbours in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def table(rows: Sequence[Row]) -> str:
    """Median µs for people: a line per case, size, dtype and direction, ours beside the best other; then notes."""
    columns = list(dict.fromkeys(row.column for row in rows))
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((row.case, row.size, row.dtype, row.direction), {})[row.column] = row
    width = max([30, *(len(" ".join(each)) for each in lines)])
    text = [f"{'median µs':<{width}}" + "".join(f"{each:>15}" for each in columns) + f"{'% of copy':>11}{'speedup':>9}"]
    for line, found in lines.items():
        cells = ""
        for column in columns:
            cell = found.get(column)
            cells += f"{'' if cell is None else cell.note[:14] if cell.median is None else f'{cell.median:.1f}':>15}"
        ours = found.get("autogen")
        others = [each.median for name, each in found.items() if name not in OURS and each.median is not None]
        percent = "" if ours is None or ours.percent_of_copy is None else f"{ours.percent_of_copy:.0f}"
        has_both = ours is not None and ours.median is not None and others
        speedup = f"{min(others) / ours.median:.2f}" if has_both else ""  # type: ignore[operator, union-attr]
        text.append(f"{' '.join(line):<{width}}{cells}{percent:>11}{speedup:>9}")
    noted = [row for found in lines.values() for row in found.values() if row.note]
    text += dict.fromkeys(" ".join((row.case, row.size, row.dtype, row.column, row.note)) for row in noted)
    return "\n".join(text)
