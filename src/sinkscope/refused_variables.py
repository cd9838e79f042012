"""Says which environment variable a library has refused, where an error comes from one."""

import linecache
import os
import re


def refused_variable(error: BaseException) -> str | None:
    """Return a message that names the environment variable whose value a library refused; None where an error has another reason."""
    found = _variable_at_fault(error)
    if found is None:
        return None
    variable, library = found
    return f"the environment variable {variable} is set to {os.environ[variable][:60]!r}, which {library} refuses; unset it"


def _variable_at_fault(error: BaseException) -> tuple[str, str] | None:
    """Return the environment variable whose value a library refused, and the library: the code that failed names it."""
    chain: list[BaseException | None] = [error]
    while (last := chain[-1]) is not None:
        chain.append(last.__cause__ or last.__context__)
        trace, ours = last.__traceback__, os.sep + "sinkscope" + os.sep
        while trace is not None:
            code = trace.tb_frame.f_code
            file = code.co_filename.replace(os.sep, "/")
            library = file.rpartition("site-packages/")[2].partition("/")[0]
            if file.endswith("torch/_logging/_internal.py") and "TORCH_LOGS" in os.environ:
                return "TORCH_LOGS", library
            if "site-packages/" in file and ours not in code.co_filename:
                first = trace.tb_lineno if code.co_name == "<module>" else max(code.co_firstlineno, trace.tb_lineno - 8)
                text = "".join(linecache.getline(code.co_filename, line) for line in range(first, trace.tb_lineno + 3))
                mentioned = re.findall("[A-Z][A-Z0-9_]{2,}", text)
                own = {
                    name
                    for name, value in os.environ.items()
                    if name.startswith(f"{library.upper()}_") and value in str(last)
                }
                if named := [name for name in os.environ if name in mentioned or name in own]:
                    return named[0], library
            trace = trace.tb_next
    return None
