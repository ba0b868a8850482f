"""Files of all formats that gym-trl reads, each as a stranger would write it to run code, to write or to call home.

``FORMATS`` has a function for each format, which writes its traps into a folder and returns their paths; ``MATRIX`` has
the commands that read it. ``SECURITY.md`` has a row for each format, which a test compares.
"""

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from support import hostile
from support.tripwire import CANARY

SECRET = "a-secret-of-the-user-7c1e"
SHADOWED = (
    "openenv",
    "vllm",
    "ray",
    "wandb",
    "kernels",
    "math_verify",
    "e2b_code_interpreter",
    "trackio",
)
"""Optional packages, of which a stranger's folder has a module of the same name."""


@dataclass(frozen=True)
class Place:
    """Folders of one case: what a stranger gave, where the user works, what the user has."""

    root: Path

    @property
    def theirs(self) -> Path:
        """Folder of the stranger's files."""
        return self.root / "theirs"

    @property
    def cwd(self) -> Path:
        """Working directory, also of a stranger: with modules by the names of packages."""
        return self.root / "cwd"

    @property
    def out(self) -> Path:
        """Folder for outputs."""
        return self.root / "out"

    @property
    def marker(self) -> Path:
        """File that the code of traps makes, in whatever process it runs."""
        return self.root / "ran"

    @property
    def secret(self) -> Path:
        """File of the user that nothing may copy or change."""
        return self.root / "secret.txt"

    def make(self) -> "Place":
        """Write the folders."""
        for folder in (self.theirs, self.cwd, self.out):
            folder.mkdir(parents=True)
        self.secret.write_text(f"{SECRET}\n")
        code = f"{CANARY} = 1\nopen({str(self.marker)!r}, 'w').close()\n"
        body = f"{code}\nimport gymnasium as gym\n\n\ndef run(*args, **kwargs):\n"
        body += f"    open({str(self.marker)!r}, 'w').close()\n"
        body += "    return gym.make('TrlEnv/Echo-v0')\n\n\nclass Theirs(gym.Env):\n    pass\n"
        for folder in (self.theirs, self.cwd):
            for name in ("trap_module", "trap"):
                (folder / f"{name}.py").write_text(body)
        for name in SHADOWED:
            (self.cwd / f"{name}.py").write_text(code)
        return self

    @property
    def clean(self) -> bool:
        """Return whether nothing of a trap ran, and the user's file is as it was and nowhere else."""
        return not self.marker.exists() and self.secret.read_text() == f"{SECRET}\n"


def envs(place: Place) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and arguments of environments that run code of their author's choice, or call home."""
    touch = f"touch {place.marker}"
    yield "os:system", {"command": touch}
    yield "subprocess:run", {"args": ["touch", str(place.marker)]}
    yield "subprocess:Popen", {"args": ["touch", str(place.marker)]}
    yield "pathlib:Path.touch", {"self": str(place.marker)}
    yield "builtins:exec", {"source": f"{CANARY} = 1"}
    yield "this:anything", {}
    yield "trap_module:run", {}
    yield "trap_module:Theirs", {}
    yield "trap_module:Theirs-v0", {}
    yield "trap.py", {}
    yield f"{place.theirs / 'trap.py'}:run", {}
    yield "TrlEnv/QA-v0", {"dataset": [{"question": "1", "answer": "1"}], "verify": "trap_module:run"}
    yield "TrlEnv/QA-v0", {"dataset": str(place.secret), "prompt": "trap_module:run", "answer": "os:system"}
    yield "TrlEnv/OpenEnv-v0", {"base_url": "http://evil.invalid:8000"}
    yield "TrlEnv/OpenEnv-v0", {"docker_image": "evil"}
    yield "External/PettingZoo-v0", {"game": "trap_module:run"}


def specs() -> Iterator[dict[str, Any]]:
    """Yield arguments of ``GymSpec`` that name code."""
    for name in ("observe", "success", "state_key"):
        yield {name: "trap_module:run"}
    yield {"wrappers": ["trap_module:run"]}
    yield {"wrappers": ["os:system"]}
    yield {"observe": "trap.py:run"}
    yield {"opponents": "trap_module:run"}
    yield {"seats": {"opponents": ["trap_module:run", "http://evil.invalid/v1"]}}
    yield {"seats": "trap_module:run every=1"}
    yield {"history": {"last": 1, "summary": "trap_module:run"}}


