"""Names in a run's options, which come out of its ``config.json``: what needs the user's trust before it is used."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gym_trl.envspec import spec_names
from gym_trl.trust import Named, env_names, names_in, texts_in

_TEXTS = frozenset({"lora_targets", "model"})
"""Options with texts that are no names of code. A new option is searched for names by default."""
_WORDS = """
    adam_beta1 adam_beta2 adam_epsilon auto_find_batch_size average_tokens_across_devices batch_eval_metrics beta
    bf16 bf16_full_eval cache_implementation cast_lm_head_to_fp32 chat_template_kwargs data_seed
    dataloader_drop_last dataloader_in_order dataloader_num_workers dataloader_persistent_workers
    dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb
    ddp_find_unused_parameters ddp_static_graph ddp_timeout delta disable_dropout disable_tqdm do_eval do_predict
    do_train ds3_gather_for_generation enable_jit_checkpoint entropy_coef entropy_coef_delta entropy_coef_max
    entropy_coef_min entropy_target epsilon epsilon_high eval_accumulation_steps eval_delay eval_do_concat_batches
    eval_on_start eval_steps eval_strategy eval_use_gather_object fp16 fp16_full_eval full_determinism
    generation_batch_size gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
    greater_is_better ignore_data_skip importance_sampling_level include_for_metrics include_num_input_tokens_seen
    label_names label_smoothing_factor learning_rate length_column_name load_best_model_at_end log_completions
    log_level log_level_replica log_multimodal log_on_each_node log_unique_prompts logging_first_step
    logging_nan_inf_filter logging_steps logging_strategy loss_type lr_scheduler_kwargs lr_scheduler_type
    mask_truncated_completions max_completion_length max_grad_norm max_prompt_length max_steps
    max_tool_calling_iterations metric_for_best_model min_p multi_objective_aggregation neftune_noise_alpha
    num_completions_to_print num_generations num_generations_eval num_iterations num_train_epochs
    off_policy_mask_threshold optim pad_to_multiple_of per_device_eval_batch_size per_device_train_batch_size
    prediction_loss_only project ref_model_mixup_alpha ref_model_sync_steps remove_unused_columns repetition_penalty
    restore_callback_states_from_checkpoint reward_weights router_aux_loss_coef run_name sapo_temperature_neg
    sapo_temperature_pos save_on_each_node save_only_model save_steps save_strategy save_total_limit scale_rewards
    seed shuffle_dataset skip_memory_metrics steps_per_generation sync_ref_model temperature tf32
    top_entropy_quantile top_k top_p torch_compile torch_empty_cache_steps train_sampling_strategy
    use_adaptive_entropy use_bias_correction_kl use_cache use_cpu use_liger_kernel use_liger_loss
    use_transformers_continuous_batching use_transformers_paged use_vllm vespo_k_neg vespo_k_pos vespo_lambda_neg
    vespo_lambda_pos vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_importance_sampling_cap
    vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_correction
    vllm_importance_sampling_mode vllm_max_model_length vllm_mode vllm_server_timeout vllm_structured_outputs_regex
    vllm_tensor_parallel_size warmup_ratio warmup_steps weight_decay
