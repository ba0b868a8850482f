"""Card as a page: one Markdown, and HTML that markdown-it (a dependency of rich) makes of it."""

import html
import re
from collections.abc import Iterator, Mapping, Sequence

from gym_trl.env_checker.card.card import Card
from gym_trl.env_checker.card.plays import Level
from gym_trl.evaluation.estimates import Estimate
from gym_trl.report import OK, PROBLEM, SKIPPED, WARNING
from gym_trl.text import counted, short_count

MARKS: Mapping[str, str] = {OK: "ok", WARNING: "warning", PROBLEM: "error", SKIPPED: "not checked"}
"""Verdicts as tables write them."""


def markdown(card: Card) -> str:
    """Return a card as a Markdown page."""
    sections = {
        "": _head(card),
        "Rules": [_code(card.instructions) if card.instructions else "The environment has no instructions."],
        "Example": _example(card),
        "Scores": _scores(card),
        "Findings": _findings(card),
        "Size": list(_size(card)) or ["Not measured."],
        "Tasks": _tasks(card),
    }
    blocks = [f"# {card.env_id}"]
    for title, section in sections.items():
        paragraphs = list(section)
        blocks += [f"## {title}"] * bool(title and paragraphs) + paragraphs
    return "\n\n".join(blocks).rstrip() + "\n"


def page(card: Card) -> str:
    """Return a card as an HTML page, which needs nothing else."""
    return html_page(card.env_id, markdown(card))


def html_page(title: str, text: str) -> str:
    """Return Markdown as an HTML page, which needs nothing else."""
    from markdown_it import MarkdownIt

    # Texts of an environment may write neither HTML nor images, which would be loaded from elsewhere.
    reader = MarkdownIt("zero", {"html": False}).enable(
        ["table", "fence", "heading", "backticks", "escape", "entity", "link"]
    )
    words = r"<td>(error|warning|ok)</td>"
    body = re.sub(words, r'<td class="\1">\1</td>', reader.render(text))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n<main>\n{body}</main>\n'
    )


_STYLE = """
:root{color-scheme:light dark;--soft:light-dark(#5d6168,#a0a6ad);--line:light-dark(#e3e2dc,#2b3036);
--sunk:light-dark(#f2f2ee,#1d2125);--good:light-dark(#1f7a45,#5ecb8d);--bad:light-dark(#b3372f,#ff8d83);
--warn:light-dark(#96610a,#e7b356);--accent:light-dark(#3557c7,#8ea6ff)}
body{margin:0;font:15px/1.5 system-ui,sans-serif;background:light-dark(#fff,#0f1113);color:light-dark(#1b1d20,#e8e9ea);
font-variant-numeric:tabular-nums}
main{max-width:60rem;margin:0 auto;padding:2rem 1rem}
h1{font-size:1.6rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}a{color:var(--accent)}
table{border-collapse:collapse;display:block;overflow-x:auto;font-size:.9em}th,td{padding:.25rem .6rem;text-align:left;
vertical-align:top;border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:500}
td:first-child{white-space:nowrap}thead:not(:has(th:not(:empty))){display:none}
pre{background:var(--sunk);padding:.8rem;border-radius:6px;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85em}
.error{color:var(--bad);font-weight:600}.warning{color:var(--warn);font-weight:600}.ok{color:var(--good)}
"""


# ---------------------------------------------------------------------------------------------------------------------
# Sections, as paragraphs of Markdown
# ---------------------------------------------------------------------------------------------------------------------


def _head(card: Card) -> Iterator[str]:
    if card.summary:
        yield card.summary.replace("``", "`")
    counts = [counted(card.count(name), MARKS[name]) for name in (PROBLEM, WARNING) if card.count(name)]
    counts.append(f"{card.count(OK)} ok")
    arguments = ", ".join(f"{name}={value!r}" for name, value in card.env_kwargs.items())
    rows = [("arguments", arguments or "the defaults"), ("findings", ", ".join(counts))]
    if card.spec:
        rows.insert(1, ("trained with", ", ".join(f"{name}={value!r}" for name, value in card.spec.items())))
    rows += [("observations", card.observations), ("actions", card.actions)]
    if card.num_seats > 1:
        rows.append(("seats", f"{card.num_seats}; scores need opponents, see gym-trl eval --against"))
    yield table(("", ""), rows)


