"""Folders in the task formats of Harbor and Terminal-Bench, read from disk."""

import base64
import io
import json
import re
import shlex
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.sandbox.shell import check_folder

_FILES = ("task.toml", "task.yaml")
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_PYTHON = re.compile(r"([0-9]+\.[0-9]+)")
_PLAIN_IMAGES = frozenset({"bash", "buildpack-deps", "busybox", "debian", "python", "scratch", "ubuntu"})
"""Images with nothing but a Linux system, for which the machine's own programs can stand."""
_WITHOUT_EFFECT = frozenset({"ARG", "CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER"})
_MAKES_FOLDERS = re.compile(r"mkdir (?:-p )?((?:/[\w./-]+ ?)+)")
_MOST_LISTED = 3
_MIB = 2**20
_MOST_FILES, _MOST_MIB = 10_000, 256


@dataclass(frozen=True, slots=True)
class Image:
    """Content of a Dockerfile, as far as it can be reproduced without a container."""

    base: str = "scratch"
    working_folder: str = "/app"
    folders: tuple[str, ...] = ("/app",)
    """Folders that it has besides those of the system."""
    copied: tuple[tuple[str, str], ...] = ()
    """Sources, relative to the build's folder, and destinations; the content of a folder is copied into one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    """Reason why it needs a container."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Folders that are in no other one."""
        paths = {PurePosixPath(folder) for folder in self.folders}
        return tuple(sorted(str(path) for path in paths if not paths & set(path.parents)))


@dataclass(frozen=True, slots=True)
class TaskFolder:
    r"""One task, as its folder describes it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "tests").mkdir()
    >>> _ = (folder / "task.toml").write_text("[agent]\ntimeout_sec = 60")
    >>> _ = (folder / "instruction.md").write_text("Write 6 into the file number.")
    >>> _ = (folder / "tests" / "test.sh").write_text("cat number > /logs/verifier/reward.txt")
    >>> [task] = read_tasks(folder)
    >>> task.instruction, task.agent_seconds, task.test_seconds, task.solution
    ('Write 6 into the file number.', 60.0, 600.0, None)

    Formats: Harbor's ``task.toml`` (schema versions 1.0 to 1.4: https://www.harborframework.com/docs/tasks) and
    Terminal-Bench's ``task.yaml`` with the parser ``pytest`` (https://www.tbench.ai/docs/task-overview).
    """

    name: str
    path: Path
    instruction: str
    image: Image
    agent_seconds: float
    test_seconds: float
    context: Path
    """Folder of the Dockerfile."""
    pytest_summary: bool = False
    """Terminal-Bench: the reward is 1 if the summary that pytest prints has no failure."""
    docker_image: str | None = None
    working_folder: str | None = None
    """Working folder in ``task.toml``, which overrides the image's."""
    build_seconds: float = 600.0
    variables: Mapping[str, str] = field(default_factory=dict)
    test_variables: Mapping[str, str] = field(default_factory=dict)
    solution_variables: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int | None = None
    storage_mb: int | None = None
    cpus: float | None = None

    @property
    def container_reason(self) -> str | None:
        """Reason why the task needs a container, or ``None``."""
        if self.docker_image is not None:
            return f"it wants the image {self.docker_image}"
        if self.image.problem is not None:
            return self.image.problem
        name, _, tag = self.image.base.removeprefix("docker.io/").removeprefix("library/").partition(":")
        if name not in _PLAIN_IMAGES:
            return f"its Dockerfile starts from {self.image.base}"
        wanted, here = _PYTHON.match(tag), f"{sys.version_info.major}.{sys.version_info.minor}"
        if name == "python" and wanted and wanted[1] != here:
            return f"its Dockerfile starts from {self.image.base}, and this is Python {here}"
        return next(filter(None, map(check_folder, self.image.roots)), None)

    @property
    def test_command(self) -> str:
        """Command that runs the tests."""
        return f"bash /tests/{'run-tests.sh' if self.pytest_summary else 'test.sh'}"

    @property
    def solution(self) -> Path | None:
        """Script of the reference solution, or ``None``."""
        script = self.path / ("solution.sh" if self.pytest_summary else "solution/solve.sh")
        return script if script.is_file() else None

    def files(self) -> bytes:
        """Return the initial files as a tar archive."""
        contents: dict[str, Path | None] = dict.fromkeys(self.image.folders)
        contents |= _below([(self.context / source, target) for source, target in self.image.copied], self.context)
        return _archive({path: file for path, file in contents.items() if path not in self.image.roots})

    def tests(self) -> bytes:
        """Return the tests as a tar archive with the folder ``/tests``."""
        folder = self.path / "tests"
        contents = _below([(folder, "/tests")], folder) if folder.exists() else {}
        contents.pop("/tests", None)
        if self.pytest_summary:
            contents |= _below([(self.path / "run-tests.sh", "/tests/run-tests.sh")], self.path)
        return _archive(contents)

    def solution_command(self) -> str | None:
        """Return a command that does what the reference solution does, with its other files; ``None`` without one."""
        if (script := self.solution) is None:
            return None
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.solution_variables.items()]
        text = script.read_text(encoding="utf-8")
        if not self.pytest_summary and (others := _below([(script.parent, "/solution")], script.parent)).keys() > {
            "/solution",
            "/solution/solve.sh",
        }:
            for path, file in others.items():
                lines.append(f"mkdir -p {shlex.quote(path)}" if file is None else _written(path, file))
            return "\n".join([*lines, "bash /solution/solve.sh"])
        return "\n".join([*lines, text])


