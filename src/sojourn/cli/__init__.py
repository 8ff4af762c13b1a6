"""The command line: the composition root, the only package that knows everybody. Nobody imports it."""
