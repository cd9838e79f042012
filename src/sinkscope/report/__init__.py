"""Reports: the papers' figures from your own traces, the numbers, and a page that holds both."""

from sinkscope.report.counts import Counts, open_counts
from sinkscope.report.figures import draw_figures, make_folder
from sinkscope.report.maps import single_map
from sinkscope.report.page import Table, write_page
from sinkscope.report.summary import summarise

__all__ = ["Counts", "Table", "draw_figures", "make_folder", "open_counts", "single_map", "summarise", "write_page"]
