"""The passes over a recorded list, on lists small enough to read."""

from __future__ import annotations

from octavo.ops.native import Buffer, Node, fuse_residuals


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
