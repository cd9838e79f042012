"""The explorer: a page on which one scrubs through the steps, layers, heads and tokens of traces."""

from sinkscope.figures.explorer.explorer_page import Explorer, ExplorerServer, explore, tile_path

__all__ = ["Explorer", "ExplorerServer", "explore", "tile_path"]
