"""Train a model on an OpenEnv server's Echo; OpenEnv's own rewards longer responses.

$ gym-trl serve TrlEnv/Echo-v0 --port 8000                         # or OpenEnv's own, or a Space
$ python examples/openenv_echo.py --learning_rate 1e-6             # any field of GRPOConfig
"""

from dataclasses import dataclass

from trl import GRPOConfig, TrlParser

from gym_trl import GymGRPOTrainer, GymSpec


@dataclass
class ScriptArguments:
    """Arguments beside those of GRPOConfig."""

    model: str = "Qwen/Qwen2.5-0.5B-Instruct"
    base_url: str = "http://127.0.0.1:8000"


parser = TrlParser((ScriptArguments, GRPOConfig))
parser.set_defaults(
    output_dir="runs/openenv_echo", max_steps=100, num_generations=8, max_completion_length=512, report_to=[]
)

if __name__ == "__main__":
    own, args = parser.parse_args_and_config()
    spec = GymSpec(
        "TrlEnv/OpenEnv-v0",
        env_kwargs={"base_url": own.base_url},
        action_format=None,  # the whole response is the action
        turn_limit=1,  # OpenEnv's Echo never ends an episode
        executor="thread",  # sessions wait for the server concurrently
    )
    GymGRPOTrainer(model=own.model, args=args, spec=spec).train()
