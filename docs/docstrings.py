"""Griffe extension of the documentation site that renders doctest examples in docstrings as code."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
_FENCED = "{0}```pycon\n{1}\n{0}```"


class Examples(griffe.Extension):  # a base that is typed in part
    """Extension that fences doctest examples, which Markdown would otherwise render as quotations."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the examples of an object's docstring after it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""Return a docstring with its examples in fences.

    >>> fenced("Add.\n\n>>> 1 + 1\n2\n\nThat is all.")
    'Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThat is all.'
    """
    literal = re.sub(r"^(.*?) ?::$", lambda found: found[1] + ":" if found[1] else "", text, flags=re.MULTILINE)
    return _EXAMPLE.sub(lambda found: _FENCED.format(found[1], found[0]), literal)
