"""Pieces of HTML for a notebook's cells, in the notebook's own colours, light or dark; every text is escaped."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

_GREY: Final = "rgba(128,128,128,.35)"
_CELL: Final = f"text-align:left;vertical-align:top;padding:.2em .7em .2em 0;border:0;border-top:1px solid {_GREY}"
_TEXT: Final = (
    "white-space:pre-wrap;overflow-wrap:anywhere;margin:.2em 0;padding:.3em .6em;border:0;background:transparent;"
    f"color:inherit;border-left:3px solid {_GREY};font:12px/1.45 ui-monospace,Menlo,Consolas,monospace"
)


class Html(str):
    """HTML that a notebook displays, with a text for places that show none.

    >>> Html.of("<b>1</b>", "one")
    one
    """

    text: str

    @classmethod
    def of(cls, markup: str, text: str) -> "Html":
        """Return HTML with its text."""
        made = cls(markup)
        made.text = text
        return made

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return str(self)


def escaped(text: object) -> str:
    """Return a text as HTML without tags.

    >>> escaped("<script>1 & 2</script>")
    '&lt;script&gt;1 &amp; 2&lt;/script&gt;'
    """
    # What UTF-8 does not have would stop the notebook from being saved; a null ends some readers.
    clean = str(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    return html.escape(clean).replace("\n", "&#10;").replace("\r", "&#13;")  # a blank line would end it in Markdown


def pre(text: object, label: str = "") -> str:
    """Return a text with its line breaks, behind a small label."""
    before = f'<span style="opacity:.65;font-size:85%">{escaped(label)}</span>' if label else ""
    return f'{before}<pre style="{_TEXT}">{escaped(text)}</pre>'


def table(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table of texts; a ``Html`` is taken as it is."""
    head = "".join(f'<th style="{_CELL};border-top:0">{escaped(one)}</th>' for one in header)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    cells = (
        "".join(f'<td style="{_CELL}">{one if isinstance(one, Html) else escaped(one)}</td>' for one in row)
        for row in rows
    )
    body = "".join(f'<tr style="background:transparent">{row}</tr>' for row in cells)
    return f'<table style="border-collapse:collapse;border:0;margin:.3em 0">{head}<tbody>{body}</tbody></table>'


def card(title: object, *parts: str, more: object = "") -> str:
    """Return a title, with something smaller beside it, and the parts below."""
    aside = f' <span style="opacity:.65">{escaped(more)}</span>' if more else ""
    return f'<div style="max-width:62em"><div><b>{escaped(title)}</b>{aside}</div>{"".join(parts)}</div>'


def folded(summary: object, inside: str) -> str:
    """Return something that opens at a click."""
    return f'<details><summary style="cursor:pointer;opacity:.65">{escaped(summary)}</summary>{inside}</details>'


def number(value: Any, digits: int = 3) -> str:
    """Return a number as text, without the zeros of a whole one.

    >>> number(0.5), number(12.0), number(None), number(float("nan"))
    ('0.500', '12', '-', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.{digits}f}"


def curve(values: Sequence[float], low: float, high: float, *, width: int = 230, height: int = 64) -> str:
    """Return a curve as SVG: a thin line for the values, and a thick one for their running mean."""
    if low == high:
        low, high = low - 1.0, high + 1.0
    across, up = (width - 8) / max(len(values) - 1, 1), (height - 8) / (high - low)

    def line(points: Iterable[float], colour: str, size: float) -> str:
        at = " ".join(f"{4 + place * across:.1f},{4 + (high - one) * up:.1f}" for place, one in enumerate(points))
        return f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{size}" stroke-linecap="square"/>'

    span = max(1, len(values) // 8)
    recent = (values[max(0, end - span) : end] for end in range(1, len(values) + 1))
    means = [math.fsum(part) / len(part) for part in recent]
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" style="display:block">'
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" fill="none" stroke="{_GREY}"/>'
        f"{line(values, 'rgba(128,128,128,.7)', 1)}{line(means, '#3b82c4', 2)}</svg>"
    )
