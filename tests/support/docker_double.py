"""Stand-in for the programs docker and podman: a container is a folder, and its commands run unprotected.

Only for commands of our own in tests. It is called as the real program is, by its name on the PATH.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

HOME = Path(os.environ.get("DOCKER_DOUBLE", "."))
FOLDERS = ("/app", "/tests", "/logs", "/solution")


def install(folder: Path) -> None:
    """Write programs that run this file into a folder."""
    for name in ("docker", "podman"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} "$@"\n')
        program.chmod(0o755)


def here(text: str, root: Path) -> str:
    """Return a command with paths in the container's folder."""
    for folder in FOLDERS:
        text = text.replace(folder, f"{root}{folder}")
    return text


def main(command: str, *arguments: str) -> int:
    """Do what a command line asks for."""
    with (HOME / "calls").open("a", encoding="utf-8") as calls:
        calls.write(json.dumps([command, *arguments]) + "\n")
    if command == "build":
        sys.stdout.write("sha256:1234\n")
    elif command == "run":
        (HOME / arguments[arguments.index("--name") + 1] / "app").mkdir(parents=True)
    elif command == "rm":
        shutil.rmtree(HOME / arguments[-1])
    elif command == "exec":
        start = next(place for place, word in enumerate(arguments) if (HOME / word).is_dir() and word)
        root, words = HOME / arguments[start], arguments[start + 1 :]
        words = (*words[:-1], here(words[-1], root))
        code = subprocess.run(words, cwd=root / "app", check=False).returncode
        return code if code >= 0 else 128 - code
    elif command == "cp" and arguments[0] == "-":
        with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())) as archive:
            archive.extractall(root := HOME / arguments[1].partition(":")[0])
        for script in (root / "tests").glob("*.sh"):
            script.write_text(here(script.read_text(), root))
    elif command == "cp":
        name, _, path = arguments[0].partition(":")
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            archive.add(f"{HOME / name}{path}", Path(path).name)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(*sys.argv[1:]))
