"""Adapter to the web tasks of MiniWoB++, in a real browser."""

import ast
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.envs.external.browser import Tab
from gym_trl.errors import ConfigError

_BEGIN = """
core.EPISODE_MAX_TIME = 1e9;  // a model may think
Math.seedrandom(arguments[0]);
core.startEpisodeReal();
"""
_READY_SECONDS = 2.0
_LONGEST = 500
"""Maximum characters of an action that are parsed."""
_NO_ACTION = "That is no action."


class MiniWoB(Adapter):
    r"""Task of MiniWoB++: a small web page in a headless Chromium.

    ::

        env = gym.make("External/MiniWoB-v0", task="click-button")
        env.reset(seed=1)[0]
        'Click on the "Ok" button.\n[5] button "Ok"\n[6] input_text ""...'
        env.step("click(5)")[1]
        1.0

    The first observation is the instruction and the page; later ones are the page alone: each element with its number,
    its tag, its text and the content of its field, or, if it has neither, its position and colour. Other visual
    properties are not shown. Actions are ``click(5)``, ``type(6, "some text")`` (appends to the field's content) and
    ``press("<Enter>")``; any other action, or one with the number of an element that is not shown, is invalid and does
    not reach the page.

    The reward is the task's own, from -1 to 1, without MiniWoB++'s deduction for elapsed seconds; there is no time
    limit. ``success`` is a reward of 1. Each episode has a new page, made from the seed; tasks with motion
    (``chase-circle``) or with the current date are not reproducible. Environments of one process share a browser, which
    ends with all its processes when the last environment is closed.

    Args:
        task: Name of a page, such as ``"click-button"``.
        render_mode: ``None``; rendering is not supported.

    Raises:
        MissingDependencyError: MiniWoB++ or Selenium is not installed.
        ConfigError: The task does not exist; at reset, Chromium or chromedriver is not on the path.
    """

    extra = "miniwob"
    loss_reward = -1.0
    instructions = (
        "Do what the web page asks. Each element is shown with its number in brackets. Answer with one action: "
        'click(5), type(6, "some text") or press("<Enter>").'
    )

    def __init__(self, task: str, *, render_mode: None = None) -> None:
        super().__init__()
        miniwob = self._import("miniwob", "miniwob.constants", "miniwob.dom", "miniwob.selenium_actions", "psutil")
        pages = Path(miniwob.__file__).parent / "html" / "miniwob"
        if task not in (known := sorted(page.stem for page in pages.glob("*.html"))):
            raise ConfigError(f"MiniWoB++ has no task {task!r}; it has {known}")
        self.task = task
        self._page = (pages / f"{task}.html").as_uri()
        self._tree, self._keys = miniwob.dom.DOMElement, frozenset(miniwob.constants.DEFAULT_ALLOWED_KEYS)
        actions = miniwob.selenium_actions
        self._press, self._type = actions.execute_press_key, actions.execute_type_text
        self._tab: Tab | None = None
        self._refs = frozenset[int]()

    def close(self) -> None:
        """Close the page, and the browser if no other environment uses it."""
        tab, self._tab = self._tab, None
        if tab is not None:
            tab.close()

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each task of MiniWoB++."""
        pages = Path(cls._import("miniwob").__file__).parent / "html" / "miniwob"
        return [{"task": page.stem} for page in sorted(pages.glob("*.html"))]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        before, self._tab = self._tab, Tab()
        if before is not None:
            before.close()
        with self._tab as driver:
            self._tab.load(self._page)
            driver.execute_script(_BEGIN, seed)
            last = time.monotonic() + _READY_SECONDS
            while not driver.execute_script("return WOB_TASK_READY;") and time.monotonic() < last:
                time.sleep(0.02)
            asked = driver.execute_script("return core.getUtterance();")
            return f"{asked['utterance'] if isinstance(asked, dict) else asked}\n{self._seen(driver)}", {}

    def _play(self, action: str) -> Played:
        assert self._tab is not None
        with self._tab as driver:
            match _call(action):
                case ("click", [int(ref)]) if ref in self._refs:
                    valid = _click(driver, ref)
                case ("type", [int(ref), str(text)]) if ref in self._refs and text.isprintable():
                    if valid := _click(driver, ref):
                        self._type(text, driver)
                case ("press", [str(key)]) if key in self._keys:
                    valid = True
                    self._press(key, driver)
                case _:
                    valid = False
            if not valid:
                return Played(_NO_ACTION, valid=False)
            over, reward = driver.execute_script("return [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL];")
            if over:
                return Played(f"It is over: {reward:g}.", float(reward), terminated=True, success=reward >= 1.0)
            return Played(self._seen(driver))

    def _seen(self, driver: Any) -> str:
        """Return the page as text, and store the numbers of its elements."""
        shown = dict(_elements(self._tree(driver.execute_script("return core.getDOMInfo();"))))
        self._refs = frozenset(ref for ref in shown if ref > 0)
        return "\n".join(shown.values())


def _elements(element: Any) -> Iterator[tuple[int, str]]:
    """Generate number and description of the leaf elements, from top to bottom."""
    if element.children:
        for child in element.children:
            yield from _elements(child)
    elif element.ref < 0:  # a text between elements
        yield element.ref, element.text
    else:
        words = [f"[{element.ref}] {element.tag}"]
        if element.text:
            words.append(f'"{" ".join(element.text.split())}"')
        if isinstance(element.value, bool):
            words.append("on" if element.value else "off")
        elif element.value is not None:
            words.append(f'with "{element.value}"')
        if not element.text and element.value is None:
            red, green, blue, alpha = (round(255 * part) for part in element.bg_color)
            colour = f", #{red:02x}{green:02x}{blue:02x}" if alpha else ""
            words.append(
                f"{element.width:.0f} by {element.height:.0f} at {element.left:.0f}, {element.top:.0f}{colour}"
            )
        if element.focused:
            words.append("(chosen)")
        yield element.ref, " ".join(words)


def _call(action: str) -> tuple[str, list[Any]] | None:
    """Return name and arguments of an action in the form of a call, or ``None``.

    >>> _call('type(6, "some text")'), _call("click(here)")
    (('type', [6, 'some text']), None)
    """
    try:
        call = ast.parse(action.strip()[:_LONGEST], mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords:
            return call.func.id, [ast.literal_eval(argument) for argument in call.args]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    return None


def _click(driver: Any, ref: int) -> bool:
    return driver.execute_script("return core.elementClick(arguments[0]);", ref) is True
