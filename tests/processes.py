"""The environment of other processes that compute as this one does: as many threads, and these tests at hand."""

import os
from pathlib import Path

import torch


def environment(**more):
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, **threads, **more}


def without(content, names):
    """A document without the keys that say when it was made, or how fast."""
    if isinstance(content, dict):
        return {key: without(value, names) for key, value in content.items() if key not in names}
    return [without(one, names) for one in content] if isinstance(content, list) else content