"""
_PLAIN = frozenset(_WORDS.split())
"""Fields of ``GRPOConfig`` that neither load code, nor write elsewhere, nor contact a server; a file may set these and
those of ``_CHECKED`` only."""
_OUTSIDE = "which can load code, write elsewhere or contact a server"


def run_names(options: Mapping[str, Any]) -> Iterator[Named]:
    """Yield what the options of a run name that is not registered.

    >>> [one.name for one in run_names({"env": "TrlEnv/Echo-v0", "success": "my_game:won", "grpo": {"deepspeed": "a"}})]
    ['deepspeed', 'my_game:won']

    Args:
        options: Options as stored in ``config.json``, by the names of ``TrainOptions``; not checked otherwise.
    """
    env, grpo = options.get("env"), options.get("grpo")
    yield from env_names(env, options.get("env_kwargs"), field="env")
    yield from grpo_names(grpo) if isinstance(grpo, Mapping) else names_in("grpo", grpo)
    others = options.keys() - _TEXTS - {"env", "env_kwargs", "grpo"}
    yield from spec_names({name: options[name] for name in sorted(others)}, env, field="")


def trusted_words(options: Mapping[str, Any], others: Iterable[Named] = ()) -> list[str]:
    """Return the words of a command that trust what the options of a run name: its environment alone, or all of it.

    >>> trusted_words({"env": "my_game.py:Game"}), trusted_words({"env": "TrlEnv/Echo-v0", "success": "my_game:won"})
    (['my_game.py:Game'], ['--trust'])

    Args:
        options: Options as stored in ``config.json``.
        others: Further names in the file.
    """
    unregistered = {one.name for one in (*run_names(options), *others)}
    return [options["env"]] if unregistered == {options["env"]} else ["--trust"] if unregistered else []


def eval_names(options: Mapping[str, Any], *, folder: Path) -> Iterator[Named]:
    """Yield what the options of an evaluation name that is not registered, or that would be contacted or written to.

    >>> given = {"policy": "solver", "base_url": "http://other", "llm": {"hf_token": "x"}}
    >>> [one.name for one in eval_names(given, folder=Path())]
    ['http://other', 'hf_token']

    Args:
        options: Options by the names of ``EvalOptions``, not checked otherwise.
        folder: Folder of their file.
    """
    env, llm, sampling = options.get("env"), options.get("llm"), options.get("sampling")
    yield from env_names(env, options.get("env_kwargs"), field="env")
    yield from (Named("base_url", one, "a server that would be contacted") for one in texts_in(options.get("base_url")))
    for one in texts_in(options.get("out")):
        if not any(Path(one).resolve().is_relative_to(own) for own in (Path.cwd(), folder.resolve())):
            yield Named("out", one, "a folder elsewhere that would be written to")
    for name in llm if isinstance(llm, Mapping) else ():
        if name not in _LLM:
            yield Named(f"llm.{name}", name, "an argument of vllm.LLM, which can load code")
    for name, one in sampling.items() if isinstance(sampling, Mapping) else ():
        if name == "trust_remote_code" or not _only_numbers({name: one}):
            yield Named(f"sampling.{name}", name, _OUTSIDE)
    others = options.keys() - _TEXTS - {"env", "env_kwargs", "base_url", "out", "llm", "sampling"}
    yield from spec_names({name: options[name] for name in sorted(others)}, env, field="")


_LLM = frozenset(
    {
        "dtype",
        "enforce_eager",
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "seed",
        "tensor_parallel_size",
    }
)
"""Arguments of ``vllm.LLM`` that a file may set by itself."""


def grpo_names(grpo: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the fields of ``GRPOConfig`` that a file may not set by itself.

    >>> [one.name for one in grpo_names({"learning_rate": 0.1, "report_to": "none", "push_to_hub": True})]
    ['push_to_hub']
    """
    for name, value in grpo.items():
        is_data = _CHECKED[name](value) if name in _CHECKED else name in _PLAIN
        is_data = is_data and "trust_remote_code" not in texts_in(value)
        if value is not None and value is not False and not is_data:
            yield Named(f"grpo.{name}", name, _OUTSIDE)


def _reports_nowhere(value: Any) -> bool:
    return value in ("none", [], ["none"])


def _only_numbers(value: Any) -> bool:
    """Return whether options of the generation have no text but the ends of a response."""
    return isinstance(value, Mapping) and all(
        name in ("stop", "stop_strings")
        or isinstance(one, int | float | None)
        or (isinstance(one, list) and all(isinstance(part, int | float) for part in one))
        for name, one in value.items()
    )


def _only_types(value: Any) -> bool:
    """Return whether options of a model's loading choose its numbers and its attention among those of Transformers."""
    return isinstance(value, Mapping) and all(
        name in ("dtype", "torch_dtype", "use_cache", "low_cpu_mem_usage")
        or (name == "attn_implementation" and one in ("eager", "sdpa", "flash_attention_2", "flex_attention"))
        or (name == "device_map" and one in ("auto", "cpu"))
        for name, one in value.items()
    )


_CHECKED: Mapping[str, Callable[[Any], bool]] = {
    "generation_kwargs": _only_numbers,
    "model_init_kwargs": _only_types,
    "report_to": _reports_nowhere,
}
"""Fields that a file may set to some values only."""
