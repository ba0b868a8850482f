"""Process of a training: its folder, its signals, and the output of its libraries."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from gym_trl.errors import ConfigError, UntrustedError
from gym_trl.training.options import read_options

_SILENCE = {"TRL_EXPERIMENTAL_SILENCE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def default_folder(env: str) -> Path:
    """Return a folder in ``runs`` named after the environment and the time."""
    name = env.rpartition("/")[2].rpartition(":")[2].removesuffix(".py")
    return Path("runs", f"{name}-{datetime.now():%Y%m%d-%H%M%S}")


def check_new(path: Path) -> None:
    """Check that a run's folder does not exist or is empty.

    Raises:
        ConfigError: it contains a run or other files, or is a file.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; a run needs a folder")
    if not path.exists() or not any(path.iterdir()):
        return
    try:
        with suppress(UntrustedError):
            read_options(path)
    except ConfigError as error:  # such as the folder of an evaluation
        raise ConfigError(f"{path} is not empty and is not a run; choose another --out") from error
    raise ConfigError(f"{path} already has a run; continue it with --resume {path}, or choose another --out")


def agreed(path: Path, processes: int) -> Path:
    """Return the first process's folder: the default name depends on the clock."""
    if processes == 1:
        return path
    from accelerate.utils import broadcast_object_list

    return Path(broadcast_object_list([str(path)])[0])


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress terminal output of the trainer and its libraries."""
    import datasets
    from transformers.utils import logging as transformers_logging

    def wanted(record: logging.LogRecord) -> bool:
        # This warning repeats a failed episode's whole prompt at every step; such episodes are counted as unscored.
        return "All reward functions returned None" not in record.getMessage()

    trainer_log = logging.getLogger("trl.trainer.grpo_trainer")
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    mapping = datasets.are_progress_bars_disabled()
    silenced = {name: value for name, value in _SILENCE.items() if name not in os.environ}
    os.environ |= silenced
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    trainer_log.addFilter(wanted)
    try:
        yield
    finally:
        trainer_log.removeFilter(wanted)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
        if not mapping:
            datasets.enable_progress_bars()
        for name in silenced:
            del os.environ[name]


@contextmanager
def one_thread(note: Callable[[str], None]) -> Iterator[None]:
    """Let PyTorch compute with one thread, unless ``OMP_NUM_THREADS`` is set; ``note`` is called with a line about it.

    A tiny model's operations end before further threads have begun, and these then compete with other programs.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == 1 or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    note("PyTorch computes with 1 thread, because the model is tiny; OMP_NUM_THREADS sets another number")
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Interrupt:
    """Signal handler: Ctrl-C, SIGTERM and SIGHUP stop the run after its step; a second signal aborts.

    Signals within ``patience_s`` of the first count as the same one, because a launcher forwards signals to its
    processes that the terminal has already sent to all of them.
    """

    def __init__(self, *, speaks: bool, patience_s: float) -> None:
        self.requested = False
        """True after the first signal."""
        self._speaks = speaks
        self._patience_s = patience_s
        self._asked = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Handle signals until the end of the ``with`` block."""
        # Python allows handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            heard = [signal.SIGINT, signal.SIGTERM]
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # set by nohup
                heard.append(signal.SIGHUP)
            self._previous = {number: signal.signal(number, self._ask) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def requested_anywhere(self, accelerator: Any) -> bool:
        """Return whether a process of the training has received a signal; all processes must call it."""
        if accelerator.num_processes == 1:
            return self.requested
        import torch

        asked = torch.tensor(float(self.requested), device=accelerator.device)
        return bool(accelerator.reduce(asked, "sum") > 0)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            # A closed terminal sends SIGHUP more than once.
            if signal.Signals(number).name != "SIGHUP" and time.monotonic() - self._asked >= self._patience_s:
                raise KeyboardInterrupt
            return
        self.requested, self._asked = True, time.monotonic()
        if self._speaks:
            # Not print, which is not reentrant. Writing to a terminal that was closed fails.
            with suppress(OSError):
                os.write(2, b"\nStopping after this step; once more aborts.\n")
