"""Reports: the papers' figures from your own traces, the numbers, and a page that holds both."""

from sinkscope.report.figures import draw_figures, make_folder
from sinkscope.report.maps import single_map
from sinkscope.report.page import Table, write_page
from sinkscope.report.summary import summarise

__all__ = ["Table", "draw_figures", "make_folder", "single_map", "summarise", "write_page"]
