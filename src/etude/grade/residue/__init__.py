"""Residue: what of a removed feature can still be read in the files that an agent sees."""

from etude.grade.residue.needles import Copy, Needle, Needles, RemovedPiece
from etude.grade.residue.scan import Finding, Scanner, scan, visible_libraries
from etude.grade.residue.unpack import ScanLimits

__all__ = ["Copy", "Finding", "Needle", "Needles", "RemovedPiece", "ScanLimits", "Scanner", "scan", "visible_libraries"]
