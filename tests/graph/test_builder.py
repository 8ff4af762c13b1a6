"""The builder checks widths when a model file is wired wrongly; graphs list themselves and bind to checkpoints."""

from __future__ import annotations

import pytest

from sojourn.errors import BadModelFile
from sojourn.graph import Graph, GraphBuilder, KVShape, RopeParameters
from sojourn.graph.ops import SelectRows


def tiny() -> Graph:
    g = GraphBuilder()
    x = g.embedding("embed", vocab_size=32, width=8)
    q, k, v = (g.linear(x, name, width) for name, width in (("q", 8), ("k", 4), ("v", 4)))
    q, k = (g.rope(value, RopeParameters(), head_dim=4, factors="factors") for value in (q, k))
    x = g.add(x, g.attention(q, k, v, head_dim=4, scale=0.5, window=6))
    logits = g.linear(g.select_rows(x), "head", 32, alternative="embed")
    return g.finish(logits)


SHAPES = {"embed": (32, 8), "q": (8, 8), "k": (4, 8), "v": (4, 8), "head": (32, 8), "factors": (2,)}


def test_listing_shows_one_op_a_line():
    lines = str(tiny()).splitlines()
    assert lines[0] == "%0 [T, 8] = embedding(embed)"
    assert lines[1] == "%1 [T, 8] = linear(%0, q)"
    assert lines[6].startswith("%6 [T, 8] = attention(%4, %5, %3, layer=0, num_heads=2, num_kv_heads=1, head_dim=4")
    assert lines[-1] == "%9 [R, 32] = linear(%8, head)"


def test_selection_parts_body_from_head():
    graph = tiny()
    assert isinstance(graph.ops[len(graph.body)], SelectRows)
    assert (*graph.body, graph.ops[len(graph.body)], *graph.head) == graph.ops
    assert (graph.hidden.width, graph.selected.width, graph.logits.width) == (8, 8, 32)


def test_layers_say_what_kv_they_keep():
    assert tiny().layers == (KVShape(kv_heads=1, head_dim=4, window=6),)


def test_bind_keeps_what_the_checkpoint_has():
    names = [weight.name for weight in tiny().bind(SHAPES).weights]
    assert names == ["embed", "q", "k", "v", "factors", "head"]


def test_bind_takes_the_alternative_and_drops_the_optional():
    shapes = {name: shape for name, shape in SHAPES.items() if name not in ("head", "factors")}
    graph = tiny().bind(shapes)
    assert [weight.name for weight in graph.weights] == ["embed", "q", "k", "v"]
    assert graph.unexpected({**shapes, "other": (1,)}) == ["other"]


def test_bind_lists_all_that_is_missing_or_misshaped():
    shapes = {"embed": (32, 8), "q": (8, 9), "v": (4, 8)}
    with pytest.raises(BadModelFile, match=r"1 missing tensor.*k \[4, 8\].*q has shape \[8, 9\], expected \[8, 8\]"):
        tiny().bind(shapes)


def test_bind_shortens_a_long_listing():
    g = GraphBuilder()
    x = g.embedding("embed", vocab_size=4, width=8)
    for i in range(12):
        x = g.linear(x, f"w{i}", 8)
    graph = g.finish(g.linear(g.select_rows(x), "head", 4))
    with pytest.raises(BadModelFile, match=r"14 missing.* and 6 more"):
        graph.bind({})


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (lambda g, x: g.add(x, g.linear(x, "w", 12)), "8 columns and 12"),
        (lambda g, x: g.glu(x, g.linear(x, "w", 12), "silu"), "gate is 8 wide, up 12"),
        (lambda g, x: g.rope(x, RopeParameters(), head_dim=6), "heads of 6 do not divide"),
        (lambda g, x: g.rope(x, RopeParameters(), head_dim=1), "odd"),
        (lambda g, x: g.rms_norm(x, "w", eps=1e-6, group=3), "groups of 3"),
        (lambda g, x: g.attention(x, x, g.linear(x, "w", 4), head_dim=4, scale=1.0), "k is 8 wide, v 4"),
        (lambda g, x: g.attention(x, x, x, head_dim=3, scale=1.0), "head_dim 3"),
        (lambda g, x: g.attention(g.linear(x, "w", 12), x, x, head_dim=4, scale=1.0), "3 heads can't share 2"),
        (lambda g, x: g.attention(x, x, x, head_dim=4, scale=1.0, window=0), "window"),
        (lambda g, x: g.moe_route(x, top_k=9, normalize=True), "top 9 of 8"),
        (lambda g, x: g.select_rows(g.select_rows(x)), "selected already"),
        (lambda g, x: g.finish(x), "selected rows"),
        (lambda g, x: g.linear(x, "w", 0), "at least one column"),
    ],
)
def test_wrong_wiring_is_refused_where_it_happens(wire, message):
    g = GraphBuilder()
    with pytest.raises(ValueError, match=message):
        wire(g, g.embedding("embed", vocab_size=4, width=8))


def test_logits_must_be_the_last_value():
    g = GraphBuilder()
    logits = g.select_rows(g.embedding("embed", vocab_size=4, width=8))
    g.scale(logits, 2.0)
    with pytest.raises(ValueError, match="last value"):
        g.finish(logits)
