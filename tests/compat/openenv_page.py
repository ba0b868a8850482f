"""The example of TRL's page on OpenEnv, with another import and a tiny model; run by ``test_examples_openenv``.

A container needs Docker, so the server is named instead, and the rollout function, which has TRL's first signature, is
given to today's trainer by ``legacy_rollout_func``. Nothing else is changed.
"""

import argparse

import requests

from gym_trl.integrations.legacy_rollout import legacy_rollout_func
from gym_trl.integrations.openenv.client import EchoAction, EchoEnv


def main(own):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    client = EchoEnv(base_url=own.base_url)

    def rollout_func(prompts, args, processing_class):
        payload = {
            "prompts": prompts,
            "n": args.num_generations,
            "temperature": args.temperature,
            "max_tokens": args.max_completion_length,
        }
        response = requests.post(own.generate_url, json=payload, timeout=60)
        result = response.json()

        completions_text = processing_class.batch_decode(result["completion_ids"], skip_special_tokens=True)

        client.reset()
        env_rewards = []
        for msg in completions_text:
            env_result = client.step(EchoAction(message=msg))
            env_rewards.append(env_result.reward)

        result["env_reward"] = env_rewards
        return result

    def reward_from_env(completions, **kwargs):
        env_rewards = kwargs.get("env_reward", [])
        return [float(reward) for reward in env_rewards] if env_rewards else [0.0] * len(completions)

    prompt = "You are an AI that interacts with an *Echo* environment. Word to echo:"
    trainer = GRPOTrainer(
        model=own.model,
        reward_funcs=reward_from_env,
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 64}),
        rollout_func=legacy_rollout_func(rollout_func, generate_url=own.generate_url),
        args=GRPOConfig(
            output_dir=own.output_dir,
            max_steps=2,
            logging_steps=1,
            num_generations=4,
            max_completion_length=16,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    trainer.train()
    client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("model", "output_dir", "base_url", "generate_url"):
        parser.add_argument(f"--{name}")
    main(parser.parse_args())
