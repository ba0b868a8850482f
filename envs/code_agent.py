"""Programming problems: try programs out in a sandbox, then submit a function that hidden tests judge."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Difficulty, Outcome, Steady
from gym_trl.sandbox import Result, Sandbox, SandboxLimits
from gym_trl.text import counted
from gym_trl.types import Policy

_MOST_CHARACTERS = 10_000
_TESTS = 12
_EXAMPLES = 2
_LIMITS = SandboxLimits(seconds=5.0, cpu_seconds=10, memory_mb=256, processes=4, file_mb=4, output_chars=2_000)

_SAID = re.compile(r"\s*(run|submit) *:[ \t]*(?:\n|(?=\S))(.*)", re.IGNORECASE | re.DOTALL)
_FENCED = re.compile(r"\s*```(?:python|py)?[ \t]*\n(.*?)\n?```\s*", re.IGNORECASE | re.DOTALL)
_SENTENCE = re.compile(r"^[0-9]+\. (.*)$", re.MULTILINE)
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


class _Step(NamedTuple):
    """Operation on a list of integers."""

    sentence: str
    """Description, with ``{k}`` in place of its number."""
    code: str
    """Equivalent expression in ``numbers`` and ``{k}``."""
    parameters: Sequence[int] = (0,)

    def apply(self, numbers: list[int], k: int) -> Any:
        """Return the result of the expression."""
        return _function(self.code)(numbers, k)


@cache
def _function(code: str) -> Callable[[list[int], int], Any]:
    function: Callable[[list[int], int], Any] = eval(f"lambda numbers, k: {code.replace('{k}', 'k')}")  # noqa: S307 -- ours
    return function


_LIST_STEPS = (
    _Step("Keep the numbers that are divisible by {k}.", "[n for n in numbers if n % {k} == 0]", range(2, 6)),
    _Step("Remove the numbers that are divisible by {k}.", "[n for n in numbers if n % {k}]", range(2, 6)),
    _Step("Keep the numbers that are greater than {k}.", "[n for n in numbers if n > {k}]", range(-9, 10)),
    _Step("Keep the numbers that are less than {k}.", "[n for n in numbers if n < {k}]", range(-9, 10)),
    _Step("Multiply each number by {k}.", "[n * {k} for n in numbers]", range(2, 8)),
    _Step("Add {k} to each number.", "[n + {k} for n in numbers]", range(1, 20)),
    _Step("Subtract each number from {k}.", "[{k} - n for n in numbers]", range(20)),
    _Step("Replace each number by its remainder when divided by {k}, from 0 to {k} less 1.",
          "[n % {k} for n in numbers]", range(3, 12)),
    _Step("Replace each number by its absolute value.", "[abs(n) for n in numbers]"),
    _Step("Raise each number that is less than {k} to {k}.", "[max(n, {k}) for n in numbers]", range(-9, 10)),
    _Step("Reverse the list.", "numbers[::-1]"),
    _Step("Sort the list in ascending order.", "sorted(numbers)"),
    _Step("Sort the list in descending order.", "sorted(numbers, reverse=True)"),
    _Step("Remove every number that is equal to an earlier one.", "list(dict.fromkeys(numbers))"),
    _Step("Keep the first {k} numbers, or all where there are fewer.", "numbers[:{k}]", range(2, 7)),
    _Step("Remove the first {k} numbers, or all where there are fewer.", "numbers[{k}:]", range(1, 5)),
    _Step("Keep every number whose position, counted from 0, is divisible by {k}.", "numbers[::{k}]", range(2, 4)),
    _Step("Move the first {k} numbers to the end, in their order; where there are fewer, nothing changes.",
          "numbers[{k}:] + numbers[:{k}]", range(1, 6)),
    _Step("Replace each number by the sum of it and all before it.",
          "[sum(numbers[: i + 1]) for i in range(len(numbers))]"),
    _Step("Replace the list by the differences of neighbours, each less the one before it.",
          "[b - a for a, b in zip(numbers, numbers[1:])]"),
    _Step("Replace each number by the largest of it and all before it.",
          "[max(numbers[: i + 1]) for i in range(len(numbers))]"),
    _Step("Swap neighbours: the first with the second, the third with the fourth and so on; a last one without a "
          "neighbour stays.", "[n for i in range(0, len(numbers), 2) for n in numbers[i : i + 2][::-1]]"),
)  # fmt: skip

_LAST_STEPS = (
    _Step("The result is the list.", "numbers"),
    _Step("The result is the sum of the numbers.", "sum(numbers)"),
    _Step("The result is the largest number, or {k} where there is none.", "max(numbers, default={k})", range(-9, 10)),
    _Step("The result is the smallest number, or {k} where there is none.", "min(numbers, default={k})", range(-9, 10)),
    _Step("The result is the largest number less the smallest, or {k} where there is none.",
          "max(numbers) - min(numbers) if numbers else {k}", range(-9, 0)),
    _Step("The result is the sum of the squares of the numbers.", "sum(n * n for n in numbers)"),
    _Step("The result is the sum of the numbers at even positions, counted from 0, less the sum of the others.",
          "sum(numbers[::2]) - sum(numbers[1::2])"),
)  # fmt: skip


_Steps: TypeAlias = Sequence[tuple[_Step, int]]
"""Operations with their numbers; the last one makes the result of the list."""


class _Problem(NamedTuple):
    sentences: tuple[str, ...]
    cases: tuple[tuple[list[int], Any], ...]
    """Inputs and results; the first are the examples, the others the hidden tests."""


class CodeAgent(Puzzle):
    r"""Solve a programming problem: try programs out in a sandbox, then submit one that hidden tests judge.

    >>> env = CodeAgent(steps=2, turns=3)
    >>> print(env.reset(options={"instance": 3})[0])
    Write solve(numbers) for a list of integers:
    1. Swap neighbours: the first with the second, the third with the fourth and so on; a last one without a
       neighbour stays.
    2. Replace each number by the largest of it and all before it.
    3. The result is the sum of the numbers.
    solve([-20, 0, 18, -2, -18]) is 36
    solve([1, -3, 17, -13, 6, -6, 8, -11, 0]) is 101
    3 turns left.
    >>> print(env.step("run:\nnumbers = [4, -7, 12]\nprint(sorted(numbers))")[0])
    [-7, 4, 12]
    2 turns left.
    >>> print(env.step("run: max(numbers)")[0])
    12
    1 turn left.
    >>> env.step("submit:\ndef solve(numbers):\n    return sum(numbers)")[:3]
    ('Wrong: 1 of 12 tests passed.', 0.0, True)
    >>> env.close()

    A problem is a sequence of ``steps`` operations on a list of integers, drawn from 22 kinds, most of them with a
    number, and one of 7 kinds of result. ``run:`` and a program executes it in the episode's own ``Sandbox``, which
    keeps variables from turn to turn, and shows its output. ``submit:`` and a program, which must define
    ``solve(numbers)``, ends the game: won if the function is right for all 12 hidden inputs. A program is at most
    10,000 characters of Python; it may stand between code fences. Any other action costs a turn, and the game is lost
    when the ``turns`` are used up.

    A submission cannot influence its grading. It runs in a new sandbox and receives one input at a time; its return
    value comes back as JSON and is compared in the parent process. The expected results never enter the sandbox, and
    only correct values count. The inputs of an instance include the empty list, and no single value is the result of
    more than a third of its tests.

    Programs start processes: a game costs some 200 ms. Output that depends on the time or on memory addresses is not
    reproducible; addresses are shown as 0x0.

    The solver submits the program that the sentences describe, in the first turn. ``reward="efficient"`` compares with
    that. The random policy submits a random program of the same kind.

    Raises:
        ConfigError: bubblewrap does not work here.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"steps": 1, "turns": 4},
        "medium": {"steps": 3, "turns": 6},
        "hard": {"steps": 5, "turns": 8},
    }
    ranges: ClassVar = {"steps": (1, 8), "turns": (1, 20)}
    reward_modes = ("success", "efficient")
    preferred_executor: ClassVar[str] = "thread"
    """Default executor of ``GymSpec``: a step waits for the sandbox."""
    garbage = "submit solve"
    constant_action = "submit:\ndef solve(numbers):\n    return 0"
    num_instances = 2**32
    optimal_success = 1.0
    optimal_return = 1.0

    steps: int

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._instance = 0
        self._problem = _make(0, self.steps)
        self._sandbox = Sandbox(_LIMITS)
        self._ran: list[str] = []  # programs that set the variables, for a copy of this environment

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the process; a copy runs the programs again when it needs their variables."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_sandbox", "_problem")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state without a process."""
        self.__dict__.update(state)
        self._problem = _make(self._instance, self.steps)
        self._sandbox = Sandbox(_LIMITS)

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        return (
            f"Solve the programming problem in {self.turns} turns. Say each turn something like one of these two:\n"
            "run:\n"
            "print(sorted([3, 1, 2]))\n"
            "submit:\n"
            "def solve(numbers):\n"
            "    return 84\n"
            "run executes a Python program and shows what it prints; its variables stay. submit hands in a whole "
            "program that defines solve(numbers), and ends the game: it is right if solve gives the right result for "
            "every one of the hidden tests. The standard library can be used; there is no network, and there are no "
            "files. Anything else costs a turn, and the game is lost when no turns are left."
        )

    def solver(self) -> Policy:
        """Return a policy that submits the program that the sentences describe; always right, in the first turn."""
        return Steady(_read, re.compile(r"Write solve.*\n1\. ").match)

    def random_policy(self, seed: int) -> Policy:
        """Return a policy that runs a program that prints a number, or submits a random program of the right kind."""
        rng = random.Random(seed)

        def act(observation: str) -> str:
            codes = [step.code.replace("{k}", str(k)) for step, k in _draw(rng, self.steps)]
            return f"submit:\n{_program(codes)}" if rng.random() < 0.5 else f"run:\nprint({rng.randrange(100)})"

        return act

    def close(self) -> None:
        """End the episode's process."""
        self._sandbox.close()
        super().close()

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        left = super()._start(instance, options)
        sentences = "\n".join(f"{i}. {sentence}" for i, sentence in enumerate(self._problem.sentences, start=1))
        examples = "\n".join(f"solve({given}) is {result}" for given, result in self._problem.cases[:_EXAMPLES])
        return f"Write solve(numbers) for a list of integers:\n{sentences}\n{examples}\n{left}"

    def _deal(self, instance: int | None) -> None:
        self._sandbox.close()
        self._ran = []
        self._instance = instance or 0
        self._problem = _make(self._instance, self.steps)

    def _act(self, action: str) -> Outcome:
        call = _SAID.fullmatch(action)
        if call is None:
            return self._reject("Say run: or submit: and a Python program.")
        code = unfenced(call[2])
        if len(code) > _MOST_CHARACTERS:
            return self._reject(f"A program has at most {_MOST_CHARACTERS} characters.")
        if not code.strip():
            return self._reject("There is no program.")
        return self._run(code) if call[1].lower() == "run" else self._submit(code)

    def _run(self, code: str) -> Outcome:
        if self._ran and not self._sandbox.alive:
            for earlier in self._ran:
                self._sandbox.run(earlier)
        result = self._sandbox.run(code)
        self._ran = [*self._ran, code] if self._sandbox.alive else []
        return self._end_turn(_shown(result) or "It wrote nothing.")

    def _submit(self, code: str) -> Outcome:
        self._sandbox.close()
        tests = self._problem.cases[_EXAMPLES:]
        passed, problem = grade(code, "solve", tests)
        info = {"passed": passed, "tests": len(tests)}
        if passed == len(tests):
            return Outcome("Right.", done=True, success=True, info=info)
        more = f"\n{problem}" if problem else ""
        return Outcome(f"Wrong: {passed} of {counted(len(tests), 'test')} passed.{more}", done=True, info=info)

    def _end_turn(self, message: str = "", *, valid: bool = True, done: bool = False) -> Outcome:
        outcome = super()._end_turn(message, valid=valid)
        if outcome.done:
            self._sandbox.close()
        return outcome

    def _fewest_actions(self) -> float:
        """Return one: no trial is needed."""
        return 1


