"""A result as one HTML page: the promise in words, its ledger, its noise, how good it is, and how to check it."""

from labeldp.report.facts import Facts, gather
from labeldp.report.page import page, write_page

__all__ = ["Facts", "gather", "page", "write_page"]
