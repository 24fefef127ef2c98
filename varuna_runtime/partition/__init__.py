"""Model to segments: cutting, names, tied parameters, and initial values made only where they are owned."""

from varuna_runtime.partition.cutpoint import CutPoint
from varuna_runtime.partition.model import PartitionedModel, cut

__all__ = ["CutPoint", "PartitionedModel", "cut"]
