"""Card as a page: sections of paragraphs, tables and texts, written as Markdown or HTML."""

import html
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gym_trl.env_checker.card.card import Card
from gym_trl.env_checker.card.learning import Learning
from gym_trl.env_checker.card.plays import Level
from gym_trl.env_checker.report import OK, PROBLEM, SKIPPED, WARNING
from gym_trl.text.textify import counted, short_count

_MARKS = {OK: "ok", WARNING: "warning", PROBLEM: "error", SKIPPED: "not checked"}


@dataclass(frozen=True, slots=True)
class Table:
    """Table of texts; the first column names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Text that is shown as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of a training by step."""

    values: tuple[float, ...]
    name: str


Block: TypeAlias = str | Table | Code | Curve
Sections: TypeAlias = dict[str, list[Block]]


def sections(card: Card) -> Sections:
    """Return the sections of a card by their titles."""
    found: Sections = {"": list(_head(card))}
    found["Rules"] = [Code(card.instructions)] if card.instructions else ["The environment has no instructions."]
    if card.example is not None:
        found["Example"] = list(_example(card))
    if card.levels:
        found["Scores"] = list(_scores(card))
    found["Findings"] = list(_findings(card))
    found["Size and speed"] = list(_size(card)) or ["Not measured."]
    found["Learning"] = list(_learning(card.learning))
    if card.splits is not None:
        found["Tasks"] = [_tasks(card)]
    if card.criteria:
        found["Criteria of OpenEnv's RFC 008"] = list(_criteria(card))
    return found


def markdown(card: Card) -> str:
    """Return a card as a Markdown page."""
    lines = [f"# {card.env_id}", ""]
    for title, blocks in sections(card).items():
        lines += [f"## {title}", ""] if title else []
        for block in blocks:
            lines += [*_as_markdown(block), ""]
    return "\n".join(lines).rstrip() + "\n"


def page(card: Card) -> str:
    """Return a card as an HTML page, which needs nothing else."""
    name = html.escape(card.env_id)
    parts = [f"<h1>{name}</h1>"]
    for title, blocks in sections(card).items():
        parts += [f"<h2>{html.escape(title)}</h2>"] if title else []
        parts += [_as_html(block) for block in blocks]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{name}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n<main>\n{body}\n</main>\n'
    )


# ---------------------------------------------------------------------------------------------------------------------
# Sections
# ---------------------------------------------------------------------------------------------------------------------


def _head(card: Card) -> Iterator[Block]:
    if card.summary:
        yield card.summary.replace("``", "`")
    counts = [counted(card.count(name), _MARKS[name]) for name in (PROBLEM, WARNING) if card.count(name)]
    counts.append(f"{card.count(OK)} ok")
    arguments = ", ".join(f"{name}={value!r}" for name, value in card.env_kwargs.items())
    rows = [("arguments", arguments or "the defaults"), ("findings", ", ".join(counts))]
    if card.spec:
        rows.insert(1, ("trained with", ", ".join(f"{name}={value!r}" for name, value in card.spec.items())))
    if (source := card.source) is not None:
        package = f"{source.package} {source.version}" if source.package else "none: a module or file of its own"
        rows += [("class", source.made_by), ("package", package), ("licence", source.licence or "not stated")]
        rows += [("source", source.homepage)] if source.homepage else []
    rows += [("observations", card.observations), ("actions", card.actions)]
    if card.num_seats > 1:
        rows.append(("seats", f"{card.num_seats}; scores need opponents, see gym-trl tournament"))
    yield Table(("", ""), tuple(rows))


def _example(card: Card) -> Iterator[Block]:
    one = card.example
    assert one is not None
    yield f"An episode played by {_the(one.policy)} (seed {one.seed})."
    lines = [one.prompt.replace(card.instructions, "[the rules]", 1)]
    for number, (response, observation, reward) in enumerate(one.turns):
        if one.left_out and number == len(one.turns) - 2:
            lines.append(f"[{one.left_out} turns]")
        lines += [f"> {response}", observation + (f"   (reward {reward:g})" if reward else "")]
    yield Code("\n".join(lines))


def _the(policy: str) -> str:
    return "the solver" if policy == "solver" else policy


def _scores(card: Card) -> Iterator[Block]:
    rows = []
    if card.optimal_success is not None or card.optimal_return is not None:
        exact = tuple(_number(one) for one in (card.optimal_success, card.optimal_return))
        rows.append(("optimum", *exact, "", "", "declared, exact"))
    rows += [_score(one) for one in (*card.levels, *card.others)]
    yield "Means with 95% intervals, all on the same held-out tasks except for published values."
    yield Table(("policy", "success", "return", "turns", "episodes", ""), tuple(rows))


