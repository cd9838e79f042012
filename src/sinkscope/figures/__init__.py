"""Reports: the papers' figures from your own traces, the numbers, and a page that holds both."""

from sinkscope.figures.counts import Counts, open_counts
from sinkscope.figures.drawing import draw_figures, make_folder
from sinkscope.figures.maps import single_map
from sinkscope.figures.page import Table, write_page
from sinkscope.figures.summary import summarise

__all__ = ["Counts", "Table", "draw_figures", "make_folder", "open_counts", "single_map", "summarise", "write_page"]
