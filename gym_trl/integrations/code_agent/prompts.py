"""Datasets whose prompts explain how to run programs."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_SYSTEM = "You are a helpful assistant that can run Python."
_HOW = (
    "Write a program between <code> and </code>; what it writes then stands between <output> and </output>, and you go "
    "on. Variables stay. End with your answer."
)


def read_script(path: str) -> str:
    """Return the text of a script of tools."""
    return Path(path).read_text(encoding="utf-8")


def prepare_data_for_e2b_agent(
    dataset: Any,
    tokenizer: Any,
    prompt_column: str = "prompt",
    system_prompt: str = _SYSTEM,
    environment_prompt: str = _HOW,
    tools_script_path: str | None = None,
) -> Any:
    """Return a dataset whose prompts explain how to run programs, rendered with the tokenizer's chat template."""
    tools = read_script(tools_script_path) if tools_script_path else ""
    return _prepare(dataset, tokenizer, prompt_column, system_prompt, environment_prompt, tools)


def prepare_data_for_local_agent(
    dataset: Any,
    tokenizer: Any,
    prompt_column: str = "prompt",
    system_prompt: str = f"{_SYSTEM} {_HOW}",
    tools: Sequence[Callable[..., Any]] | None = None,
    include_source_code: bool = True,
) -> Any:
    """Return a dataset like ``prepare_data_for_e2b_agent``, with the source or the signature and docstring of tools."""
    shown = [inspect.getsource(tool) if include_source_code else _signature(tool) for tool in tools or ()]
    return _prepare(dataset, tokenizer, prompt_column, system_prompt, "", "\n".join(shown))


def _signature(tool: Callable[..., Any]) -> str:
    return f"def {tool.__name__}{inspect.signature(tool)}:\n    {(inspect.getdoc(tool) or '')!r}\n"


def _prepare(dataset: Any, tokenizer: Any, column: str, system: str, environment: str, tools: str) -> Any:
    parts = (system, environment, tools and f"These can be called:\n{tools}")
    instructions = "\n\n".join(part for part in parts if part)

    def render(row: dict[str, Any]) -> dict[str, Any]:
        prompt = row[column]
        question = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        messages = [{"role": "system", "content": instructions}, *question]
        return {"prompt": tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)}

    return dataset.map(render)
