"""From graph to plan, as small pure passes. ``pipeline.py`` says in which order they run."""

from convloom.compiler.autodiff import differentiate
from convloom.compiler.pipeline import compile_graph

__all__ = ["compile_graph", "differentiate"]
