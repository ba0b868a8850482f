"""Tasks in folders, in Harbor's and Terminal-Bench's formats: work with shell commands, judged by tests."""

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from gym_trl.envs.arguments import check_integers
from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.task_folder import TaskFolder, read_tasks
from gym_trl.envs.text_env import Outcome
from gym_trl.errors import ConfigError, InfrastructureError, apart_from_the_model
from gym_trl.leaves import load, offered
from gym_trl.sandbox import SandboxLimits
from gym_trl.sandbox.shell import (
    Check,
    ContainerImage,
    Containers,
    Machine,
    Place,
    Ran,
    SandboxMachine,
    Verified,
    check_folder,
    shell_problem,
)
from gym_trl.types import Policy

Runtime: TypeAlias = Literal["auto", "sandbox", "docker", "podman"]

_REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
_FENCED = re.compile(r"\s*```(?:bash|sh|shell)?[ \t]*\n(.*?)\n?```\s*", re.IGNORECASE | re.DOTALL)
_SUMMARY = re.compile(r"=+\s*short test summary info\s*=+", re.IGNORECASE)
_RESULT = re.compile(r"(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR)\b.*\S")
_GOOD_RESULTS = {"PASSED", "SKIPPED", "XFAIL"}
_SHOWN = 2_000


class _NoScoreError(Exception):
    """Tests gave no reward; the message is the reason."""


