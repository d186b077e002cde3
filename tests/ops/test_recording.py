"""The passes over a recorded list, on lists small enough to read."""

from __future__ import annotations

from itertools import pairwise

from octavo.ops.passes import Buffer, Node, fuse_residuals, place_buffers


class Recording:
    """x, y = linears of nothing in particular; what is fused shows in how many adds are left."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def linear(self, x: Buffer) -> Buffer:
        return self.node("linear", [x], accumulate=[False])

    def add(self, a: Buffer, b: Buffer) -> Buffer:
        return self.node("add", [a, b])

    def node(self, name: str, inputs: list[Buffer], **attributes: object) -> Buffer:
        out = Buffer("T", 8, 32)
        self.nodes.append(Node(name, inputs, [out], lambda p, i, o: None, attributes))
        return out

    def fused(self) -> list[str]:
        return [node.name for node in fuse_residuals(self.nodes)]


def test_a_residual_stream_is_one_buffer() -> None:
    r = Recording()
    x = r.node("embed", [])
    y = r.add(x, r.linear(r.node("norm", [x])))
    z = r.add(y, r.linear(r.node("norm", [y])))
    r.node("norm", [z])
    assert r.fused() == ["embed", "norm", "linear", "norm", "linear", "norm"]
    assert [node.inputs[-1] for node in r.nodes if node.name == "linear"] == [x, x]


def test_a_sum_that_is_read_again_is_kept() -> None:
    r = Recording()
    x = r.node("embed", [])
    y = r.add(x, r.linear(r.node("norm", [x])))
    z = r.add(y, r.linear(r.node("norm", [y])))
    r.node("norm", [z])
    r.node("norm", [y])
    assert r.fused().count("add") == 1


def test_a_linear_takes_in_one_sum() -> None:
    r = Recording()
    x = r.node("embed", [])
    normed = r.node("norm", [x])
    r.node("norm", [r.add(x, r.add(r.linear(normed), r.linear(normed)))])
    assert r.fused().count("add") == 1


def test_rows_that_run_together_share_no_memory() -> None:
    """A chain runs a few rows at a time: the first buffer of it is still being read when the last one is written."""
    wide, narrow, after = Buffer("T", 64, 256), Buffer("T", 8, 32), Buffer("T", 64, 256)

    def node(name: str, inputs: list[Buffer], outputs: list[Buffer]) -> Node:
        return Node(name, inputs, outputs, lambda p, i, o: None)

    start = Buffer("T", 8, 32)
    chain = [
        node("linear", [], [start]),
        node("activation", [start], [wide]),
        node("add", [wide], [narrow]),
        node("cut", [], []),
        node("rms_norm", [narrow], [after]),
    ]
    place_buffers([*chain, node("linear", [after], [])], {"T": 16})
    places = sorted((b.offset, b.offset + b.row_bytes * 16) for b in (start, wide, narrow, after))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))

    # With a linear in between the first is dead, and its memory is taken.
    between = Buffer("T", 8, 32)
    apart = [*chain[:3], node("linear", [narrow], [between]), node("rms_norm", [between], [after])]
    place_buffers(apart, {"T": 16})
    assert after.offset == wide.offset
