"""Generator of docs/guides/transcript.md: the way from an idea to an installed package, as a terminal shows it.

    python docs/make_transcript.py          # about five minutes
    python docs/make_transcript.py --check  # run it, and write nothing; exit with status 1 if a command fails

The commands run one after the other in an empty folder. The page has their output, and the seconds that each took.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).parent / "guides" / "transcript.md"
LIMIT_S = 600
"""Seconds for all commands together; more is a failure."""
MOST_LINES = 40
COMMANDS = (
    "gym-trl new lift",
    "cd lift",
    "python -m pytest -q",
    "gym-trl validate lift:Lift/Lift-v0",
    "gym-trl train lift:Lift/Lift-v0 --max-tokens-per-turn 1 --steps 200 --credit pool --out ../runs/lift",
    "gym-trl card lift:Lift/Lift-v0 --out ../cards --seconds 20",
    "python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir .. .",
    "cd ..",
    "python -m pip install --quiet --no-deps --target site lift-0.1.0-py3-none-any.whl",
    "export PYTHONPATH=site${PYTHONPATH:+:$PYTHONPATH}",
    "head -40 cards/card.md",
    "gym-trl list | grep Lift",
    "gym-trl eval Lift/Lift-v0 --policy solver --policy random --episodes 200",
    "gym-trl eval lift:Lift/Lift-v0 --model runs/lift --episodes 200",
    "ls cards runs/lift",
)
_NOISE = re.compile(r"Triton is installed|Loading weights")
_PROGRESS = re.compile(r"(episode|step) \d+/\d+ ")
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Shell whose folder and exported variables last from one command to the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / ".state"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._variables = {**os.environ, "PATH": path, "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
        self._state.write_text(f"cd {folder}\n", encoding="utf-8")

    def run(self, command: str) -> tuple[str, float]:
        """Return the output of a command, and the seconds that it took.

        Raises:
            SystemExit: The command fails.
        """
        script = f". {self._state}\n{command}\ncode=$?\n{{ echo cd $PWD; export -p; }} > {self._state}\nexit $code"
        begin = time.perf_counter()
        ran = subprocess.run(
            ["bash", "-c", script],
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=3 * LIMIT_S,
        )
        seconds = time.perf_counter() - begin
        if ran.returncode:
            sys.exit(f"{command}: exit status {ran.returncode}\n{ran.stdout}")
        return self._shown(ran.stdout), seconds

    def _shown(self, output: str) -> str:
        """Return an output with some lines of its progress, without terminal codes and the temporary folder's name."""
        lines = [line.split("\r")[-1].rstrip() for line in _CODES.sub("", output).splitlines()]
        lines = [line.replace(f"{self._folder}/", "").replace(str(self._folder), ".") for line in lines if line]
        lines = [line for line in lines if not _NOISE.match(line)]
        progress = [number for number, line in enumerate(lines) if _PROGRESS.match(line)]
        kept = {*progress[:: max(1, len(progress) // 8)], *progress[-1:]}
        lines = [line for number, line in enumerate(lines) if number not in progress or number in kept]
        if len(lines) > MOST_LINES:
            half = MOST_LINES // 2
            lines = [*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]]
        return "\n".join(lines)


def main() -> None:
    """Run the commands, and write the page."""
    blocks, total = [], 0.0
    with tempfile.TemporaryDirectory() as name:
        terminal = Terminal(Path(name).resolve())
        for command in COMMANDS:
            output, seconds = terminal.run(command)
            total += seconds
            print(f"{seconds:6.1f} s  {command}", flush=True)
            blocks.append(f"$ {command}" + (f"    # {seconds:.0f} s" if seconds >= 1 else "") + f"\n{output}".rstrip())
    if total > LIMIT_S:
        sys.exit(f"the commands took {total:.0f} s, and at most {LIMIT_S} are allowed")
    if "--check" in sys.argv:
        return
    text = "\n".join(blocks)
    PAGE.write_text(
        f"""# A transcript: from an idea to an installed package

*For people who want to see all steps before they start.*

The commands of [From an idea to a shared environment](new_environment.md) in an empty folder, as the terminal showed
them: a new environment, its checks, a tiny model that learns it, a card, and a wheel that is installed and found by
every command. Together they took {total:.0f} seconds on {os.cpu_count()} cores on {datetime.now(UTC):%Y-%m-%d}.
`python docs/make_transcript.py` wrote this page.

```text
{text}
```
""",
        encoding="utf-8",
    )
    print(f"{total:6.1f} s  together; {PAGE}")


if __name__ == "__main__":
    main()
