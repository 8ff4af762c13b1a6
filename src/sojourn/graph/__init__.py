"""A model as a list of op records, and the NumPy interpreter of that list."""

from sojourn.graph.builder import GraphBuilder
from sojourn.graph.graph import Graph, KVShape
from sojourn.graph.rope import RopeParameters

__all__ = ["Graph", "GraphBuilder", "KVShape", "RopeParameters"]
