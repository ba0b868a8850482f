"""Adapter to the tasks of several turns of the Berkeley Function-Calling Leaderboard (BFCL)."""

import ast
import inspect
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

from gym_trl.envs.external.adapter import Played
from gym_trl.envs.external.tool_calls import FORM, Call, RandomCaller, ToolAdapter, describe, printable, write_call
from gym_trl.errors import ConfigError, raise_interrupt
from gym_trl.types import Policy

_CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
_RULES = (
    "Do what the user asks with tools, in several messages. "
    f"Call one tool at a time: {FORM}. When you have done all that the last message asks for, or cannot, say so in "
    "words; then comes the next message. The tools:"
)
_MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"  # BFCL's own words
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_POWERS = ("precision", "exponent", "decimal_places")
_LARGEST, _LARGEST_POWER = 1e15, 1_000  # of the calculator, whose exact integers would take for ever
_CALLS = RLock()  # the calculator has one precision for all, and one tool's results are kept in its module


class BFCL(ToolAdapter):
    """Task of BFCL: a user's messages, each of which needs calls of tools that have a state.

    ::

        env = gym.make("External/BFCL-v0")
        env.reset(seed=0, options={"instance": 1})[0]
        'User: I am alex. Check if the current directory is under my name and list all the visible and hidden...'
        env.step('{"name": "ls", "arguments": {"a": true}}')[0]
        '{"current_directory_content": ["workspace"]}'
        env.step("There is one directory.")[0]
        "User: Go to workspace directory and move one of the 'log.txt' files into a new directory 'archive'."

    An action is a call of a tool in JSON, or words, which end the work on a message. Then BFCL's checks are made:
    the state must be that of its own calls, and all of their results must have been seen. If so, the share of messages
    that this one is gets paid, as far as they need calls, and the next one comes; if not, the episode is over.
    ``success`` is the last message answered with all checks passed, and the rewards then add up to 1.0. A call that
    cannot be read, of a tool that does not exist or with wrong arguments is invalid. There is no turn limit: set a
    ``turn_limit``.

    Each of the 200 tasks of a category (``"miss_func"`` has 199: BFCL's own solution of one uses a tool that has not
    come yet) is chosen by the seed or the reset option ``instance``. The ``instructions`` of an episode have its tools:
    a file system, a calculator, a car, messages, posts, tickets, stocks or travels. The calculator refuses exponents
    and precisions over 1,000 and numbers over 1e15.

    Args:
        category: ``"base"``; ``"miss_func"``, where a tool comes only after it is needed; ``"miss_param"``, where a
            message lacks what the next one has; or ``"long_context"``, with long results.
        render_mode: ``None``; rendering is not supported.

    Raises:
        MissingDependencyError: BFCL is not installed.
        ConfigError: The category does not exist.
    """

    instructions = _RULES
    extra = "bfcl"

    def __init__(self, category: str = "base", *, render_mode: None = None) -> None:
        super().__init__()
        self._import("bfcl_eval", "mpmath")
        if category not in _CATEGORIES:
            raise ConfigError(f"category must be one of {list(_CATEGORIES)}, got {category!r}")
        self.category = category
        self._tasks = _tasks(category)
        self.num_instances = len(self._tasks)
        self._task: Mapping[str, Any] = {}
        self._tools: dict[str, Mapping[str, Any]] = {}
        self._world: dict[str, Any] = {}
        self._right_world: dict[str, Any] = {}
        self._message, self._called = 0, False
        self._results: list[str] = []

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each category."""
        cls._import("bfcl_eval")
        return [{"category": category} for category in _CATEGORIES]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._task = self._tasks[self._instance]
        self._world, self._right_world = self._fresh_world(), self._fresh_world()
        self._message, self._called, self._results = 0, False, []
        later = {name for names in self._task.get("missed_function", {}).values() for name in names}
        tools = {doc["name"]: doc for kind in self._task["involved_classes"] for doc in _docs(kind)}
        self._tools = {name: doc for name, doc in tools.items() if name not in later}
        self.instructions = "\n".join([_RULES, *map(_line, self._tools.values())])
        return self._shown_message(), {}

    def _use(self, call: Call) -> Played:
        if call.name not in self._tools:
            return Played(f"Error: There is no tool {call.name!r:.80}.", valid=False)
        self._called = True
        result, fine = _call(self._world, call)
        self._results.append(result)
        return Played(printable(result), valid=fine)

    def _answer(self, answer: str) -> Played:
        """Check the work on a message, and show the next one."""
        right = self._task["ground_truth"][self._message]
        needed = sum(map(bool, self._task["ground_truth"]))
        expected = [_call(self._right_world, call)[0] for call in self._read_all(right)]
        if right and not (self._called and self._is_right(expected)):
            return Played("", terminated=True)
        reward = 1 / needed if right else 0.0
        self._message, self._called = self._message + 1, False
        over = self._message == len(self._task["question"])
        return Played("" if over else self._shown_message(), reward, terminated=over, success=over)

    def _is_right(self, expected: Sequence[str]) -> bool:
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checks

        try:
            seen = checks.response_checker(self._results, expected, self._message)["valid"]
            return bool(seen and checks.state_checker(self._world, self._right_world)["valid"])
        except BaseException as error:  # of a state that strange arguments have made
            raise_interrupt(error)
            return False

    def _shown_message(self) -> str:
        new = self._task.get("missed_function", {}).get(str(self._message), ())
        if not new:
            return f"User: {self._task['question'][self._message][0]['content']}"
        docs = {
            doc["name"]: doc for kind in self._task["involved_classes"] for doc in _docs(kind) if doc["name"] in new
        }
        self._tools |= docs
        return "\n".join([f"User: {_MORE_TOOLS}", *map(_line, docs.values())])

    def _fresh_world(self) -> dict[str, Any]:
        """Return an object with the tools of each kind, in the state before the task."""
        world = {}
        for name in self._task["involved_classes"]:
            made = world[name] = _kind(name)()
            if name != "MathAPI":
                config = deepcopy(self._task["initial_config"].get(name, {}))
                with _CALLS:
                    made._load_scenario(config, long_context=self.category == "long_context")
        return world

    def _read_all(self, calls: Sequence[str]) -> list[Call]:
        return [_read(text, self._right_world) for text in calls]

    def _solution(self) -> Sequence[str]:
        actions: list[str] = []
        for calls in self._task["ground_truth"]:
            actions += [write_call(call.name, call.arguments) for call in self._read_all(calls)]
            actions.append("Done." if calls else "This cannot be done yet.")
        return actions

    def random_policy(self, seed: int) -> Policy:
        """Make a policy that calls random tools with words that it has read."""
        return RandomCaller(seed, lambda: {name: doc["parameters"] for name, doc in self._tools.items()})


def _call(world: Mapping[str, Any], call: Call) -> tuple[str, bool]:
    """Return the result of a call as BFCL writes it, and false if it has failed."""
    try:
        owner = next(one for one in world.values() if hasattr(type(one), call.name))
        if type(owner).__name__ == "MathAPI":
            _check_numbers(call.arguments)
        with _CALLS:
            result = getattr(owner, call.name)(**deepcopy(call.arguments))
            return _written(result), True
    except BaseException as error:  # as BFCL, which shows any error of a tool
        raise_interrupt(error)
        return f"Error during execution: {error}", False


def _written(result: Any) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _check_numbers(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and abs(number) > (_LARGEST_POWER if name in _POWERS else _LARGEST):
                raise ValueError(f"{name} is too large")


def _read(text: str, world: Mapping[str, Any]) -> Call:
    """Return one of BFCL's own calls, such as ``cd('a')``, with the names of all arguments."""
    parsed: Any = ast.parse(text, mode="eval").body
    owner = next(one for one in world.values() if hasattr(type(one), parsed.func.id))
    values = [ast.literal_eval(value) for value in parsed.args]
    named = {part.arg: ast.literal_eval(part.value) for part in parsed.keywords}
    bound = inspect.signature(getattr(owner, parsed.func.id)).bind(*values, **named)
    return Call(parsed.func.id, dict(bound.arguments))


