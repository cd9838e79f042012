"""The old name of `sinkscope.figures`, for one release."""

import warnings

from sinkscope.figures import *  # noqa: F403  # whatever figures exports was importable from here

warnings.warn("sinkscope.report is now sinkscope.figures; the old name goes with the next release", DeprecationWarning, stacklevel=2)
