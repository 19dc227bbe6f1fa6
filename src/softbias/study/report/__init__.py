"""One page about a study: charts, tables, pictures and how the numbers were made, in one file that opens offline."""

from softbias.study.report.page import CHARTS, write_report

__all__ = ["CHARTS", "write_report"]
