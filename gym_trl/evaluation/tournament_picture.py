"""Picture of a tournament: the ratings with their intervals, and the score of each player against each other."""

import re
from collections import defaultdict
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError, needs
from gym_trl.evaluation.pictures import drawn
from gym_trl.evaluation.ratings import Standing, Standings

_CHECKPOINT = re.compile(r"(.*?)/?checkpoint-([0-9]+)")
_LONGEST = 24  # names of players
_FORMATS = (".png", ".svg", ".pdf")


class CheckpointName(NamedTuple):
    """Run and training step in the name of a checkpoint."""

    run: str
    step: int


def read_checkpoint(name: str) -> CheckpointName | None:
    """Return the run and the step that the name of a player names; ``None`` if it is no checkpoint.

    >>> read_checkpoint("runs/x/checkpoint-40"), read_checkpoint("solver")
    (CheckpointName(run='runs/x', step=40), None)
    """
    match = _CHECKPOINT.fullmatch(name)
    return CheckpointName(match[1], int(match[2])) if match else None


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn to a file.

    Raises:
        ConfigError: its name does not end in a format of pictures.
        MissingDependencyError: matplotlib is not installed.
    """
    if path.suffix not in _FORMATS:
        raise ConfigError(f"a picture must be called .png, .svg or .pdf, got {path}")
    with needs("train", "a picture"):
        import matplotlib  # noqa: F401


def draw_standings(standings: Standings, path: Path, *, title: str = "") -> Path:
    """Draw the standings of a tournament to a file, and return its path.

    ::

        draw_standings(tournament("TrlEnv/Nim-v0", ["solver", "random"]).standings, Path("nim.png"))

    On the left are the ratings with their 95% intervals: of checkpoints as a line over their training steps, one for
    each run, with the other players as levels; without checkpoints, of all players. On the right is the score of the
    player in each row against the one in each column.

    Args:
        standings: Ratings and results.
        path: A file that ends in .png, .svg or .pdf; it is replaced if it exists.
        title: Heading.

    Raises:
        ConfigError: ``path`` has another ending, or there are no players.
        MissingDependencyError: matplotlib is not installed.
    """
    check_picture(path)
    rows = standings.rows
    if not rows:
        raise ConfigError("there are no players to draw")
    height = max(3.2, 1.2 + 0.32 * len(rows))
    with drawn(path, (6 + height, height), title=title) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[5.5, height])
        zero = "the mean is 0" if standings.anchor is None else f"{standings.anchor} is 0"
        if len([row for row in rows if read_checkpoint(row.player)]) > 1:
            _draw_over_steps(left, rows)
            left.set(xlabel="step", ylabel=f"rating ({zero})")
        else:
            _draw_levels(left, rows)
            left.set(xlabel=f"rating ({zero})")
        left.grid(alpha=0.3)
        _draw_scores(right, standings)
    return path


def _draw_over_steps(axes: Any, rows: Sequence[Standing]) -> None:
    runs = defaultdict(list)
    for row in rows:
        if (named := read_checkpoint(row.player)) is not None:
            runs[named.run].append((named.step, row.rating))
    for number, (run, points) in enumerate(sorted(runs.items())):
        points.sort(key=lambda point: point[0])
        steps, ratings = zip(*points, strict=True)
        colour = f"C{number}"
        axes.plot(steps, [one.rating for one in ratings], color=colour, marker="o", markersize=4, label=_label(run))
        axes.fill_between(steps, *zip(*((one.low, one.high) for one in ratings), strict=True), color=colour, alpha=0.2)
    if len(runs) > 1:
        axes.legend(fontsize=8)
    for row in rows:
        if read_checkpoint(row.player) is None:
            axes.axhspan(row.rating.low, row.rating.high, color="tab:gray", alpha=0.08, linewidth=0)
            axes.axhline(row.rating.rating, color="tab:gray", linestyle="--", linewidth=1)
            beside = {"transform": axes.get_yaxis_transform(), "color": "dimgray", "va": "bottom", "fontsize": 8}
            axes.text(0.01, row.rating.rating, _label(row.player), **beside)


def _draw_levels(axes: Any, rows: Sequence[Standing]) -> None:
    heights, ratings = range(len(rows)), [row.rating for row in rows]
    reach = [[one.rating - one.low for one in ratings], [one.high - one.rating for one in ratings]]
    axes.errorbar([one.rating for one in ratings], heights, xerr=reach, fmt="o", capsize=3, color="tab:blue")
    axes.set_yticks(heights, [_label(row.player) for row in rows])
    axes.invert_yaxis()


def _draw_scores(axes: Any, standings: Standings) -> None:
    names = [row.player for row in standings.rows]
    scores = [[_score(standings, one, other) for other in names] for one in names]
    image = axes.imshow(scores, cmap="RdYlGn", vmin=0, vmax=1)
    numbers = [str(number) for number in range(1, len(names) + 1)]
    axes.set_xticks(range(len(names)), numbers, fontsize=8)
    axes.set_yticks(
        range(len(names)), [f"{_label(name)}  {n}" for n, name in zip(numbers, names, strict=True)], fontsize=8
    )
    axes.set_title("score of the row against the column", fontsize=9)
    if len(names) <= 16:
        for y, row in enumerate(scores):
            for x, score in enumerate(row):
                if not isnan(score):
                    axes.text(x, y, f"{score:.2f}".removeprefix("0"), ha="center", va="center", fontsize=7)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _score(standings: Standings, one: str, other: str) -> float:
    """Return a score; NaN if the two have not met, which is left white."""
    tally = standings.pairs.get((one, other))
    return float("nan") if tally is None or tally.score is None else tally.score


def _label(name: str) -> str:
    """Return the end of a name, of a length for which there is room."""
    return name if len(name) <= _LONGEST else f"...{name[3 - _LONGEST :]}"
