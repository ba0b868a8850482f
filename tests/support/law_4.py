"""Log-probabilities of a rollout beside those of the model in training (law 4)."""

import torch


def difference(model, columns, *, temperature=1.0, top_k=0):
    """Return the mean difference of a rollout's log-probabilities and a model's, of each segment; ``None`` of none.

    The model is asked for whole rows, with the temperature and the ``top_k`` that they were sampled with.
    """
    differences = []
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs")
    borders = columns.get("segments") or [[] for _ in columns["prompt_ids"]]
    for prompt, completion, mask, logprobs, within in zip(*(columns[name] for name in names), borders, strict=True):
        starts, stops = [0, *(stop for _, stop in within)], [*(start for start, _ in within), len(completion)]
        prompts = [prompt, *(completion[start:stop] for start, stop in within)]
        for begin, start, stop in zip(prompts, starts, stops, strict=True):
            ids = completion[start:stop]
            with torch.no_grad():
                logits = model(torch.tensor([begin + ids])).logits[0, len(begin) - 1 : -1].float() / temperature
            if top_k:
                logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
            recomputed = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
            sampled = zip(recomputed, logprobs[start:stop], mask[start:stop], strict=True)
            differences += [abs(ours - theirs) for ours, theirs, bit in sampled if bit]
    return sum(differences) / len(differences) if differences else None