def episode(**changes: Any) -> dict[str, Any]:
    """Return the record of a played episode with changes of its fields; those of ``task`` are merged."""
    record = hostile.record()
    task = {**record["task"], "env_kwargs": {"alphabet": "abcd", "word_length": 3}}  # as gym-trl train makes it
    return {**record, **changes, "task": {**task, **changes.get("task", {})}}


def odd_episodes() -> Iterator[dict[str, Any]]:
    """Yield records whose texts and numbers are meant for what shows, copies or computes them."""
    yield episode(policy="<script>alert(1)</script>", split="../../x", step=10**30)
    yield episode(policy="../../../../etc/x", task={"env_id": "../../../../tmp/x"})
    yield episode(opponent="trap_module:run", error="{{ ''.__class__ }}")
    yield episode(reward_function="trap_module:run", trust_remote_code=True)


def records(place: Place) -> list[dict[str, Any]]:
    """Return one record for each trap."""
    found = [episode(task={"env_id": name, "env_kwargs": kwargs}) for name, kwargs in envs(place)]
    return [*found, *(episode(spec=spec) for spec in specs()), *odd_episodes()]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


class Malicious:
    """Object whose pickle runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}  # {CANARY}",)


def pickled(place: Place) -> bytes:
    """Return a pickle that runs a command."""
    return pickle.dumps({"state": Malicious(place.marker)})


# ---------------------------------------------------------------------------------------------------------------------
# Formats: each function writes its traps, and returns a path for each
# ---------------------------------------------------------------------------------------------------------------------


def as_json_lines(place: Place) -> list[Path]:
    """One folder of records for each trap, and one of all."""
    paths, found = [], records(place)
    for name, rows in [*((str(number), [record]) for number, record in enumerate(found)), ("whole", found)]:
        folder = place.theirs / f"records-{name}"
        write_lines(folder / "rollouts.jsonl", rows)
        failed = {"return": None, "success": None, "stop_reason": "env_error", "error": "broke"}
        write_lines(folder / "failures.jsonl", [{**row, **failed} for row in rows])
        paths.append(folder)
    return paths


def as_links(place: Place) -> list[Path]:
    """Folders whose files are links to what the user has: one that is read, and one that is written."""
    paths = []
    for name in ("read", "written"):
        settings = {**hostile.CONFIG, **folder_settings({})}
        folder = hostile.write_run(place.theirs / f"links-{name}", **{"config.json": hostile.as_file([settings])})
        for file in [one for one in folder.rglob("*") if one.is_file()] if name == "read" else []:
            file.unlink()
            file.symlink_to(place.secret)
        for output in _OUTPUTS if name == "written" else ():
            (folder / output).symlink_to(place.secret)
        paths.append(folder)
    return paths


_OUTPUTS = (
    *("view.html", ".view.html.new", ".config.json.new", ".summary.json.new", "curve.png", ".curve.new.png", ".lock"),
    *("standings.json", ".standings.json.new", "tournament.png", "games.jsonl", ".rollouts.jsonl.new"),
)


def as_curves(place: Place) -> list[Path]:
    """Runs whose curves, summary and advantages have texts and numbers for what shows them."""
    script = "</script><img src=http://evil.invalid/x onerror=alert(1)>"
    metrics = {"step": 10**30, "seconds": -1, script: 1.0, "env/return": 1e308, "loss": script}
    summary = {"steps": script, "tokenizer": str(place.secret), "success_before": 1e308}
    credit = {**hostile.CREDIT, "advantages": [1e308, -1e308, 1e308], "state_keys": [script]}
    files = {"metrics.jsonl": [hostile.METRICS, metrics], "summary.json": [summary], "credit.jsonl": [credit]}
    return [hostile.write_run(place.theirs / "curves", **{name: hostile.as_file(rows) for name, rows in files.items()})]


def config(**changes: Any) -> dict[str, Any]:
    """Return the content of a run's ``config.json`` with changed options."""
    grpo = {**hostile.OPTIONS["grpo"], **changes.pop("grpo", {})}
    return {**hostile.CONFIG, "options": {**hostile.OPTIONS, "steps": 1, **changes, "grpo": grpo}}