def unfenced(code: str) -> str:
    """Return a program without the code fences around it, if there are any."""
    fenced = _FENCED.fullmatch(code)
    return fenced[1] if fenced else code


def grade(code: str, function: str, tests: Sequence[tuple[Any, Any]]) -> tuple[int, str]:
    """Return the number of tests a program passes, and its output at loading if it could not be loaded.

    >>> grade("def double(n): return 2 * n", "double", [(2, 4), (3, 6)])
    (2, '')
    >>> grade("def double(n): return str(2 * n)", "double", [(2, 4)])
    (0, '')

    The program runs alone in a new sandbox and gets one input at a time. Its return values are compared here, as JSON
    and by type: expected results never enter the sandbox.
    """
    return grade_calls(code, function, [([given], expected) for given, expected in tests])


def grade_calls(code: str, function: str, tests: Sequence[tuple[Sequence[Any], Any]]) -> tuple[int, str]:
    """Do the same as ``grade`` for a function of any number of arguments.

    >>> grade_calls("def add(a, b): return a + b", "add", [((1, 2), 3), ((2, 2), 5)])
    (1, '')
    """
    with Sandbox(_LIMITS) as sandbox:
        loaded = sandbox.run(code)
        if loaded.status != "ok":
            return 0, _shown(loaded)
        passed = 0
        for arguments, expected in tests:
            result = sandbox.call(function, *arguments)
            if not sandbox.alive:  # a terminated program has no function any more
                break
            passed += result.status == "ok" and _same(result.value, expected)
        return passed, ""


