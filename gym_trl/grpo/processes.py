"""How a script that trained on several processes ends."""

import time


def leave_process_group() -> None:
    """Leave the other processes: the last line of a training script that is started on several.

    >>> leave_process_group()  # alone there is nothing to leave

    A process that just ends is now and then aborted by gloo's threads. One that frees the trainer (or the group)
    right after its last collective can hang for ever: in torch 2.13 the destructor holds the interpreter's lock while
    it waits for gloo's thread, and that thread waits for the lock to free the collective's tensors. So those threads
    get a moment before.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        time.sleep(0.5)
        dist.destroy_process_group()