class Tasks(Puzzle):
    """Do the task that a folder describes, with shell commands; the folder's tests decide the reward.

    >>> env = Tasks("examples/tasks")
    >>> print(env.reset(options={"instance": 2})[0])
    Write the five most frequent words of book.txt ...
    12 turns left.
    >>> print(env.step("ls; wc -l < book.txt")[0])
    book.txt
    8
    11 turns left.
    >>> env.step("submit")[:3]
    ('Not solved.', 0.0, True)
    >>> env.close()

    An action is a shell command, or several lines of them, also between code fences; the observation is what it prints.
    Each runs in a new bash in the task's working folder: files stay, variables and background processes do not.
    ``submit`` ends the episode, and so do the last turn and the end of the task's time: then the tests are copied to
    ``/tests`` and run, and the reward is the number that they write (``/logs/verifier/reward.txt``, or the entry
    ``reward`` of ``reward.json``). A reward of at least 1 is success. ``info["task"]`` is the
    task's name, ``info["scores"]`` has all entries, and ``info["test_output"]`` the end of what the tests print.

    Tests that give no finite, nonnegative reward (they crash, exceed their time, or write something else) run once more
    on the untouched files. If they give one there, the model's files broke them, and the reward is 0; if not, the tests
    are at fault, and the episode is unscored (``InfrastructureError``).

    Commands and tests have no network. Where they run is chosen for each task (``runtimes``): in this library's
    sandbox if its Dockerfile does no more than set folders, files and variables on a plain Linux or this Python's
    version; otherwise in a container of Docker or Podman. In the sandbox the tests run apart from the commands: they
    see the task's folders as the model left them (working folder, and folders of ``COPY``, ``WORKDIR`` and
    ``RUN mkdir``), and nothing else that it changed.

    The solver sends the reference solution as one command. The constant action is ``submit``, an empty solution.

    Args:
        folder: A task's folder, or one with tasks at any depth.
        runtime: ``"auto"``, or ``"sandbox"``, ``"docker"`` or ``"podman"`` for all tasks. With ``"sandbox"`` the image
            that a Dockerfile starts from is ignored.
        turns: Number of actions.
        command_seconds: Most seconds of a command.
        seconds: Most seconds of all commands of an episode; a task may name fewer (``[agent] timeout_sec``).
        test_seconds: Most seconds of the tests; a task may name fewer (``[verifier] timeout_sec``).
        memory_mb: Most MiB of memory, of each process in the sandbox and of a whole container.
        disk_mb: Most MiB in each of the task's folders in the sandbox, and of a file in a container.
        processes: Most processes at a time.
        reward: ``"score"``, the tests' number, or ``"success"``.
        render_mode: ``"ansi"`` or ``"human"``.

    Raises:
        ConfigError: There is no task, a task's folder is not as its format says, or a task cannot run here.
    """

    reward_modes = ("score", "success")
    preferred_executor: ClassVar[str] = "thread"
    limit_only_ends = False  # the tests run in the last turn, and may be passed
    constant_action = "submit"

    def __init__(
        self,
        folder: str,
        *,
        runtime: Runtime = "auto",
        turns: int = 12,
        command_seconds: int = 30,
        seconds: int = 600,
        test_seconds: int = 120,
        memory_mb: int = 1024,
        disk_mb: int = 64,
        processes: int = 64,
        reward: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_integers(
            turns=turns,
            command_seconds=command_seconds,
            seconds=seconds,
            test_seconds=test_seconds,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            processes=processes,
            at_least=1,
        )
        if runtime not in get_args(Runtime):
            raise ConfigError(f"runtime must be one of {', '.join(get_args(Runtime))}, got {runtime!r}")
        self.turns = turns
        super().__init__(reward=reward, render_mode=render_mode)
        self.difficulty = None
        self.folder, self.runtime = folder, runtime
        self.command_seconds, self.seconds, self.test_seconds = command_seconds, seconds, test_seconds
        self.memory_mb, self.disk_mb, self.processes = memory_mb, disk_mb, processes
        self.tasks = read_tasks(Path(folder))
        self.runtimes = {task.name: _choose(task, runtime) for task in self.tasks}
        """``"sandbox"``, ``"docker"`` or ``"podman"`` by task: its machine."""
        self._task = self.tasks[0]
        self._machine: Machine | None = None
        self._seconds_left = 0.0
        self._ran: list[str] = []  # commands that made the files, for a copy of this environment

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the machine; a copy runs the commands again when it needs their files."""
        return {**self.__dict__, "_machine": None}

    @property
    def instructions(self) -> str:
        """Rules, and form of an action."""
        return (
            f"Do the task with shell commands, in at most {self.turns} turns. Say each turn one command, or several "
            "lines of them; bash runs them, and you see what they print. Files stay from turn to turn, variables, the "
            "working folder and background processes do not. A command has at most "
            f"{self.command_seconds} seconds, and there is no network. Say submit when the task is done: then "
            "hidden tests decide."
        )

    @property
    def num_instances(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    @property
    def optimal_success(self) -> float | None:
        """1 if every task has a reference solution, else unknown."""
        return 1.0 if all(task.solution is not None for task in self.tasks) else None

    @property
    def solver(self) -> Callable[[], Policy]:  # type: ignore[override]  # there is none without solutions
        """Make a policy that sends the reference solution, and then submits.

        Raises:
            AttributeError: A task has no reference solution.
        """
        if missing := [task.name for task in self.tasks if task.solution is None]:
            raise AttributeError(f"{self._name} has no solver: task {missing[0]!r} has no reference solution")
        return lambda: self._solve

    def _solve(self, observation: str) -> str:
        command = self._task.solution_command() or ""
        return "submit" if command in self._ran else command

    def close(self) -> None:
        """End the machine."""
        if self._machine is not None:
            self._machine.close()
        self._machine = None
        super().close()

    def _deal(self, instance: int | None) -> None:
        self.close()
        self._task = self.tasks[instance or 0]
        self._seconds_left = min(float(self.seconds), self._task.agent_seconds)
        self._ran = []
        self._machine = self._new_machine()

    def _new_machine(self) -> Machine:
        task = self._task
        limits = SandboxLimits(
            cpu_seconds=math.ceil(min(self.seconds, task.agent_seconds) + self.test_seconds),
            memory_mb=min(self.memory_mb, task.memory_mb or self.memory_mb),
            processes=self.processes,
            file_mb=min(self.disk_mb, task.storage_mb or self.disk_mb),
            output_chars=_SHOWN,
        )
        if (program := self.runtimes[task.name]) != "sandbox":
            variables = tuple(task.variables.items())
            box = ContainerImage(
                task.docker_image, task.context, task.working_folder, variables, build_seconds=task.build_seconds
            )
            return _containers(program).machine(program, box, limits, cpus=task.cpus)
        image = task.image
        with apart_from_the_model("reading the task's folder"):
            place = Place(task.files(), image.roots, image.working_folder, {**image.variables, **task.variables})
        return SandboxMachine(place, limits)

    def _observe(self) -> str:
        left = "1 turn left." if self._turns_left == 1 else f"{self._turns_left} turns left."
        return f"{self._task.instruction}\n{left}" if self._turns_left == self.turns else left

    def _act(self, action: str) -> Outcome:
        fenced = _FENCED.fullmatch(action)
        command = fenced[1] if fenced else action
        if command.strip().lower() == "submit":
            return self._submit()
        if not command.strip():
            return self._reject("There is no command.")
        shown = self._run(command)
        if self._turns_left == 1 or self._seconds_left <= 0:
            outcome = self._submit()
            return outcome._replace(observation=f"{shown}{outcome.observation}")
        return self._end_turn(shown.rstrip("\n"))

    def _run(self, command: str) -> str:
        """Run a command, and return what is shown of it."""
        self._catch_up()
        ran = self._timed(command)
        self._ran = [] if ran.lost else [*self._ran, command]
        output = ran.output or ("It printed nothing.\n" if ran.code == 0 else "")
        if output and not output.endswith("\n"):
            output += "\n"
        return f"{output}[exit code {ran.code}]\n" if ran.code else output

    def _catch_up(self) -> None:
        """Make the machine of a copied environment, with the files that the commands so far made."""
        if self._machine is None:
            self._machine = self._new_machine()
            for earlier in self._ran:
                self._machine.run(earlier, self.command_seconds)

    def _timed(self, command: str) -> Ran:
        assert self._machine is not None
        start = monotonic()
        ran = self._machine.run(command, min(self.command_seconds, self._seconds_left))
        self._seconds_left -= monotonic() - start
        return ran

    def _submit(self) -> Outcome:
        self._turns_left = 0
        self._catch_up()
        assert self._machine is not None
        name = self._task.name
        try:
            rewards, output = self._scored(self._machine)
        except _NoScoreError as problem:
            self.close()
            self._machine = self._new_machine()
            try:
                self._scored(self._machine)
            except _NoScoreError as why:
                raise InfrastructureError(f"the tests of task {name!r} fail on its untouched files too: {why}") from why
            info: dict[str, Any] = {"task": name, "test_output": str(problem)}
            return Outcome("Not solved: the tests could not finish.", done=True, info=info)
        finally:
            self.close()
        success = rewards["reward"] >= 1
        reward = rewards["reward"] if self.reward == "score" else float(success)
        info = {"task": name, "scores": rewards, "test_output": output}
        return Outcome("Solved." if success else "Not solved.", reward, True, success, info=info)

    def _scored(self, machine: Machine) -> tuple[dict[str, float], str]:
        """Run the tests, and return their rewards by name and the end of what they print.

        Raises:
            _NoScoreError: They gave no reward.
        """
        task = self._task
        seconds = min(float(self.test_seconds), task.test_seconds)
        with apart_from_the_model("reading the tests"):
            tests = Check(task.tests(), task.test_command, seconds, task.test_variables, _REWARDS)
        try:
            verified = machine.verify(tests)
        except OSError as error:
            raise _NoScoreError(str(error)) from error
        shown = verified.output[-_SHOWN:]
        try:
            return _from_summary(verified) if task.pytest_summary else _from_files(verified), shown
        except (ValueError, RecursionError) as error:  # nested too deeply
            raise _NoScoreError(f"{error}; the end of their output: {shown}") from error


def _from_files(verified: Verified) -> dict[str, float]:
    """Return the rewards by name in the files of Harbor's verifier.

    Raises:
        ValueError: There are none, or one is not a finite and nonnegative number.
        RecursionError: They are nested too deeply.
    """
    as_json, as_text = (verified.files.get(path) for path in _REWARDS)
    if as_json is not None:
        found = json.loads(as_json)
        rewards = found if isinstance(found, dict) else {"reward": found}
        if len(rewards) == 1:
            rewards = {"reward": next(iter(rewards.values()))}
        if "reward" not in rewards:
            raise ValueError(f"reward.json has no entry reward: {found!r:.200}")
    elif as_text is not None:
        rewards = {"reward": float(as_text)}
    else:
        ended = "were ended" if verified.code is None else f"ended with code {verified.code}"
        raise ValueError(f"the tests {ended} and wrote neither reward.txt nor reward.json")
    for name, value in rewards.items():
        if not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise ValueError(f"{name} must be a finite number of at least 0, got {value!r:.100}")
    return {str(name): float(value) for name, value in rewards.items()}


def _from_summary(verified: Verified) -> dict[str, float]:
    """Return the reward of Terminal-Bench: 1 if no test in pytest's summary (``-rA``) failed.

    Raises:
        ValueError: There is no summary, or it is not complete.
    """
    _, *after = _SUMMARY.split(verified.output, maxsplit=1)
    results = [found[1] for line in "".join(after).splitlines() if (found := _RESULT.match(line))]
    if not results:
        raise ValueError("the tests printed no short test summary of pytest")
    if " are left out]" in after[0]:
        raise ValueError("the tests printed so much that their summary is not complete")
    return {"reward": float(_GOOD_RESULTS.issuperset(results))}


def _containers(program: str) -> Containers:
    containers: Containers = load("containers", program)
    return containers


def _choose(task: TaskFolder, runtime: Runtime) -> str:
    """Return where a task runs.

    Raises:
        ConfigError: It cannot run here.
    """
    reason = task.container_reason
    if runtime == "sandbox" and task.image.problem is None:  # the image's name does not matter
        reason = next(filter(None, map(check_folder, task.image.roots)), None)
    if reason is None and (problem := shell_problem()) is not None:
        reason = f"the sandbox does not work here ({problem})"
    if runtime == "sandbox" and reason is not None:
        raise ConfigError(f"task {task.name!r} cannot run in the sandbox: {reason}")
    if reason is None and runtime in ("auto", "sandbox"):
        return "sandbox"
    if task.docker_image is None and not (task.context / "Dockerfile").is_file():
        raise ConfigError(f"task {task.name!r} cannot run in a container, because it has no Dockerfile; {reason or ''}")
    problems = list[str]()
    for program in offered("containers") if runtime == "auto" else (runtime,):
        if (problem := _containers(program).problem(program)) is None:
            return program
        problems.append(f"{program}: {problem}")
    why = f", because {reason}" if reason else ""
    raise ConfigError(f"task {task.name!r} needs a container{why}, and none can be made here ({'; '.join(problems)})")