def _same(value: Any, expected: Any) -> bool:
    """Return whether two values are equal with equal types at every level: True is not 1."""
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    return bool(value == expected)


def _shown(result: Result) -> str:
    return _ADDRESS.sub("0x0", result.output).rstrip("\n")


def _make(instance: int, steps: int) -> _Problem:
    """Return a problem in which every step affects the results."""
    rng = random.Random(f"{instance} {steps}")
    while True:
        chosen = _draw(rng, steps)
        inputs = [[rng.randint(-20, 20) for _ in range(rng.randint(3, 9))] for _ in range(_EXAMPLES + _TESTS)]
        inputs[_EXAMPLES] = []
        cases = tuple((numbers, _apply(chosen, numbers)) for numbers in inputs)
        if _decides(chosen, cases):
            sentences = tuple(step.sentence.replace("{k}", str(k)) for step, k in chosen)
            return _Problem(sentences, cases)


def _draw(rng: random.Random, steps: int) -> _Steps:
    kinds = [*(rng.choice(_LIST_STEPS) for _ in range(steps)), rng.choice(_LAST_STEPS)]
    return [(kind, rng.choice(kind.parameters)) for kind in kinds]


def _apply(steps: _Steps, numbers: list[int]) -> Any:
    result = list(numbers)
    for step, k in steps:
        result = step.apply(result, k)
    return result


