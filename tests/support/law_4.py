"""Log-probabilities of a rollout beside those of the model in training (law 4)."""

import torch


def difference(model, episodes, *, temperature=1.0, top_k=0):
    """Return the mean difference of the log-probabilities of episodes and a model's; ``None`` without any.

    The model is asked for whole segments, with the temperature and the ``top_k`` that they were sampled with.
    """
    differences = []
    for segment in (segment for one in episodes for segment in one.segments):
        with torch.no_grad():
            logits = (
                model(torch.tensor([segment.ids])).logits[0, len(segment.prompt_ids) - 1 : -1].float() / temperature
            )
        if top_k:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
        recomputed = logits.log_softmax(-1).gather(1, torch.tensor(segment.completion_ids)[:, None])[:, 0].tolist()
        sampled = zip(recomputed, segment.logprobs, segment.mask, strict=True)
        differences += [abs(ours - theirs) for ours, theirs, bit in sampled if bit]
    return sum(differences) / len(differences) if differences else None
