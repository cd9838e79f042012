# isort: skip_file

from .results import Result as Result, read_results as read_results
from .running import evaluate as evaluate
from .sandbox import ProgramResult as ProgramResult, run_program as run_program
from .tables import table as table, write_table as write_table
from .choices import Score as Score, Task as Task
from .tasks import TASKS as TASKS
