"""`explain` and its report: how a call of a loss runs, why, and what its kernels look like."""

from autogen.report.explaining import explain, explain_call
from autogen.report.launches import describe, describe_handwritten
from autogen.report.records import DirectionReport, Report

__all__ = ["DirectionReport", "Report", "describe", "describe_handwritten", "explain", "explain_call"]