def read_tasks(folder: Path) -> list[TaskFolder]:
    """Return the tasks in a folder, at any depth, sorted by their names; or the folder itself, if it is a task.

    Raises:
        ConfigError: There are none, or one of them cannot be read; the message names the task and the reason.
    """
    if not folder.is_dir():
        raise ConfigError(f"folder must be a folder with tasks, and there is none at {folder}")
    # A task's own files may contain further ones, such as examples.
    folders = sorted({path.parent for name in _FILES for path in folder.rglob(name)})
    paths = [path for path in folders if not any(other in path.parents for other in folders)]
    if not paths:
        raise ConfigError(f"there is no task in {folder}: a task is a folder with a task.toml or a task.yaml")
    tasks, problems = list[TaskFolder](), list[str]()
    for path in paths:
        name = path.relative_to(folder).as_posix() if path != folder else path.resolve().name
        try:
            tasks.append(_read_task(name, path))
        except ConfigError as error:
            problems.append(f"task {name!r}: {error}")
    if problems:
        more = f"\n(and {len(problems) - _MOST_LISTED} more)" if len(problems) > _MOST_LISTED else ""
        raise ConfigError("\n".join(problems[:_MOST_LISTED]) + more)
    return tasks


def _read_task(name: str, path: Path) -> TaskFolder:
    task = _harbor(name, path) if (path / "task.toml").is_file() else _terminal_bench(name, path)
    # To find a missing file or a link out of the folder now and not in an episode.
    if task.container_reason is None:
        task.files()
    task.tests()
    task.solution_command()
    return task


def _harbor(name: str, path: Path) -> TaskFolder:
    text = _text(path / "task.toml")
    try:
        config = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of too many digits is no TOMLDecodeError
        raise ConfigError(f"task.toml is not TOML: {error}") from error
    tables = {key: _table(config, key) for key in ("environment", "agent", "verifier", "solution")}
    environment, verifier = tables["environment"], tables["verifier"]
    if config.get("steps"):
        raise ConfigError("tasks in several steps ([[steps]]) are not supported")
    for key in ("mcp_servers", "healthcheck", "tpu", "skills_dir"):
        if environment.get(key):
            raise ConfigError(f"[environment] {key} is not supported")
    if environment.get("gpus"):
        raise ConfigError(f"there are no GPUs in a task's machine, and it wants {environment['gpus']}")
    if str(environment.get("os", "linux")).lower() != "linux":
        raise ConfigError(f"only Linux is supported, and it wants {environment['os']}")
    if verifier.get("environment") or verifier.get("environment_mode") == "separate":
        raise ConfigError("a verifier with an environment of its own ([verifier.environment]) is not supported")
    context = path / "environment"
    if any((context / f"docker-compose.{suffix}").exists() for suffix in ("yaml", "yml")):
        raise ConfigError("environment/docker-compose.yaml is not supported")
    image = _image(context)
    if (folder := environment.get("workdir")) is not None:
        image = _with_folder(image, str(folder))
    if not (path / "tests" / "test.sh").is_file():
        raise ConfigError("there is no tests/test.sh")
    return TaskFolder(
        name=name,
        path=path,
        instruction=_instruction(_text(path / "instruction.md")),
        image=image,
        agent_seconds=_number(tables["agent"], "timeout_sec", 600.0),
        test_seconds=_number(verifier, "timeout_sec", 600.0),
        context=context,
        docker_image=environment.get("docker_image"),
        working_folder=environment.get("workdir"),
        build_seconds=_number(environment, "build_timeout_sec", 600.0),
        variables=_variables(environment),
        test_variables=_variables(verifier),
        solution_variables=_variables(tables["solution"]),
        memory_mb=_mib(environment, "memory"),
        storage_mb=_mib(environment, "storage"),
        cpus=_number(environment, "cpus", 0.0) or None,
    )


