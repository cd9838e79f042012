# isort: skip_file

from .tracking import AveragedMoves as AveragedMoves, averaged_moves as averaged_moves
from .definition import (
    Rule as Rule,
    Unit as Unit,
    excess_of as excess_of,
    in_unit as in_unit,
    is_sink as is_sink,
    last_query_window as last_query_window,
    visible_query_mean as visible_query_mean,
)
from .finding import Sinks as Sinks, find_sinks as find_sinks
from .tracking import (
    HeadMovement as HeadMovement,
    MovementTest as MovementTest,
    SinksIn as SinksIn,
    Track as Track,
    Tracks as Tracks,
    main_sinks as main_sinks,
    movement_test as movement_test,
    track as track,
)
