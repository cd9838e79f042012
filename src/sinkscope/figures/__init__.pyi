# isort: skip_file

from .figure import (
    DrawnFigure as DrawnFigure,
    Figure as Figure,
    draw_figure as draw_figure,
    draw_figures as draw_figures,
    find_figures as find_figures,
)
from .page import page_numbers as page_numbers, write_page as write_page
from .panels import (
    attention_map as attention_map,
    incoming as incoming,
    sink_positions as sink_positions,
    sink_strengths as sink_strengths,
    token_column as token_column,
)
from .subject import FigureError as FigureError, OpenedStatistics as OpenedStatistics, Subject as Subject
from .subject import open_statistics as open_statistics