def _terminal_bench(name: str, path: Path) -> TaskFolder:
    with needs("train", "Terminal-Bench's task.yaml"):
        yaml = import_module("yaml")
    compose = path / "docker-compose.yaml"
    texts = _text(path / "task.yaml"), _text(compose) if compose.exists() else ""
    try:
        config, composed = map(yaml.safe_load, texts)
        services = (composed or {}).get("services") or {}
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:  # ValueError: no such date
        raise ConfigError(f"task.yaml or docker-compose.yaml is not as YAML should be: {error}") from error
    if len(services) > 1:
        raise ConfigError(f"docker-compose.yaml has several services, which is not supported: {', '.join(services)}")
    if not isinstance(config, dict) or not isinstance(config.get("instruction"), str):
        raise ConfigError("task.yaml has no instruction")
    if (parser := config.get("parser_name", "pytest")) != "pytest":
        raise ConfigError(f"only the parser pytest is supported, and parser_name is {parser!r}")
    if not (path / "run-tests.sh").is_file():
        raise ConfigError("there is no run-tests.sh")
    return TaskFolder(
        name=name,
        path=path,
        instruction=_instruction(config["instruction"]),
        image=_image(path, alone=False),
        agent_seconds=_number(config, "max_agent_timeout_sec", 360.0),
        test_seconds=_number(config, "max_test_timeout_sec", 60.0),
        context=path,
        pytest_summary=True,
        test_variables={"TEST_DIR": "/tests"},
    )


def _instruction(text: str) -> str:
    """Return an instruction without the lines at its start that mark it for searches in training data."""
    lines = text.splitlines()
    while lines and (not lines[0].strip() or _CANARY.fullmatch(lines[0].strip())):
        lines.pop(0)
    if not lines:
        raise ConfigError("its instruction is empty")
    return "\n".join(lines).rstrip()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"there is no {path.name}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from error


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = config.get(key, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"[{key}] must be a table, got {table!r}")
    return table


def _number(table: Mapping[str, Any], key: str, otherwise: float) -> float:
    value = table.get(key)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ConfigError(f"{key} must be a positive number, got {value!r}")
    return float(value)


def _mib(table: Mapping[str, Any], name: str) -> int | None:
    """Return a size: ``NAME_mb`` in MiB, or the older ``NAME`` as text such as ``"2G"``."""
    if isinstance(text := table.get(name), str):
        units = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
        try:
            return max(1, int(float(text.strip()[:-1]) * units[text.strip()[-1:].upper()]))
        except (ValueError, KeyError, OverflowError) as error:
            raise ConfigError(f"{name} must be a size such as '512M' or '2G', got {text!r}") from error
    return int(_number(table, f"{name}_mb", 0)) or None


def _variables(table: Mapping[str, Any]) -> dict[str, str]:
    variables = table.get("env", {})
    if not isinstance(variables, Mapping):
        raise ConfigError(f"env must be a table of variables, got {variables!r}")
    for name, value in variables.items():
        if not isinstance(value, str):
            raise ConfigError(f"the variable {name} must be a text, got {value!r}")
        if "${" in value:
            raise ConfigError(
                f"the variable {name} is {value!r}, and no variable of this machine is passed to what a model runs"
            )
    return dict(variables)


# Dockerfiles


def _image(context: Path, *, alone: bool = True) -> Image:
    """Read a Dockerfile; ``alone``: all other files in its folder are there for it."""
    if not (context / "Dockerfile").is_file():
        if alone and context.is_dir() and any(context.iterdir()):
            raise ConfigError(f"{context.name} has files, and no Dockerfile that says where they go")
        return Image()
    image = Image(base="", working_folder="/", folders=())
    for word, rest in _instructions(_text(context / "Dockerfile")):
        if not image.base and word not in {"FROM", "ARG"}:
            raise ConfigError(f"its Dockerfile starts with {word} and not with FROM")
        try:
            image = _after(image, context, word, rest)
        except ConfigError:
            raise
        except ValueError as error:  # of shlex and JSON
            image = _needing(image, f"{word} {rest}: {error}")
    if not image.base:
        raise ConfigError("its Dockerfile has no FROM")
    if (context / ".dockerignore").exists():
        image = _needing(image, "it has a .dockerignore")
    return image


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    for line in joined.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word.upper(), rest.strip()


def _after(image: Image, context: Path, word: str, rest: str) -> Image:  # noqa: PLR0911 -- one per instruction
    """Return an image after one more instruction."""
    if word in _WITHOUT_EFFECT:
        return image
    if "$" not in rest and "<<" not in rest:
        if word == "FROM" and not image.base and rest:
            return replace(image, base=rest.split(maxsplit=1)[0])
        if word == "WORKDIR" and rest:
            return _with_folder(image, shlex.split(rest)[0])
        if word == "ENV":
            return replace(image, variables={**image.variables, **_pairs(rest)})
        if word == "RUN" and (made := _MAKES_FOLDERS.fullmatch(rest)):
            return replace(image, folders=(*image.folders, *made[1].split()))
        if word == "COPY":
            return _copied(image, context, rest)
    return _needing(image, f"its Dockerfile has {word} {rest}"[:200])


