"""Shutdown of the process group at the end of a distributed script."""

import time


def leave_process_group() -> None:
    """Shut down the process group; call this in the last line of a distributed training script.

    >>> leave_process_group()  # alone there is nothing to leave

    A process that ends without it is sometimes aborted by gloo's threads. A process that frees the trainer (or the
    group) right after its last collective can deadlock: in torch 2.13 the destructor holds the interpreter's lock while
    it waits for gloo's thread, which waits for the same lock to free the collective's tensors. The function therefore
    gives these threads 0.5 s before it destroys the group.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        time.sleep(0.5)
        dist.destroy_process_group()
