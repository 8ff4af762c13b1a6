"""HTTP only: JSON in, JSON or server-sent events out. Knows the front end; never a token's meaning, a block or a
step."""
