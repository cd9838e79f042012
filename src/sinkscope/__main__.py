"""``python -m sinkscope``."""

import os
import sys

if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.realpath("."):  # a torch.py beside the data is none of ours
    del sys.path[0]

from sinkscope.cli import main

if __name__ == "__main__":
    main()