def _score(level: Level) -> tuple[str, ...]:
    turns = "" if level.turns is None else f"{level.turns:.1f}"
    return level.policy, str(level.success), str(level.mean_return), turns, str(level.episodes), level.about


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _findings(card: Card) -> Iterator[Block]:
    order = (PROBLEM, WARNING, SKIPPED)
    found = sorted((one for one in card.findings if one.verdict in order), key=lambda one: order.index(one.verdict))
    fine = [one.promise for one in card.findings if one.verdict == OK]
    if found:
        rows = tuple((_MARKS[one.verdict], one.promise, one.got, one.fix) for one in found)
        yield Table(("", "check", "finding", "change"), rows)
    if fine:
        yield f"No finding in: {', '.join(fine)}."


def _size(card: Card) -> Iterator[Block]:
    rows = []
    if (tokens := card.tokens) is not None:
        rows += [
            ("tokenizer", tokens.tokenizer),
            ("tokens of the prompt", f"{tokens.prompt:g}"),
            ("tokens of later observations", f"{tokens.observations:g} per episode"),
            ("tokens of marked actions", f"{tokens.actions:g} per episode, without reasoning"),
            ("longest episode", f"{tokens.longest:,} tokens, played by {_the(tokens.of)}"),
        ]
    if (speed := card.speed) is not None:
        rows.append(("alone", f"{_rate(speed.steps)} steps/s, {_rate(speed.episodes)} episodes/s"))
        parallel = "not measured"
        if speed.parallel_steps is not None and speed.parallel_episodes is not None:
            parallel = f"{_rate(speed.parallel_steps)} steps/s, {_rate(speed.parallel_episodes)} episodes/s"
        rows.append((f"{speed.concurrent} at a time", f"{parallel} with executor {speed.executor!r} ({speed.reason})"))
        rows.append(("measured on", speed.machine))
    if rows:
        yield Table(("", ""), tuple(rows))


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _learning(learning: Learning | None) -> Iterator[Block]:
    if learning is None:
        yield "Not measured: `gym-trl card ID --train 120` trains a tiny model for two minutes."
        return
    if learning.error is not None:
        yield f"The tiny model could not be trained: {learning.error}"
        return
    told = f"A tiny model with random weights, trained for {learning.seconds:.0f} s ({learning.steps} steps)"
    if learning.arguments:
        told += f" with `{' '.join(learning.arguments)}`"
    ends = f"{learning.objective} {learning.first:.3f} in the first fifth of the steps, {learning.last:.3f} in the last"
    judged = "it improves" if learning.improved else "no improvement beyond chance"
    yield f"{told}: {ends}; {judged}."
    if learning.before is not None and learning.after is not None:
        yield f"On evaluation tasks: {learning.before:.3f} before, {learning.after:.3f} after, without sampling."
    yield Curve(learning.values, f"{learning.objective} by step")


def _tasks(card: Card) -> Block:
    splits = card.splits
    assert splits is not None
    declared = "not counted" if splits.num_instances is None else short_count(splits.num_instances)
    return Table(
        ("", ""),
        (
            ("tasks that the environment declares", declared),
            ("compared", f"{splits.evaluated} of the evaluation with {splits.trained} of the training"),
            ("different tasks among them", str(splits.different)),
            ("evaluation tasks that the training has, too", f"{splits.shared:.0%}"),
            ("told apart by", splits.known_by),
        ),
    )


def _criteria(card: Card) -> Iterator[Block]:
    yield (
        "The acceptance tests of [issue 778](https://github.com/huggingface/OpenEnv/issues/778), as far as they can be "
        "measured of a Python environment. Where the RFC leaves a bound open, the threshold is this library's."
    )
    rows = tuple((one.number, one.check_id, one.status, one.value, one.threshold) for one in card.criteria)
    yield Table(("test", "check", "", "value", "threshold"), rows)


# ---------------------------------------------------------------------------------------------------------------------
# Markdown
# ---------------------------------------------------------------------------------------------------------------------

_BARS = "▁▂▃▄▅▆▇█"


def _as_markdown(block: Block) -> list[str]:
    if isinstance(block, Table):
        rule = "|".join("---" for _ in block.columns)
        return [_row(block.columns), f"|{rule}|", *map(_row, block.rows)]
    if isinstance(block, Code):
        fence = "```"
        while fence in block.text:
            fence += "`"
        return [f"{fence}text", *block.text.split("\n"), fence]
    if isinstance(block, Curve):
        return [f"`{_sparkline(block.values)}` {block.name}"]
    return [block]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    r"""Return a text for one cell of a Markdown table.

    >>> _cell("a|b\n<c>")
    'a\\|b &lt;c&gt;'
    """
    line = " ".join(text.split()).replace("|", "\\|")
    return line.replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*")


