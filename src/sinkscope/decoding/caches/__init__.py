"""Caches of keys and values for diffusion models: a policy says which positions a step computes and may read."""
