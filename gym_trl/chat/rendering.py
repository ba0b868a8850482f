"""Text that a chat template writes around a message, determined once instead of rendered for every turn."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

# A text that no template handles specially, and that escaping and stripping would change.
_PROBE = '\ufdd4<"Probe" &\nof\\ it>\ufdd4'


class Frame(NamedTuple):
    """Text before and after a message, valid for messages on which the template's conditions have the same results.

    >>> frame = Frame("<user>", "<end>", ((lambda text: text.startswith("!"), False),))
    >>> frame.around("Hello"), frame.around("!Hello")
    ('<user>Hello<end>', None)
    """

    before: str
    after: str
    asked: tuple[tuple[Callable[[str], object], object], ...]
    """Conditions that the template evaluated on the text while it was rendered, and their results."""

    def around(self, text: str) -> str | None:
        """Return the rendering of ``text``, or ``None`` if a condition has another result for it."""
        for ask, result in self.asked:  # in every turn: not as a generator
            if ask(text) != result:
                return None
        return f"{self.before}{text}{self.after}"


def find_frame(
    template: str, messages: Callable[[str], Sequence[Mapping[str, Any]]], variables: Mapping[str, Any]
) -> Frame | None:
    """Return the frame of the text that ``messages`` puts into a conversation, or ``None`` if it cannot be guaranteed.

    >>> template = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    >>> find_frame(template, lambda text: [{"role": "user", "content": text}], {})
    Frame(before='[user]', after='', asked=())
    >>> find_frame(template.replace("content", "content | upper"), lambda text: [{"role": "user", "content": text}], {})

    The template is rendered once with a string that records every operation on it. A template can depend on the text
    only through these operations, so it renders every text with the same results in the same way, apart from the text
    itself. Templates with constructs that could read a text unrecorded are not tried.

    Args:
        template: Jinja template, as Transformers compiles it.
        messages: Makes the conversation with a text in one place.
        variables: Other variables of the template: special tokens, ``add_generation_prompt``, and so on.
    """
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        return None
    try:
        if not _watched(template):
            return None
        asked: list[tuple[Callable[[str], object], object]] = []
        rendered = str(_compile_jinja_template(template).render(messages=messages(_Text(_PROBE, asked)), **variables))
    except (_UnknownError, Exception):  # templates are programs and can raise anything
        return None
    before, probe, after = rendered.partition(_PROBE)
    return Frame(before, after, tuple(asked)) if probe and _PROBE not in after else None


def find_tail(
    template: str,
    history: Sequence[Mapping[str, Any]],
    role: str,
    variables: Mapping[str, Any],
    render: Callable[[str], str],
) -> Frame | None:
    """Return the frame of a message from the end of ``history`` on, if samples have what ``render`` returns."""
    frame = find_frame(
        template,
        lambda text: [*history, {"role": role, "content": text}],
        {**variables, "add_generation_prompt": True},
    )
    if frame is None:
        return None
    frame = frame._replace(before=frame.before.partition(history[-1]["content"])[2])
    samples = ("", "Yes.", " 1\n", "<tool_response>\n{}\n</tool_response>")
    return frame if all(frame.around(text) in {None, render(text)} for text in samples) else None


# ---------------------------------------------------------------------------------------------------------------------
# A string that records the operations on it
# ---------------------------------------------------------------------------------------------------------------------


class _UnknownError(BaseException):
    """Operation of the template on the text that cannot be recorded."""


def _refuse(self: Any, *_: Any) -> Any:
    raise _UnknownError


class _Closed(str):
    """Text with other text around it; any operation but concatenation ends the attempt."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise _UnknownError

    def __add__(self, other: str) -> "_Closed":
        return _Closed(str.__add__(self, other))

    def __radd__(self, other: str) -> "_Closed":
        return _Closed(str.__add__(other, self))

    def __str__(self) -> str:
        return self  # keeps its class, so that later operations are noticed

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __len__ = __iter__ = __getitem__ = __contains__ = __bool__ = _refuse
    __mod__ = __rmod__ = __mul__ = __rmul__ = __format__ = __repr__ = _refuse