def _decides(steps: _Steps, cases: Sequence[tuple[list[int], Any]]) -> bool:
    """Return whether no value is the result of a third of the tests and each step but the last affects some result."""
    results = [json.dumps(result) for _, result in cases[_EXAMPLES:]]
    if max(map(results.count, results)) > _TESTS // 3 or any(len(result) > 200 for result in results):
        return False
    for i in range(len(steps) - 1):
        fewer = [*steps[:i], *steps[i + 1 :]]
        if all(_apply(fewer, given) == result for given, result in cases[_EXAMPLES:]):
            return False
    return True


def _program(expressions: Sequence[str]) -> str:
    lines = [f"    numbers = {expression}" for expression in expressions[:-1]]
    return "\n".join(["def solve(numbers):", *lines, f"    return {expressions[-1]}"])


_PATTERNS = [
    (re.compile(re.escape(step.sentence).replace(r"\{k\}", "(-?[0-9]+)", 1).replace(r"\{k\}", "-?[0-9]+")), step.code)
    for step in (*_LIST_STEPS, *_LAST_STEPS)
]


def _read(observation: str) -> str:
    """Return the submission of the program that the sentences describe."""
    return f"submit:\n{_program([_translate(sentence) for sentence in _SENTENCE.findall(observation)])}"


def _translate(sentence: str) -> str:
    match, code = next((match, code) for pattern, code in _PATTERNS if (match := pattern.fullmatch(sentence)))
    return code.replace("{k}", match[1]) if match.groups() else code
