"""The explorer: a page on which one scrubs through the steps, layers, heads and tokens of traces."""

from sinkscope.figures.explorer.explorer_page import Explorer, explore, tile_path
from sinkscope.figures.explorer.local_server import ExplorerServer

__all__ = ["Explorer", "ExplorerServer", "explore", "tile_path"]
