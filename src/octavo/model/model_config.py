"""The facts of a model: everything that the decoder, the cache and the loader need to know of an architecture."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ModelError
from octavo.ops.interface import Activation, AttentionSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ between the layers of one model. `window` 0 is full attention; otherwise the keys seen, the
    query's own included.
    """

    rope: RopeSpec
    window: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """An architecture as data. Sizes are numbers of values; every norm is an RMS norm; blocks are sequential
    (attention, then MLP).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerConfig, ...]
    max_position: int  # longest sequence that the model was made for; nothing is allocated from it
    activation: Activation
    norm_eps: float
    attention_scale: float
    norm_offset: float = 0.0  # added to every norm's weight: 1 where a checkpoint stores w - 1
    qk_norm: bool = False  # each head of q and k is normalised before rope
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    sandwich_norm: bool = False  # the outputs of attention and MLP are normalised before they join the residual stream
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0  # 0: none
    logit_softcap: float = 0.0
    tied_head: bool = False  # the head is the embedding
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position",
        ):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} of {self.architecture} is {getattr(self, name)}; it must be at least 1.")
        if not self.layers:
            raise ModelError(f"{self.architecture} has no layers.")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.architecture} has {self.num_heads} attention heads and {self.num_kv_heads} key-value heads; "
                "the first must be a multiple of the second."
            )
        for layer in self.layers:
            if 2 * len(layer.rope.inv_freq) > self.head_dim:
                raise ModelError(f"rope rotates {2 * len(layer.rope.inv_freq)} values of a head of {self.head_dim}.")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def cache_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(window, layers) of each cache group: the layers of equal window share block tables. Full attention (window
        0) stands first.
        """
        windows = sorted({layer.window for layer in self.layers})
        return tuple((w, tuple(i for i, layer in enumerate(self.layers) if layer.window == w)) for w in windows)

    def attention_spec(self, layer: int) -> AttentionSpec:
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.attention_scale,
            window=self.layers[layer].window,
            softcap=self.attention_softcap,
        )


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight that the decoder reads, by canonical name, with its shape: (outputs, inputs) of a matrix, (size,) of
    a norm or bias.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, hidden), "final_norm": (hidden,)}
    if not config.tied_head:
        shapes["head"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "q": (q_size, hidden),
            "k": (kv_size, hidden),
            "v": (kv_size, hidden),
            "o": (hidden, q_size),
            "mlp_norm": (hidden,),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
        }
        if config.qkv_bias:
            layer |= {"q_bias": (q_size,), "k_bias": (kv_size,), "v_bias": (kv_size,)}
        if config.o_bias:
            layer |= {"o_bias": (hidden,)}
        if config.mlp_bias:
            layer |= {"gate_bias": (inner,), "up_bias": (inner,), "down_bias": (hidden,)}
        if config.qk_norm:
            layer |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
        if config.sandwich_norm:
            layer |= {"post_attn_norm": (hidden,), "post_mlp_norm": (hidden,)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes
