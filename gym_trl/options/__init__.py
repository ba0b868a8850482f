"""Options of a specification, a training and an evaluation, each declared once.

An option has a name, a type with bounds, a default, a sentence and a unit here, and nowhere else.

Python arguments, flags of the commands, run files, ``config.json`` and the tables of the docs derive from the types in
this package. A group (``Task``, ``Text``, ...) is passed whole to the room that uses it; ``SpecOptions`` and
``TrainOptions`` are several groups, whose names are unique.
"""

from gym_trl.options.base import (
    Function as Function,
    Options as Options,
    Role as Role,
    again as again,
    changed as changed,
    converted as converted,
    declared as declared,
    default_of as default_of,
    defaults as defaults,
    described as described,
    group_of as group_of,
    option as option,
    signed as signed,
    stored as stored,
    values_of as values_of,
    worded as worded,
)
from gym_trl.options.commands import (
    DEMONSTRATIONS as DEMONSTRATIONS,
    OF_EVALUATE as OF_EVALUATE,
    SAME_IN_GRPO as SAME_IN_GRPO,
    WEIGHTS as WEIGHTS,
    DType as DType,
    EvalOptions as EvalOptions,
    Keep as Keep,
    Model as Model,
    Playing as Playing,
    Recording as Recording,
    Run as Run,
    TrainedOptions as TrainedOptions,
    TrainOptions as TrainOptions,
    VLLMMode as VLLMMode,
    WarmStartOptions as WarmStartOptions,
    chosen as chosen,
    grpo_fields as grpo_fields,
    moved as moved,
)
from gym_trl.options.groups import (
    DEFAULT_ENV as DEFAULT_ENV,
    PLAYED as PLAYED,
    TOKENS_PER_TURN as TOKENS_PER_TURN,
    CreditName as CreditName,
    CutActions as CutActions,
    Envs as Envs,
    EpisodeOptions as EpisodeOptions,
    ExecutorName as ExecutorName,
    Learning as Learning,
    Rollout as Rollout,
    SpecOptions as SpecOptions,
    Stepping as Stepping,
    Task as Task,
    TaskChoice as TaskChoice,
    Text as Text,
    WithWorkers as WithWorkers,
    check_seats as check_seats,
    has_workers as has_workers,
    with_role as with_role,
)