def _sparkline(values: Sequence[float], most: int = 40) -> str:
    """Return values as a line of bars.

    >>> _sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    means = _thinned(values, most)
    low, high = min(means), max(means)
    scale = (high - low) or 1.0
    return "".join(_BARS[min(7, int((value - low) / scale * 8))] for value in means)


def _thinned(values: Sequence[float], most: int) -> list[float]:
    """Return at most so many means of consecutive values."""
    size = max(1, math.ceil(len(values) / most))
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    return [sum(part) / len(part) for part in parts]


# ---------------------------------------------------------------------------------------------------------------------
# HTML
# ---------------------------------------------------------------------------------------------------------------------

_STYLE = """
:root{color-scheme:light dark;--soft:light-dark(#5d6168,#a0a6ad);--line:light-dark(#e3e2dc,#2b3036);
--sunk:light-dark(#f2f2ee,#1d2125);--good:light-dark(#1f7a45,#5ecb8d);--bad:light-dark(#b3372f,#ff8d83);
--warn:light-dark(#96610a,#e7b356);--accent:light-dark(#3557c7,#8ea6ff)}
body{margin:0;font:15px/1.5 system-ui,sans-serif;background:light-dark(#fff,#0f1113);color:light-dark(#1b1d20,#e8e9ea);
font-variant-numeric:tabular-nums}
main{max-width:60rem;margin:0 auto;padding:2rem 1rem}
h1{font-size:1.6rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}a{color:var(--accent)}
table{border-collapse:collapse;width:100%;font-size:.9em}th,td{padding:.25rem .6rem;text-align:left;vertical-align:top;
border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:500}td:first-child{white-space:nowrap}
div.wide{overflow-x:auto}pre{background:var(--sunk);padding:.8rem;border-radius:6px;white-space:pre-wrap;
overflow-wrap:anywhere;font-size:.85em}
.error,.fail{color:var(--bad);font-weight:600}.warning{color:var(--warn);font-weight:600}.ok,.pass{color:var(--good)}
svg{width:100%;max-width:40rem;height:auto;color:var(--accent)}svg text{fill:var(--soft);font-size:11px}
"""
_COLOURED = {"error", "warning", "ok", "pass", "fail"}


def _as_html(block: Block) -> str:
    if isinstance(block, Table):
        head = "".join(f"<th>{html.escape(name)}</th>" for name in block.columns) if any(block.columns) else ""
        rows = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in block.rows)
        return f'<div class="wide"><table>{f"<tr>{head}</tr>" if head else ""}\n{rows}\n</table></div>'
    if isinstance(block, Code):
        return f"<pre>{html.escape(block.text)}</pre>"
    if isinstance(block, Curve):
        return _svg(block)
    return f"<p>{_inline(block)}</p>"


def _html_cell(text: str) -> str:
    return f'<td class="{text}">{text}</td>' if text in _COLOURED else f"<td>{html.escape(text)}</td>"


def _inline(text: str) -> str:
    """Return a paragraph with its links and code.

    >>> _inline("See [a](https://b) and `c < d`.")
    'See <a href="https://b">a</a> and <code>c &lt; d</code>.'
    """
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"\[([^\]]+)\]\((https?://[^)\s]+)\)", r'<a href="\2">\1</a>', escaped)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)


def _svg(curve: Curve, width: int = 600, height: int = 160) -> str:
    """Return a curve as an inline picture."""
    means = _thinned(curve.values, 120)
    low, high = min(0.0, *means), max(1.0 if max(means) <= 1.0 else max(means), *means)
    left, bottom = 34, 20

    def place(number: int, value: float) -> str:
        x = left + (width - left - 6) * number / max(1, len(means) - 1)
        y = 8 + (height - bottom - 8) * (1 - (value - low) / ((high - low) or 1.0))
        return f"{x:.1f},{y:.1f}"

    points = " ".join(place(number, value) for number, value in enumerate(means))
    label = html.escape(curve.name)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f'<path d="M{left} 8V{height - bottom}H{width - 6}" fill="none" stroke="currentColor" opacity=".35"/>'
        f'<text x="{left - 4}" y="14" text-anchor="end">{high:.2g}</text>'
        f'<text x="{left - 4}" y="{height - bottom}" text-anchor="end">{low:.2g}</text>'
        f'<text x="{width - 6}" y="{height - 5}" text-anchor="end">{label}, {len(curve.values)} steps</text>'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"/></svg>'
    )
