"""Model to segments: cutting, names, tied parameters, and initial values made only where they are owned."""

from varuna_runtime.partition.cutpoint import CutPoint
from varuna_runtime.partition.example import ANY_POSITIONAL, Arguments, Example, ExampleInput
from varuna_runtime.partition.model import PartitionedModel, cut

__all__ = ["ANY_POSITIONAL", "Arguments", "CutPoint", "Example", "ExampleInput", "PartitionedModel", "cut"]
