"""Reports: the papers' figures from your own traces, the numbers, and a page that holds both."""

from sinkscope.report.figures import draw_figures
from sinkscope.report.page import Table, write_page
from sinkscope.report.summary import summarise

__all__ = ["Table", "draw_figures", "summarise", "write_page"]
