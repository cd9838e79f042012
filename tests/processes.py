"""Other processes that compute as this one does: with as many threads, and with weights at the same places in memory.

What the program promises to be the same to the bit, after a kill or from several processes, rests on that and on the machine.
"""

import os
from pathlib import Path

import torch

ALIKE = """
import odd_places
places = odd_places.as_wanted()
places.__enter__()
"""
"""The first lines of a script."""


def environment(**more):
    """Of a process that does not begin with `ALIKE`, too."""
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, **threads, **more}