def _pairs(rest: str) -> dict[str, str]:
    """Return the variables of ENV.

    Raises:
        ValueError: There is no value.
    """
    pairs = shlex.split(rest)
    if pairs and "=" not in pairs[0]:  # the older form: ENV NAME value
        name, value = rest.split(maxsplit=1)
        return {name: value}
    return dict(pair.split("=", 1) for pair in pairs)


def _copied(image: Image, context: Path, rest: str) -> Image:
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    flags = [one for one in words if one.startswith("--")]
    *sources, target = [one for one in words if not one.startswith("--")] or [""]
    if not sources or not target or any(not flag.startswith(("--chown=", "--link")) for flag in flags):
        return _needing(image, f"its Dockerfile has COPY {rest}"[:200])
    matching: list[Path] = []
    for source in sources:
        matches = sorted(context.glob(source.strip("/"))) if source.strip("./") else [context]
        if not matches:
            raise ConfigError(f"its Dockerfile copies {source}, and there is none in {context.name}")
        matching += matches
    path = _absolute(image, target)
    into = (
        target.endswith(("/", ".")) or len(matching) > 1 or path in _ancestors([*image.folders, image.working_folder])
    )
    copied = list(image.copied)
    for one in matching:
        whole = into and not one.is_dir()
        copied.append((str(one.relative_to(context)), f"{path.rstrip('/')}/{one.name}" if whole else path))
    kept = path if into or any(one.is_dir() for one in matching) else str(PurePosixPath(path).parent)
    return replace(image, copied=tuple(copied), folders=_with(image, kept))


def _with_folder(image: Image, folder: str) -> Image:
    path = _absolute(image, folder)
    return replace(image, working_folder=path, folders=_with(image, path))


def _with(image: Image, folder: str) -> tuple[str, ...]:
    return image.folders if folder in ("/", *image.folders) else (*image.folders, folder)


def _absolute(image: Image, path: str) -> str:
    """Return a path from the root, without dots."""
    parts: list[str] = []
    for part in (PurePosixPath(image.working_folder) / path).parts[1:]:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/" + "/".join(parts)


def _ancestors(folders: Iterable[str]) -> set[str]:
    return {str(one) for folder in folders for one in (PurePosixPath(folder), *PurePosixPath(folder).parents)}


def _needing(image: Image, problem: str) -> Image:
    return image if image.problem else replace(image, problem=problem)


# Files


def _below(sources: Iterable[tuple[Path, str]], root: Path) -> dict[str, Path | None]:
    """Return files, and folders with all below, by path on the machine; ``None`` is a folder.

    Raises:
        ConfigError: A link leads out of ``root``, nowhere or in a circle, there is something else than files, or there
            are more or larger ones than an episode should read.
    """
    inside = root.resolve()
    places: dict[str, Path | None] = {}
    seen = size = 0

    def visit(path: Path, place: str, above: frozenset[Path]) -> None:
        nonlocal seen, size
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"{path.relative_to(root.parent)} leads nowhere or in a circle") from error
        if real != inside and inside not in real.parents:
            raise ConfigError(f"{path.relative_to(root.parent)} is a link that leads out of {root.name}: {real}")
        if real in above:
            raise ConfigError(f"{path.relative_to(root.parent)} is a link that leads in a circle")
        seen, size = seen + 1, size + (0 if real.is_dir() else real.stat().st_size)
        if seen > _MOST_FILES or size > _MOST_MIB * _MIB:
            raise ConfigError(f"{root.name} has more than {_MOST_FILES} files and folders or {_MOST_MIB} MiB")
        if real.is_dir():
            places[place] = None
            for one in sorted(real.iterdir()):
                visit(path / one.name, f"{place.rstrip('/')}/{one.name}", above | {real})
        elif real.is_file():
            places[place] = real
        else:
            raise ConfigError(f"{path.relative_to(root.parent)} is neither a file nor a folder")

    for source, target in sources:
        visit(source, target, frozenset())
    return places


def _archive(files: Mapping[str, Path | None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for place, file in sorted(files.items()):
            info = tarfile.TarInfo(place.lstrip("/"))
            if file is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
                continue
            content = file.read_bytes()
            info.size, info.mode = len(content), 0o755 if file.stat().st_mode & 0o100 else 0o644
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _written(path: str, file: Path) -> str:
    """Return a command that writes a file."""
    return f"base64 -d > {shlex.quote(path)} <<'END'\n{base64.encodebytes(file.read_bytes()).decode()}END"
