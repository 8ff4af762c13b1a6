"""Sojourn: an LLM inference engine that accounts for the whole life of every request."""

__version__ = "0.1.0"
