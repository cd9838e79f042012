"""The networks whose weights are set by hand stand with the experiment that judges a hundred of them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