def as_config(place: Place) -> list[Path]:
    """Runs whose ``config.json`` names code, hosts or places."""
    found = [{"env": name, "env_kwargs": kwargs} for name, kwargs in envs(place)]
    found += specs()
    found += [{"success": "trap_module:run"}, {"model": "./theirs", "executor": "trap_module:run"}]
    for field in (
        {"trust_remote_code": True},
        {"model_init_kwargs": {"trust_remote_code": True}},
        {"output_dir": str(place.root / "elsewhere")},
        {"logging_dir": str(place.root / "elsewhere"), "report_to": "tensorboard"},
        {"report_to": ["wandb", "trackio"]},
        {"push_to_hub": True, "hub_model_id": "evil/copy"},
        {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://evil.invalid:1"},
        {"deepspeed": str(place.theirs / "deepspeed.json")},
        {"generation_kwargs": {"custom_generate": str(place.theirs), "trust_remote_code": True}},
        {"resume_from_checkpoint": str(place.theirs / "elsewhere")},
    ):
        found.append({"grpo": field})
    paths = []
    for number, changes in enumerate(found):
        content = {**config(**changes), "warm_start": {"policy": "trap_module:run", "episodes": 2, "steps": 1}}
        folder = hostile.write_run(place.theirs / f"run-{number}", **{"config.json": hostile.as_file([content])})
        paths.append(folder)
    return paths


def folder_settings(players: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config.json`` of a folder in which these have played an evaluation and a tournament."""
    tournament = {**hostile.TOURNAMENT["tournament"], "players": players}
    return {"version": 1, "evaluation": {"policies": players}, "tournament": tournament}


def as_evaluation(place: Place) -> list[Path]:
    """Folders of evaluations and tournaments, with records and games of a stranger."""
    paths = []
    for number, (name, kwargs) in enumerate(envs(place)):
        folder = place.theirs / f"evaluation-{number}"
        write_lines(folder / "rollouts.jsonl", [episode(task={"env_id": name, "env_kwargs": kwargs})])
        settings = folder_settings({"trap_module:run": {"path": name}})
        (folder / "config.json").write_text(json.dumps(settings))
        write_lines(folder / "games.jsonl", [{**hostile.GAME, "players": ["trap_module:run", name]}])
        paths.append(folder)
    return paths


def as_toml(place: Place) -> list[Path]:
    """Options of an evaluation."""
    lines = [
        'env = "os:system"\npolicy = "solver"\n[env_kwargs]\ncommand = "touch X"',
        'env = "trap_module:run"\npolicy = "solver"',
        'env = "trap.py"\npolicy = "solver"',
        'env = "TrlEnv/Echo-v0"\npolicy = "trap_module:run"',
        'env = "TrlEnv/Echo-v0"\npolicy = "solver"\nsuccess = "trap_module:run"',
        'env = "TrlEnv/Echo-v0"\npolicy = "solver"\nobserve = "trap_module:run"',
        'env = "TrlEnv/Echo-v0"\nbase_url = "http://evil.invalid/v1"',
        'env = "TrlEnv/Echo-v0"\nmodel = "evil/model"\nvllm = "colocate"\n[llm]\ntrust_remote_code = true',
        'env = "TrlEnv/Echo-v0"\nmodel = "evil/model"\nsampling = {custom_generate = "evil/code", top_p = 0.5}',
        f'env = "TrlEnv/Echo-v0"\npolicy = "solver"\nepisodes = 2\nout = "{place.root / "elsewhere"}"',
    ]
    paths = []
    for number, text in enumerate(lines):
        paths.append(place.theirs / f"options-{number}.toml")
        paths[-1].write_text(text.replace("touch X", f"touch {place.marker}"))
    return paths


def as_run_file(place: Place) -> list[Path]:
    """Options of a training, which name code, hosts or places, or whose YAML makes objects."""
    found = [{"env": name, "env_kwargs": kwargs} for name, kwargs in envs(place)]
    found += [{"env": "TrlEnv/Echo-v0", **spec} for spec in specs()]
    found += [{"env": "TrlEnv/Echo-v0", "grpo": {"output_dir": str(place.root / "elsewhere")}}]
    found += [{"env": "TrlEnv/Echo-v0", "grpo": {"push_to_hub": True, "hub_model_id": "evil/copy"}}]
    texts = [json.dumps(options) for options in found]  # which are YAML, too
    texts += [f"success: !!python/object/apply:{name} ['touch {place.marker}']" for name in ("os.system", "this.x")]
    texts += ["env: !!python/name:trap_module.run", "a: &a [x]\nenv: [*a, *a]"]
    paths = []
    for number, text in enumerate(texts):
        paths.append(place.theirs / f"run-file-{number}.{('yaml', 'json')[number % 2 and number < len(found)]}")
        paths[-1].write_text(text)
    lines = ('success = "trap_module:run"', 'env = "trap.py"', 'cutoff = "trap_module:run"', 'state-key = "os:system"')
    for number, line in enumerate(lines):
        paths.append(place.theirs / f"run-file-{number}.toml")
        paths[-1].write_text(line)
    return paths


def as_data_set(place: Place) -> list[Path]:
    """Questions and answers whose texts are code or templates."""
    rows = [{"question": "{answer.__class__.__mro__}", "answer": "os:system", "tests": "trap_module:run"}]
    paths = [write_lines(place.theirs / "rows.jsonl", rows), place.theirs / "rows.csv", place.theirs / "rows.json"]
    paths[1].write_text('question,answer\n"=cmd|x",os:system\n')
    paths[2].write_text(json.dumps(rows))
    return paths


def as_tasks(place: Place) -> list[Path]:
    """Folders of tasks whose files are links out of them, or that ask for more than a sandbox."""
    paths = []
    for number, (name, image) in enumerate(
        [("linked", "FROM ubuntu"), ("program", f"FROM ubuntu\nRUN touch {place.marker}"), ("outside", "COPY ../.. /x")]
    ):
        folder = place.theirs / f"tasks-{number}" / name
        (folder / "environment").mkdir(parents=True)
        (folder / "tests").mkdir()
        (folder / "task.toml").write_text('version = "1.0"\n')
        (folder / "instruction.md").write_text("{{ trap }}")
        (folder / "environment" / "Dockerfile").write_text(image)
        (folder / "tests" / "test.sh").write_text(f"touch {place.marker}")
        if name == "linked":
            (folder / "tests" / "more").symlink_to(place.secret)
        paths.append(folder.parent)
    return paths


def as_model(place: Place) -> list[Path]:
    """Models and tokenizers that ask for their own code, weights that are pickles, templates that compute for ever."""
    from gym_trl.testing.tiny import save_tiny

    hostile.write_run(place.theirs / "played")
    base = place.theirs / "base"
    save_tiny(base, width=32, layers=1)
    kinds = {kind: f"trap.{kind}" for kind in ("AutoConfig", "AutoModelForCausalLM", "AutoModel")}
    of_tokenizer = {"AutoTokenizer": ["trap.Theirs", "trap.Theirs"], "AutoProcessor": "trap.Theirs"}
    unknown = {"model_type": "theirs", "architectures": ["Theirs"], "auto_map": kinds}

    def changed(name: str, file: str, changes: dict[str, Any]) -> Path:
        folder = copied(base, place.theirs / name)
        (folder / "trap.py").write_bytes((place.theirs / "trap.py").read_bytes())
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**content, **changes}))
        return folder

    paths = [
        changed("own-model", "config.json", unknown),
        changed("own-class", "config.json", {"auto_map": kinds}),
        changed("own-tokenizer", "tokenizer_config.json", {"tokenizer_class": "Theirs", "auto_map": of_tokenizer}),
        changed("own-kernel", "config.json", {"attn_implementation": f"{place.theirs}"}),
    ]
    with_pickle = copied(base, place.theirs / "model-pickled")
    (with_pickle / "model.safetensors").unlink()
    (with_pickle / "pytorch_model.bin").write_bytes(torch_pickle(place))
    generate = copied(base, place.theirs / "own-generate")
    (generate / "custom_generate").mkdir()
    (generate / "custom_generate" / "generate.py").write_bytes((place.theirs / "trap.py").read_bytes())
    template = copied(base, place.theirs / "own-template")
    escape = "{{ cycler.__init__.__globals__.os.system('touch " + str(place.marker) + "') }}"
    (template / "chat_template.jinja").write_text(escape)
    return [*paths, with_pickle, generate, template]


def as_adapter(place: Place) -> list[Path]:
    """Adapters that name modules, files or kinds that load more, or whose weights are pickles."""
    from gym_trl.training.models import ModelChoice, load_model

    base = place.theirs / "base"
    if not base.exists():
        from gym_trl.testing.tiny import save_tiny

        save_tiny(base, width=32, layers=1)
    model, _ = load_model(ModelChoice(model=str(base), lora=2))
    own = place.theirs / "adapter"
    model.save_pretrained(own)
    paths = []
    traps: list[dict[str, Any]] = [
        {"megatron_config": {"x": 1}, "megatron_core": "trap_module"},
        {"peft_type": "PROMPT_TUNING", "prompt_tuning_init": "TEXT", "tokenizer_name_or_path": str(place.theirs)},
        {"peft_type": "XLORA", "adapters": {"0": str(place.theirs)}},
        {"base_model_name_or_path": str(own)},
        {"auto_mapping": {"base_model_class": "Theirs", "parent_library": "trap_module"}},
    ]
    for number, changes in enumerate(traps):
        folder = copied(own, place.theirs / f"adapter-{number}")
        content = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**content, **changes}))
        paths.append(folder)
    with_pickle = copied(own, place.theirs / "adapter-pickled")
    (with_pickle / "adapter_model.safetensors").unlink()
    (with_pickle / "adapter_model.bin").write_bytes(torch_pickle(place))
    return [*paths, with_pickle]


def copied(source: Path, folder: Path) -> Path:
    """Return a copy of a folder of files."""
    folder.mkdir()
    for file in source.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


def torch_pickle(place: Place) -> bytes:
    """Return a file of ``torch.save`` that runs a command where it is unpickled."""
    import torch

    buffer = io.BytesIO()
    torch.save({"lm_head.weight": Malicious(place.marker)}, buffer)
    return buffer.getvalue()


def as_checkpoint(place: Place) -> list[Path]:
    """Runs that stopped after a step, each with one file of the checkpoint replaced by a pickle, or with a league."""
    from gym_trl.training.options import choose
    from gym_trl.training.run import train

    grpo = {"save_steps": 1}
    options = choose("TrlEnv/Echo-v0", steps=1, episodes_per_step=4, num_generations=2, eval_episodes=2, grpo=grpo)
    own = place.theirs / "run"
    train(options, out=own)
    content = json.loads((own / "config.json").read_text())
    content["options"]["steps"] = 2
    (own / "config.json").write_text(json.dumps(content))
    paths = []
    saved = sorted(one.name for one in (own / "checkpoints" / "checkpoint-1").iterdir() if one.suffix in _PICKLES)
    assert len(saved) >= 4, saved
    for name in [*saved, "rollouts-0.pt", "pytorch_model.bin"]:
        folder = place.theirs / f"checkpoint-{name}"
        shutil.copytree(own, folder)
        checkpoint = folder / "checkpoints" / "checkpoint-1"
        (checkpoint / name).write_bytes(torch_pickle(place))
        if name == "pytorch_model.bin":
            (checkpoint / "model.safetensors").unlink()
        if name == "rollouts-0.pt":
            _change(checkpoint / "trainer_state.json", **{"gym_trl.rollouts": {"unfinished": True, "processes": 1}})
        paths.append(folder)
    return paths


_PICKLES = (".pt", ".pth", ".bin")


def _change(file: Path, **callbacks: Any) -> None:
    content = json.loads(file.read_text())
    content["stateful_callbacks"] |= callbacks
    file.write_text(json.dumps(content))


FORMATS: dict[str, Callable[[Place], list[Path]]] = {
    "records (JSON Lines)": as_json_lines,
    "curves and summary": as_curves,
    "links": as_links,
    "run's config.json": as_config,
    "evaluation or tournament": as_evaluation,
    "options (TOML)": as_toml,
    "run file (YAML, TOML, JSON)": as_run_file,
    "questions and answers": as_data_set,
    "tasks": as_tasks,
    "model and tokenizer": as_model,
    "adapter": as_adapter,
    "checkpoint": as_checkpoint,
}


class Reader(NamedTuple):
    """Command that reads a format; ``{}`` in its arguments is the path, ``OUT`` a new folder."""

    format: str
    command: str
    arguments: str
    slow: bool = False
    whole: bool = False
    """Reads the folder of all records only: what it does does not depend on the record before."""


def _readers() -> Iterator[Reader]:
    lines = "records (JSON Lines)"
    yield Reader(lines, "warm-start --policy", "TrlEnv/Echo-v0 --policy {} --steps 1 --out OUT/warm", slow=True)
    yield Reader("curves and summary", "train --resume", "--resume {}", slow=True)
    yield Reader("curves and summary", "tournament", "TrlEnv/TicTacToe-v0 {} random --games 2", slow=True)
    for kind in (lines, "curves and summary", "links"):
        yield Reader(kind, "view", "{} --out OUT/view.html", whole=True)
        yield Reader(kind, "view --live", "{} --live", whole=True)
        yield Reader(kind, "show", "{} --worst", whole=True)
        if kind != "curves and summary":
            yield Reader(kind, "compare", "{} {}", whole=True)
    yield Reader("links", "view RUN", "{}")
    yield Reader("links", "eval --out", "TrlEnv/Echo-v0 --policy solver --episodes 2 --out {}")
    yield Reader("links", "tournament --out", "TrlEnv/TicTacToe-v0 random solver --games 2 --out {}")
    yield Reader("links", "train --resume", "--resume {}", slow=True)
    for command, arguments in (
        ("eval --model", "--model {} --episodes 2"),
        ("eval --policy", "TrlEnv/Echo-v0 --policy {} --episodes 2"),
        ("train --resume", "--resume {}"),
        ("warm-start --resume", "--resume {}"),
        ("tournament", "TrlEnv/TicTacToe-v0 {} random --games 2"),
        ("play --against", "TrlEnv/TicTacToe-v0 --against {}"),
        ("view", "{} --out OUT/view.html"),
        ("show", "{}"),
    ):
        yield Reader("run's config.json", command, arguments)
    evaluation = "evaluation or tournament"
    yield Reader(evaluation, "eval --out", "TrlEnv/Echo-v0 --policy solver --episodes 2 --out {}")
    yield Reader(evaluation, "tournament --out", "TrlEnv/TicTacToe-v0 random solver --games 2 --out {}")
    yield Reader("options (TOML)", "eval", "{}")
    yield Reader("run file (YAML, TOML, JSON)", "train", "{} --steps 1 --out OUT/run", slow=True)
    questions = "dataset={} --env-kwargs prompt=question --env-kwargs answer=answer"
    for command in ("info", "play", "eval"):
        more = " --policy random --episodes 2" if command == "eval" else ""
        yield Reader("questions and answers", command, f"TrlEnv/QA-v0 --env-kwargs {questions}{more}")
    short, rows = "--steps 1 --episodes 2", "--steps 1 --episodes-per-step 2 --num-generations 2"
    for kind in ("model and tokenizer", "adapter"):
        for command, arguments in (
            ("eval --model", "TrlEnv/Echo-v0 --model {} --episodes 2 --max-tokens-per-turn 4"),
            ("eval --policy", "TrlEnv/Echo-v0 --policy {} --episodes 2"),
            (
                "train --model",
                f"TrlEnv/Echo-v0 --model {{}} {rows} --eval-episodes 2 --out OUT/run",
            ),
            ("warm-start --model", f"TrlEnv/Echo-v0 --model {{}} {short} --batch-size 2 --out OUT/warm"),
            ("doctor", "TrlEnv/Echo-v0 --model {} --groups 1 --num-generations 2"),
            ("tournament", "TrlEnv/TicTacToe-v0 {} random --games 2"),
            ("play --against", "TrlEnv/TicTacToe-v0 --against {}"),
            ("card --tokenizer", "TrlEnv/Echo-v0 --tokenizer {} --episodes 2 --search-steps 0 --seconds 1"),
        ):
            yield Reader(kind, command, arguments, slow=True)
    yield Reader(
        "model and tokenizer", "view --tokenizer", "THEIRS/played --tokenizer {} --out OUT/view.html", slow=True
    )
    yield Reader("checkpoint", "train --resume", "--resume {}", slow=True)
    yield Reader("checkpoint", "tournament", "TrlEnv/TicTacToe-v0 {} random --games 2", slow=True)


MATRIX = tuple(_readers())
"""Commands and the formats that they read."""
OWN = (
    "list",
    "info TrlEnv/Echo-v0",
    "validate TrlEnv/Echo-v0 --episodes 2 --search-steps 0",
    "new lift --out OUT/lift",
    "serve TrlEnv/Echo-v0",
)
"""Commands that read no file of a stranger, run in a folder of one."""
