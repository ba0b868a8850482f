"""Engines: token ids in, sampled ids and their logprobs out."""
