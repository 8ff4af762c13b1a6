"""Measures an engine from outside (over HTTP) and from inside (step by step). Serves nothing and changes nothing.

It knows no engine: `http_load` speaks to any OpenAI-compatible address, `offline` steps whatever is handed to it.
"""
