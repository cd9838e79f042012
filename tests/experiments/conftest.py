"""The scripts of experiments/ import each other from their own folder; their tests share the dense maps of the
interventions' tests.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent / "experiments"), str(TESTS / "interventions")]
