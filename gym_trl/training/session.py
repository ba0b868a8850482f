"""Session of a training: its process, folder, display and signals, from the first check to the result."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError, GymTRLError, described, needs
from gym_trl.training.process import Interrupt, agreed, check_new, default_folder, one_thread, quiet_libraries
from gym_trl.training.progress import Display, lasting_console
from gym_trl.training.run_folder import Checkpoint, RunFolder

with needs("train", "gym-trl train"):
    from transformers import TrainerCallback


class Session(Closing):
    """One training in this process: ``open`` makes its folder known, and ``running`` surrounds the trainer.

    Args:
        env: The environment, after which a new folder is named.
        out: The run's folder. Default: a new one in ``runs``.
        start: Checkpoint from which an earlier run continues; ``None`` for a new one.
        console: Console for progress. Default: the terminal.
        resume_command: Function that returns the command that continues the run in a folder.

    Raises:
        ConfigError: the folder of a new run is not empty.
    """

    def __init__(
        self,
        env: str,
        out: Path | None,
        start: Checkpoint | None,
        console: Console | None,
        resume_command: Callable[[Path], str],
    ) -> None:
        self.rank, self.processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.console = Console(quiet=True) if self.rank else console or lasting_console(sys.stdout)
        self.start = start or Checkpoint(None, 0)
        self.stepped = self.start.path is not None
        """True after the first step; earlier failures are caused by the options."""
        self._new, self._resume_command = start is None, resume_command
        path = out or default_folder(env)
        if self.rank == 0 and self._new:
            check_new(path)
        self.folder = RunFolder(path, writes=self.rank == 0)
        self.display = Display(self.console)
        self.interrupt = Interrupt(speaks=self.rank == 0, patience_s=0.0 if self.processes == 1 else 3.0)
        self._began = 0.0
        self.resources = ExitStack()
        """Resources that are closed at the end."""
        self.resources.enter_context(quiet_libraries())

    def close(self) -> None:
        """Restore what the session has changed in the process."""
        self.resources.close()

    def open(self, *, tiny: bool) -> None:
        """Agree with all processes on the folder, and check that it can be written.

        Args:
            tiny: Whether the model is the tiny one, for which PyTorch computes with one thread.
        """
        self.folder.path = agreed(self.folder.path, self.processes)
        self.resources.callback(self.folder.close)
        self.resources.callback(self.display.end)
        if tiny:
            self.resources.enter_context(one_thread(self.display.note))

    @property
    def resume(self) -> str:
        """Command that continues the run."""
        return self._resume_command(self.folder.path)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Say what ended the training; without a step, a new one leaves no folder.

        Raises:
            ConfigError: the training could not start.
        """
        path = self.folder.path
        try:
            yield
        except KeyboardInterrupt:
            self.display.note(f"Aborted. To continue from the last checkpoint: {self.resume}")
            raise
        except Exception as error:
            if self._new and not self.stepped and not isinstance(error, OSError):
                self.folder.discard()
                if not isinstance(error, GymTRLError):
                    raise ConfigError(f"the training cannot start, {described(error)} ({path} is unchanged)") from error
            if isinstance(error, OSError) and (path / "config.json").exists():
                self.display.note(f"To continue from the last checkpoint: {self.resume}")
            raise

    def begin(self, step: int, steps: int) -> None:
        """Start the clock and the display before the first step, after ``step`` earlier ones, and note that it runs."""
        self.folder.summary |= {"steps": step, "interrupted": True}
        self.folder.save_summary()
        self._began = time.monotonic() - self.folder.summary.get("seconds", 0.0)
        self.display.begin(step, steps)

    def save(self, trainer: Any, steps: int) -> None:
        """Save the model, and note whether the last of ``steps`` steps is done."""
        self.display.note("Saving the model")
        self.folder.model(trainer)
        done = trainer.state.global_step
        self.folder.summary |= {"steps": done, "interrupted": done < steps}
        self.folder.save_summary()

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        """Write a line of metrics."""
        seconds = round(time.monotonic() - self._began, 3)
        self.folder.summary |= {"steps": step, "seconds": seconds}
        self.folder.metrics({"step": step, "seconds": seconds, **logs})


class SessionCallback(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback of a trainer that writes metrics, and stops on all processes at once after a signal."""

    def __init__(self, session: Session) -> None:
        self.session, self.folder, self.display, self.start = session, session.folder, session.display, session.start
        self.trainer: Any = None
        """Trainer that calls it, once it is known."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        """Write and show a line of metrics."""
        if "train_runtime" not in logs:  # the trainer's final log, which belongs to no step
            self.session.log(state.global_step, logs)
            self.show(state.global_step, logs)

    def show(self, step: int, logs: Mapping[str, Any]) -> None:
        """Show the metrics of a step."""
        self.display.log(step, logs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop on all processes at once if a signal was received on one of them."""
        self.session.stepped = True
        if self.session.interrupt.requested_anywhere(self.trainer.accelerator):
            control.should_training_stop = control.should_save = True
