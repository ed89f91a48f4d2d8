"""New processes for tests, forked from a server that has loaded the library: an import takes a second, a fork nothing.

A test itself must not fork: it may have threads, which do not survive. The server has none.
"""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
# What is not installed is left out.
CONTEXT.set_forkserver_preload([
    "pytest", "labeldp.budgets.store", "labeldp.budgets.journal", "labeldp.mechanisms.counts",
    "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg", "psycopg", "labeldp.service.client",
    "labeldp.service.server", "sqlite3", "pandas", "pyarrow.pandas_compat",
])  # fmt: skip


def exit_code(function, *arguments):
    """Run a function of a module, with arguments that can be pickled, in a process of its own; return how it ended."""
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode
