"""``python -m sinkscope``."""

import contextlib
import os
import sys

with contextlib.suppress(OSError):  # no such folder, or the current one was deleted
    if sys.path and os.path.samefile(sys.path[0] or ".", "."):  # a torch.py beside the data is none of ours
        del sys.path[0]

from sinkscope.cli import main

if __name__ == "__main__":
    main()
