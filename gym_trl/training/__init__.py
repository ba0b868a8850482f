"""Training runs, from their options to their folder."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.training.record_run import RecordRun as RecordRun
    from gym_trl.training.run import resume as resume, train as train
    from gym_trl.training.supervised import (
        WarmStart as WarmStart,
        resume_warm_start as resume_warm_start,
        warm_start as warm_start,
    )

__getattr__, __dir__ = exports(__name__)
