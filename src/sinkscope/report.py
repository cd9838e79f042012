"""The old name of `sinkscope.figures`, for one release."""

import warnings

from sinkscope.figures import *  # noqa: F403
from sinkscope.figures import open_statistics as open_counts  # noqa: F401
from sinkscope.figures import page_numbers as summarise  # noqa: F401

warnings.warn(
    "sinkscope.report is now sinkscope.figures; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