class _Text(_Closed):
    """The text itself: records operations whose result is a boolean or the unchanged text."""

    __slots__ = ("_asked",)

    def __new__(cls, text: str, asked: list[tuple[Callable[[str], object], object]]) -> "_Text":
        self = super().__new__(cls, text)
        object.__setattr__(self, "_asked", asked)
        return self

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)

        def ask(*arguments: Any) -> Any:
            return _told(self, lambda text: getattr(str, name)(text, *arguments))

        return ask

    def __bool__(self) -> bool:
        return bool(_told(self, bool))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Closed):  # derived from the text itself
            raise _UnknownError
        return bool(_told(self, lambda text: str.__eq__(text, other) if isinstance(other, str) else False))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, part: object) -> bool:
        if type(part) is not str:
            raise _UnknownError
        return bool(_told(self, lambda text: part in text))

    __hash__ = _refuse


def _told(text: _Text, ask: Callable[[str], object]) -> Any:
    plain = str.__getitem__(text, slice(None))  # a plain str
    answer = ask(plain)
    asked = object.__getattribute__(text, "_asked")
    if isinstance(answer, bool):
        asked.append((ask, answer))
        return answer
    if isinstance(answer, str) and answer == plain:
        asked.append((lambda value: ask(value) == value, True))
        return text
    raise _UnknownError


# ---------------------------------------------------------------------------------------------------------------------
# Templates in which no operation on a text goes unrecorded
# ---------------------------------------------------------------------------------------------------------------------

# Filters that return a new text, call the text's own methods, or do not read texts.
_FILTERS = frozenset({"trim", "length", "count", "string", "upper", "lower", "first", "last", "list", "default", "d"})
_TESTS = frozenset({"string", "none", "defined", "undefined", "mapping", "iterable", "sequence", "number", "boolean"})
_CALLED = frozenset({"namespace", "raise_exception", "range"})
_NOT_TEXT = frozenset({"role", "type"})
# Variables that hold no message's text.
_WITHOUT_TEXT = frozenset({"tool", "tools", "arguments", "parameters", "documents", "document", "function"})


@lru_cache(maxsize=16)  # parsing takes ten times as long as all the rest; Transformers caches compiled templates, too
def _watched(template: str) -> bool:
    """Return whether all operations of this template on a message's text are recorded by ``_Text``."""
    from jinja2 import nodes
    from transformers.utils.chat_template_utils import _compile_jinja_template

    tree = _compile_jinja_template(template).environment.parse(template)
    unseen = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Mod, nodes.Scope)
    elsewhere = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
    if any(tree.find_all((*unseen, *elsewhere))):
        return False
    # A ``~`` among these is only written, and no condition reads its result.
    written = {id(part) for output in tree.find_all(nodes.Output) for part in output.nodes}
    return (
        all(id(joined) in written for joined in tree.find_all(nodes.Concat))
        and all(_fair_filter(node, nodes) for node in tree.find_all(nodes.Filter))
        and all(_fair_call(node, nodes) for node in tree.find_all(nodes.Call))
        and all(node.name in _TESTS | {"true", "false"} for node in tree.find_all(nodes.Test))
        and all(
            _fair_search(compare.expr, operand.expr, nodes)
            for compare in tree.find_all(nodes.Compare)
            for operand in compare.ops
            if operand.op in {"in", "notin"}
        )
    )


def _fair_search(part: Any, whole: Any, nodes: Any) -> bool:
    """Return whether ``_Text`` records an ``in``: a constant in the text, or the text in a literal list."""
    name = getattr(part, "attr", getattr(getattr(part, "arg", None), "value", None))
    return isinstance(part, nodes.Const) or isinstance(whole, nodes.List | nodes.Tuple) or name in _NOT_TEXT


def _fair_filter(node: Any, nodes: Any) -> bool:
    if node.name == "tojson":
        held = getattr(node.node, "attr", getattr(node.node, "name", None))
        return held in _WITHOUT_TEXT
    return node.name in _FILTERS and all(isinstance(argument, nodes.Const) for argument in node.args)


def _fair_call(node: Any, nodes: Any) -> bool:
    if isinstance(node.node, nodes.Name):
        return node.node.name in _CALLED
    constant = all(isinstance(argument, nodes.Const) for argument in node.args) and not node.kwargs
    method = isinstance(node.node, nodes.Getattr) and not isinstance(node.node.node, nodes.Const)
    return constant and method and node.node.attr not in {"join", "format", "format_map"}
