"""Caches of keys and values for diffusion models: which positions are computed anew in a step, and which keys they may
read.

A *policy* decides; each is one file of this package and has a name, see `parsing`. `reader` does what a policy says,
`store` holds keys and values.
"""
