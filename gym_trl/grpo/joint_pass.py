"""One pass over the tree of several micro-batches of an optimizer step, which divides only its hidden states.

A group is often divided into micro-batches, and each of their trees begins with what the group has in common. As the
weights stay the same until the step, one forward pass gives the hidden states of all of them. The loss of each
micro-batch is computed as ever, and its gradient goes as far as these states; with the last one their sum goes on
through the layers. The tree has no more tokens than a micro-batch of padded rows, so it takes no more memory.
"""

from collections.abc import Sequence
from typing import Any

from gym_trl.grpo.shared_prefix import Tree, hidden_states, tree_of


class JointPass:
    """Pass over successive micro-batches.

    Args:
        batches: Ids of the rows of each, without padding.
    """

    def __init__(self, batches: Sequence[Sequence[Any]]) -> None:
        self._batches = batches
        self._pass: tuple[Tree, Any, Any] | None = None

    def states(self, backbone: Any, number: int) -> tuple[Tree, Any]:
        """Return the tree of a micro-batch's rows, among others, and the hidden states of its tokens.

        The micro-batches are asked for in their order, each after the backward pass of the one before.
        """
        if number == 0 or self._pass is None:
            tree = tree_of([row for rows in self._batches for row in rows], device=backbone.device)
            hidden = hidden_states(backbone, tree)
            hidden.register_hook(self._all_gradients)
            self._pass = tree, hidden, hidden.detach().requires_grad_()
        tree, hidden, states = self._pass
        first = sum(map(len, self._batches[:number]))
        tree = tree._replace(places=tree.places[first : first + len(self._batches[number])])
        return tree, states if number < len(self._batches) - 1 else hidden

    def _all_gradients(self, gradient: Any) -> Any:
        """Return the gradient of the last batch's hidden states with that which the copies of all others received."""
        assert self._pass is not None
        states, self._pass = self._pass[2], None  # not before: the last loss may be computed again after an error
        return gradient if states.grad is None else gradient + states.grad
