"""Griffe extension of the documentation site: doctest examples as code, and the keys of a ``TypedDict``."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
_FENCED = "{0}```pycon\n{1}\n{0}```"


class Examples(griffe.Extension):  # a base that is typed in part
    """Extension that fences doctest examples, which Markdown would otherwise render as quotations.

    The ``Args`` of a ``TypedDict`` are its keys, which griffe knows as attributes.
    """

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the examples of an object's docstring after it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
            if isinstance(obj, griffe.Class) and "TypedDict" in map(str, obj.bases):
                obj.docstring.value = obj.docstring.value.replace("\nArgs:\n", "\nAttributes:\n")


def fenced(text: str) -> str:
    r"""Return a docstring with its examples in fences.

    >>> fenced("Add.\n\n>>> 1 + 1\n2\n\nThat is all.")
    'Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThat is all.'
    """
    literal = re.sub(r"^(.*?) ?::$", lambda found: found[1] + ":" if found[1] else "", text, flags=re.MULTILINE)
    return _EXAMPLE.sub(lambda found: _FENCED.format(found[1], found[0]), literal)
