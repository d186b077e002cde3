"""Figures of both engines side by side."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.common import spread

Record = dict[str, Any]  # one run: workload, metrics, foreign


def summarise(workload: Any, ours: list[Record], theirs: list[Record]) -> list[Record]:
    """A row for each metric. The ratio is the median over pairs of runs that followed one another: what slows the
    machine down for a while slows both.
    """
    rows = []
    for metric in workload.metrics:
        a, b = ([run["metrics"][metric.name] for run in runs] for runs in (ours, theirs))
        ratios = [metric.ratio(x, y) for x, y in zip(a, b, strict=False)]
        rows.append(
            {
                "workload": workload.name,
                "about": workload.about,
                "metric": metric.name,
                "unit": metric.unit,
                "octavo": spread(a),
                "peer": spread(b) if b else None,
                "ratio": spread(ratios) if ratios else None,
            }
        )
    return rows


def table(rows: list[Record], peer: str) -> str:
    lines = [
        f"| | | octavo | {peer} | octavo / {peer} |",
        "|---|---|--:|--:|--:|",
    ]
    for row in rows:
        ours, theirs, ratio = (show(row[key]) for key in ("octavo", "peer", "ratio"))
        lines.append(f"| {row['about']} | {row['metric']}, {row['unit']} | {ours} | {theirs} | {ratio} |")
    return "\n".join(lines)


def show(value: dict[str, float] | None) -> str:
    if value is None:
        return "-"
    median, least, most = value["median"], value["min"], value["max"]
    digits = 2 if median < 10 else 1 if median < 100 else 0
    return f"{median:,.{digits}f} ({least:,.{digits}f} - {most:,.{digits}f})"


def warning(runs: list[Record]) -> str:
    shares = [run["foreign"] for run in runs]
    middle, most = statistics.median(shares), max(shares)
    if most < 0.05:
        return f"other work took {middle:.0%} of the processors (at most {most:.0%})"
    return f"WARNING: other work took {middle:.0%} of the processors in the middle run, and {most:.0%} in the worst"


def plot(rows: list[Record], peer: str, model: str, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row["ratio"]][::-1]
    ratios = [row["ratio"]["median"] for row in rows]
    errors = [
        [row["ratio"]["median"] - row["ratio"]["min"] for row in rows],
        [row["ratio"]["max"] - row["ratio"]["median"] for row in rows],
    ]
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.45 * len(rows)), layout="constrained")
    axes.barh([f"{row['about']}: {row['metric']}" for row in rows], ratios, xerr=errors, color="#4878a8", capsize=3)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel(f"octavo / {peer}: to the right of 1, octavo is faster")
    axes.set_title(model)
    figure.savefig(path, dpi=150)
