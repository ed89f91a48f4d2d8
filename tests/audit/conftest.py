"""Every test stands for a process of its own, which fits once."""

from tests.cli.clihelp import fresh_memory

__all__ = ["fresh_memory"]