def _line(doc: Mapping[str, Any]) -> str:
    description = doc["description"].rpartition("Tool description: ")[2]
    return describe(doc["name"], description, doc["parameters"])


def _as_json_schema(schema: Any) -> Any:
    """Return a schema with the types of JSON in the place of Python's."""
    if isinstance(schema, dict):
        kept = {name: _as_json_schema(part) for name, part in schema.items() if (name, part) != ("type", "any")}
        return kept | {"type": _TYPES.get(kept["type"], kept["type"])} if isinstance(kept.get("type"), str) else kept
    return [_as_json_schema(part) for part in schema] if isinstance(schema, list) else schema


def _kind(name: str) -> Any:
    from importlib import import_module

    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    return getattr(import_module(CLASS_FILE_PATH_MAPPING[name]), name)


def _rows(*parts: str) -> list[dict[str, Any]]:
    import bfcl_eval  # not its constants of folders, which make some

    file = Path(bfcl_eval.__file__).with_name("data").joinpath(*parts)
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@cache
def _docs(kind: str) -> list[dict[str, Any]]:
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    docs = _rows("multi_turn_func_doc", MULTI_TURN_FUNC_DOC_FILE_MAPPING[kind])
    return [{**doc, "parameters": _as_json_schema(doc["parameters"])} for doc in docs]


@cache
def _tasks(category: str) -> list[dict[str, Any]]:
    """Return the tasks of a category, each with BFCL's calls for every message; those that can be solved."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    right = {row["id"]: row["ground_truth"] for row in _rows("possible_answer", name)}
    tasks = [{**row, "ground_truth": right[row["id"]]} for row in _rows(name)]
    return [task for task in tasks if not _needs_too_early(task)]


def _needs_too_early(task: Mapping[str, Any]) -> bool:
    """Return true if BFCL's own calls use a tool before it comes."""
    return any(
        call.partition("(")[0] in names
        for number, names in task.get("missed_function", {}).items()
        for calls in task["ground_truth"][: int(number)]
        for call in calls
    )