def _example(card: Card) -> Iterator[str]:
    if (example := card.example) is None:
        return
    yield f"An episode played by {_the(example.policy)} (seed {example.seed})."
    lines = [example.prompt.replace(card.instructions, "[the rules]", 1)]
    for number, (response, observation, reward) in enumerate(example.turns):
        if example.left_out and number == len(example.turns) - 2:
            lines.append(f"[{example.left_out} turns]")
        lines += [f"> {response}", observation + (f"   (reward {reward:g})" if reward else "")]
    yield _code("\n".join(lines))


def _the(policy: str) -> str:
    return "the solver" if policy == "solver" else policy


def _scores(card: Card) -> Iterator[str]:
    if not card.levels:
        return
    rows = []
    if card.optimal_success is not None or card.optimal_return is not None:
        exact = tuple(str(Estimate(score)) for score in (card.optimal_success, card.optimal_return))
        rows.append(("optimum", *exact, "", "", "declared, exact"))
    rows += [_score(level) for level in (*card.levels, *card.others)]
    yield "Means with 95% intervals, all on the same held-out tasks."
    yield table(("policy", "success", "return", "turns", "episodes", ""), rows)


def _score(level: Level) -> tuple[str, ...]:
    turns = "" if level.turns is None else f"{level.turns:.1f}"
    return level.policy, str(level.success), str(level.mean_return), turns, str(level.episodes), level.about


def _findings(card: Card) -> Iterator[str]:
    order = (PROBLEM, WARNING, SKIPPED)
    findings = [finding for verdict in order for finding in card.findings if finding.verdict is verdict]
    if findings:
        rows = [(MARKS[finding.verdict], finding.name, finding.got, finding.fix) for finding in findings]
        yield table(("", "check", "finding", "change"), rows)
    if fine := [finding.name for finding in card.findings if finding.verdict is OK]:
        yield f"No finding in: {', '.join(fine)}."


def _size(card: Card) -> Iterator[str]:
    rows = []
    if (tokens := card.tokens) is not None:
        rows += [
            ("tokenizer", tokens.tokenizer),
            ("tokens of the prompt", f"{tokens.prompt:g}"),
            ("tokens of later observations", f"{tokens.observations:g} per episode"),
            ("tokens of marked actions", f"{tokens.actions:g} per episode, without reasoning"),
            ("longest episode", f"{tokens.longest:,} tokens, played by {_the(tokens.of)}"),
        ]
    if rows:
        yield table(("", ""), rows)


def _tasks(card: Card) -> Iterator[str]:
    if (splits := card.splits) is None:
        return
    declared = "not counted" if splits.num_instances is None else short_count(splits.num_instances)
    rows = [
        ("tasks that the environment declares", declared),
        ("compared", f"{splits.evaluated} of the evaluation with {splits.trained} of the training"),
        ("different tasks among them", str(splits.different)),
        ("evaluation tasks that the training has, too", f"{splits.shared:.0%}"),
        ("told apart by", splits.known_by),
    ]
    yield table(("", ""), rows)


# ---------------------------------------------------------------------------------------------------------------------
# Markdown
# ---------------------------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    rule = "|".join("---" for _ in columns)
    return "\n".join([_row(columns), f"|{rule}|", *map(_row, rows)])


def _code(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    r"""Return a text for one cell of a Markdown table.

    >>> _cell("a|b\n<c>")
    'a\\|b &lt;c&gt;'
    """
    line = " ".join(text.split()).replace("|", "\\|")
    return line.replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*")
