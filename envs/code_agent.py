"""Programming problems: try programs out in a sandbox, then submit a function that hidden tests judge."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.sandbox import Result, Sandbox, SandboxLimits
from gym_trl.text import counted

_MOST_CHARACTERS, _TESTS, _EXAMPLES = 10_000, 12, 2
_LIMITS = SandboxLimits(seconds=5.0, cpu_seconds=10, memory_mb=256, processes=4, file_mb=4, output_chars=2_000)
_SAID = re.compile(r"\s*(run|submit) *:[ \t]*(?:\n|(?=\S))(.*)", re.IGNORECASE | re.DOTALL)
_FENCED = re.compile(r"\s*```(?:python|py)?[ \t]*\n(.*?)\n?```\s*", re.IGNORECASE | re.DOTALL)
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


_Kind: TypeAlias = tuple[str, str, range]
"""Sentence, the same as an expression in ``numbers``, and the numbers that may take the place of ``{k}``."""
_OPERATIONS: Sequence[_Kind] = (
    ("Keep the numbers that are divisible by {k}.", "[n for n in numbers if n % {k} == 0]", range(2, 6)),
    ("Remove the numbers that are divisible by {k}.", "[n for n in numbers if n % {k}]", range(2, 6)),
    ("Keep the numbers that are greater than {k}.", "[n for n in numbers if n > {k}]", range(-9, 10)),
    ("Keep the numbers that are less than {k}.", "[n for n in numbers if n < {k}]", range(-9, 10)),
    ("Multiply each number by {k}.", "[n * {k} for n in numbers]", range(2, 8)),
    ("Add {k} to each number.", "[n + {k} for n in numbers]", range(1, 20)),
    ("Subtract each number from {k}.", "[{k} - n for n in numbers]", range(20)),
    ("Replace each number by its remainder when divided by {k}, from 0 to {k} less 1.",
     "[n % {k} for n in numbers]", range(3, 12)),
    ("Replace each number by its absolute value.", "[abs(n) for n in numbers]", range(1)),
    ("Raise each number that is less than {k} to {k}.", "[max(n, {k}) for n in numbers]", range(-9, 10)),
    ("Reverse the list.", "numbers[::-1]", range(1)),
    ("Sort the list in ascending order.", "sorted(numbers)", range(1)),
    ("Sort the list in descending order.", "sorted(numbers, reverse=True)", range(1)),
    ("Remove every number that is equal to an earlier one.", "list(dict.fromkeys(numbers))", range(1)),
    ("Keep the first {k} numbers, or all where there are fewer.", "numbers[:{k}]", range(2, 7)),
    ("Remove the first {k} numbers, or all where there are fewer.", "numbers[{k}:]", range(1, 5)),
    ("Keep every number whose position, counted from 0, is divisible by {k}.", "numbers[::{k}]", range(2, 4)),
    ("Move the first {k} numbers to the end, in their order; where there are fewer, nothing changes.",
     "numbers[{k}:] + numbers[:{k}]", range(1, 6)),
    ("Replace each number by the sum of it and all before it.",
     "[sum(numbers[: i + 1]) for i in range(len(numbers))]", range(1)),
    ("Replace the list by the differences of neighbours, each less the one before it.",
     "[b - a for a, b in zip(numbers, numbers[1:])]", range(1)),
    ("Replace each number by the largest of it and all before it.",
     "[max(numbers[: i + 1]) for i in range(len(numbers))]", range(1)),
    ("Swap neighbours: the first with the second, the third with the fourth and so on; a last one without a "
     "neighbour stays.", "[n for i in range(0, len(numbers), 2) for n in numbers[i : i + 2][::-1]]", range(1)),
)  # fmt: skip

_RESULTS: Sequence[_Kind] = (
    ("The result is the list.", "numbers", range(1)),
    ("The result is the sum of the numbers.", "sum(numbers)", range(1)),
    ("The result is the largest number, or {k} where there is none.", "max(numbers, default={k})", range(-9, 10)),
    ("The result is the smallest number, or {k} where there is none.", "min(numbers, default={k})", range(-9, 10)),
    ("The result is the largest number less the smallest, or {k} where there is none.",
     "max(numbers) - min(numbers) if numbers else {k}", range(-9, 0)),
    ("The result is the sum of the squares of the numbers.", "sum(n * n for n in numbers)", range(1)),
    ("The result is the sum of the numbers at even positions, counted from 0, less the sum of the others.",
     "sum(numbers[::2]) - sum(numbers[1::2])", range(1)),
)  # fmt: skip

_Operations: TypeAlias = Sequence[tuple[str, str]]
"""Sentences and expressions; the last ones make the result of the list."""


class CodeAgent(TextGame):
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

    A problem has ``steps`` operations on a list of integers and a result. ``run:`` and a program executes it in the
    episode's own ``Sandbox``, which keeps variables from turn to turn, and shows its output. ``submit:`` and a program,
    which must define ``solve(numbers)``, ends the game: won if the function is right for all 12 hidden inputs. Code
    fences around a program are taken off. Programs start processes: a game costs some 50 ms.

    A submission cannot influence its grading (``grade``). The inputs of an instance include the empty list, and no
    single value is the result of more than a third of its tests. The solver submits the program that the sentences
    describe.

    Raises:
        ConfigError: bubblewrap does not work here.
    """

    presets: ClassVar = {
        "easy": {"steps": 1, "turns": 4},
        "medium": {"steps": 3, "turns": 6},
        "hard": {"steps": 5, "turns": 8},
    }
    ranges: ClassVar = {"steps": (1, 8)}
    preferred_executor = "thread"
    num_instances = 2**32
    optimal_success = 1.0
    steps: int

    def prepare(self) -> None:
        """Make the sandbox, which starts with the first program, and write the rules."""
        self.sandbox = Sandbox(_LIMITS)
        self.instructions = (
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

    def deal(self) -> None:
        """Draw a problem in which every operation affects the results."""
        self.sandbox.close()
        rng = random.Random(f"{self.instance} {self.steps}")
        self.operations: _Operations = ()
        self.cases: list[tuple[list[int], Any]] = []
        """Inputs and results; the first are the examples, the others the hidden tests."""
        while not self.cases or not _decides(self.operations, self.cases[_EXAMPLES:]):
            self.operations = _draw(rng, self.steps)
            inputs = [[rng.randint(-20, 20) for _ in range(rng.randint(3, 9))] for _ in range(_EXAMPLES + _TESTS)]
            inputs[_EXAMPLES] = []
            solve = _function(_program(self.operations))
            self.cases = [(numbers, solve(numbers)) for numbers in inputs]

    def show(self) -> str:
        """Return the turns left, and first the problem."""
        left = f"{counted(self.turns_left, 'turn')} left."
        if self.turns_left < self.turns:
            return left
        lines = [f"{number}. {sentence}" for number, (sentence, _) in enumerate(self.operations, 1)]
        examples = [f"solve({numbers}) is {result}" for numbers, result in self.cases[:_EXAMPLES]]
        return "\n".join(["Write solve(numbers) for a list of integers:", *lines, *examples, left])

    def play(self, action: str) -> Step:
        """Run a program, or submit one."""
        call = _SAID.fullmatch(action)
        if call is None:
            return self.reject("Say run: or submit: and a Python program.")
        fenced = _FENCED.fullmatch(call[2])
        code = fenced[1] if fenced else call[2]
        if len(code) > _MOST_CHARACTERS:
            return self.reject(f"A program has at most {_MOST_CHARACTERS} characters.")
        if not code.strip():
            return self.reject("There is no program.")
        if call[1].lower() == "run":
            return self.turn(_shown(self.sandbox.run(code)) or "It wrote nothing.")
        self.sandbox.close()
        passed, problem = grade(code, "solve", self.cases[_EXAMPLES:])
        is_right = passed == _TESTS
        text = "Right." if is_right else f"Wrong: {passed} of {counted(_TESTS, 'test')} passed.\n{problem}".rstrip("\n")
        return Step(text, done=True, success=is_right, info={"passed": passed, "tests": _TESTS})

    def turn(self, message: str = "", **flags: Any) -> Step:
        """End a turn, and with the last one the sandbox."""
        step = super().turn(message, **flags)
        if step.done:
            self.sandbox.close()
        return step

    def close(self) -> None:
        """End the episode's process."""
        self.sandbox.close()
        super().close()

    def solve(self) -> str:
        """Submit the program that the sentences describe."""
        return f"submit:\n{_program(self.operations)}"

    def guess(self, rng: random.Random) -> str:
        """Return a program that prints a number, or the submission of a random program of the same kind."""
        program = _program(_draw(rng, self.steps))
        return f"submit:\n{program}" if rng.random() < 0.5 else f"run:\nprint({rng.randrange(100)})"


def grade(code: str, function: str, tests: Sequence[tuple[Any, Any]]) -> tuple[int, str]:
    """Return the number of tests a program passes, and its output at loading if it could not be loaded.

    >>> grade("def double(n): return 2 * n", "double", [(2, 4), (3, 6)])
    (2, '')
    >>> grade("def double(n): return str(2 * n)", "double", [(2, 4)])
    (0, '')

    The program runs alone in a new sandbox and gets one input at a time. Its return values are compared here, as JSON
    and by type: expected results never enter the sandbox.
    """
    with Sandbox(_LIMITS) as sandbox:
        loaded = sandbox.run(code)
        if loaded.status != "ok":
            return 0, _shown(loaded)
        passed = 0
        for given, expected in tests:
            result = sandbox.call(function, given)
            if not sandbox.alive:  # a terminated program has no function any more
                break
            if result.status == "ok" and result.value == expected:
                passed += json.dumps(result.value) == json.dumps(expected)  # which tells True from 1
        return passed, ""


def _shown(result: Result) -> str:
    return _ADDRESS.sub("0x0", result.output).rstrip("\n")


def _draw(rng: random.Random, steps: int) -> _Operations:
    kinds = [*(rng.choice(_OPERATIONS) for _ in range(steps)), rng.choice(_RESULTS)]
    return [(sentence.format(k=k), code.format(k=k)) for sentence, code, ks in kinds for k in [rng.choice(ks)]]


def _decides(operations: _Operations, tests: Sequence[tuple[list[int], Any]]) -> bool:
    """Return whether no value is the result of a third of the tests, and each but the last operation affects some."""
    results = [json.dumps(result) for _, result in tests]
    if max(map(results.count, results)) > _TESTS // 3 or any(len(result) > 200 for result in results):
        return False
    fewer = [_function(_program([*operations[:i], *operations[i + 1 :]])) for i in range(len(operations) - 1)]
    return not any(all(solve(given) == result for given, result in tests) for solve in fewer)


def _program(operations: _Operations) -> str:
    *lines, last = [code for _, code in operations]
    return "\n".join(["def solve(numbers):", *(f"    numbers = {line}" for line in lines), f"    return {last}"])


def _function(program: str) -> Callable[[list[int]], Any]:
    names: dict[str, Callable[[list[int]], Any]] = {}
    exec(program, names)  # noqa: S102 -- ours
    return names["solve"]
