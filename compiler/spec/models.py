"""The spec as data: one frozen model for each section, with a description for each field, and `Spec` the whole.

These hold the normal form: canonical names, `compress_ratios` one entry a layer, defaults filled in. What a user may
write beyond that (aliases, the compact ratio map) is brought into this form by `normalise` before a model sees it.
Bounds keep memory sane: they are far above any model of this family and far below what would make a compile hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsv41c.kernels.catalog import FAMILIES

FORMAT = "dsv41c.spec/1"
MAX_LAYERS = 100_000
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24
MAX_LENGTH = 1 << 30
MAX_ROWS = 1 << 40
MAX_SESSIONS = 1 << 16
MAX_SHARDS = 1 << 10
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
DEVICE_PATTERN = rf"^({'|'.join(FAMILIES)}):(0|[1-9][0-9]{{0,3}})$"

SharedKind = Literal["compress_kv", "index_k", "topk", "candidates"]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
TokenId = Annotated[int, Field(ge=0, lt=MAX_VOCAB)]
Small = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Layer = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
LayerList = Annotated[tuple[Layer, ...], Field(max_length=MAX_LAYERS)]


class Section(BaseModel):
    """Base of every section: frozen, strict (no `"3"` for 3, no `true` for 1), no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Model(Section):
    """Sizes of the model as a whole."""

    n_layers: int = Field(ge=1, le=MAX_LAYERS, description="Layers of the backbone.")
    n_mtp_layers: int = Field(
        ge=0, le=1000, description="Draft layers behind the backbone in the checkpoint; they are not part of the graph."
    )
    dim: Width = Field(description="Width of a residual stream.")
    vocab_size: int = Field(ge=1, le=MAX_VOCAB, description="Rows of the token embedding and of the head.")
    norm_eps: Small = Field(description="Epsilon of every RMSNorm of the backbone; 1e-20 in the release.")
    max_seq_len: int = Field(ge=1, le=MAX_LENGTH, description="Longest context the model was made for, in tokens.")


class Tokens(Section):
    """Ids of the special tokens the runtime itself uses."""

    bos: TokenId = Field(description="Beginning-of-sequence token id.")
    eos: TokenId = Field(description="End-of-sequence token id.")
    pad: TokenId = Field(description="Padding token id.")


class Layers(Section):
    """The layer map: which layer produces which shared state. Layers are zero-based."""

    compress_ratios: Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_WIDTH)], ...], Field(max_length=MAX_LAYERS)] = (
        Field(
            description="Tokens per group of each layer's compressed branch: 0 window only, 1 one to one, r pooled. A "
            "list with an entry a layer, or a compact map such as {0-1: 0, 2-39: 2}."
        )
    )
    kv_source_layers: LayerList = Field(description="Layers that own a compressor and produce compressed KV.")
    index_source_layers: LayerList = Field(description="Layers that score the index keys and select groups.")
    candidate_source_layer: Layer | None = Field(
        default=None,
        description="Layer that chooses the candidate blocks of later index sources; absent or negative for none.",
    )
    engram_layers: LayerList = Field(default=(), description="Layers with an engram; absent for none.")
    reads: Mapping[int, Mapping[SharedKind, Annotated[int, Field(ge=0, lt=1 << 31)]]] = Field(
        default_factory=dict,
        description="Says the producer a layer reads from, by kind (compress_kv, index_k, topk, candidates), instead "
        "of the latest producer at or before it.",
    )


class Attention(Section):
    """Widths of attention: one latent of `head_dim` is key and value of all heads."""

    n_heads: Width = Field(description="Query heads.")
    head_dim: Width = Field(description="Width of a head, and of the shared KV latent.")
    rope_head_dim: Width = Field(description="Trailing channels of a head that are rotated.")
    q_lora_rank: Width = Field(description="Width of the query latent.")
    o_groups: Width = Field(description="Head groups of the output projection.")
    o_lora_rank: Width = Field(description="Width of a group's output latent.")
    window_size: Width = Field(description="Tokens of the sliding window.")


class Yarn(Section):
    """YaRN stretching of rotary frequencies; applies to layers with a compressed branch."""

    factor: float = Field(ge=1, le=1e6, description="Stretch of the context length.")
    original_seq_len: int = Field(ge=1, le=MAX_LENGTH, description="Context length before the stretch, in tokens.")
    beta_fast: Positive = Field(description="Rotations within the original length above which a pair is kept.")
    beta_slow: Positive = Field(description="Rotations within the original length below which a pair is stretched.")


class Rope(Section):
    """Rotary embedding."""

    theta: float = Field(gt=1, le=1e12, description="Base of layers without compressed branch; no YaRN there.")
    compress_theta: float = Field(gt=1, le=1e12, description="Base of layers with a compressed branch.")
    yarn: Yarn = Field(description="YaRN of layers with a compressed branch.")


class Indexer(Section):
    """The selection of compressed groups."""

    n_heads: Width = Field(description="Heads of the indexer's query.")
    head_dim: Width = Field(description="Width of an indexer head and of an index key.")
    topk: Width = Field(description="Groups selected for a query at most.")
    candidate_topk_blocks: Width = Field(description="Blocks the candidate source keeps at most.")
    candidate_block_size: Width = Field(description="Consecutive groups in a block.")


class Mhc(Section):
    """Manifold-constrained hyper-connections: several residual streams, mixed around every sublayer."""

    streams: int = Field(ge=1, le=64, description="Residual streams.")
    sinkhorn_iters: int = Field(ge=1, le=1000, description="Sinkhorn iterations of the mixing matrix.")
    eps: Small = Field(description="Epsilon of mixes and Sinkhorn.")


class Moe(Section):
    """The mixture of experts in every layer."""

    n_routed_experts: int = Field(ge=1, le=1 << 16, description="Routed experts of a layer.")
    n_activated_experts: int = Field(ge=1, le=1 << 16, description="Routed experts a token uses.")
    n_shared_experts: int = Field(ge=1, le=1, description="Experts every token uses; one in this family.")
    inter_dim: Width = Field(description="Hidden width of an expert.")
    score_func: Literal["sqrtsoftplus"] = Field(description="Router score.")
    gate_temp: Positive = Field(description="Divisor of router logits.")
    route_scale: Positive = Field(description="Factor of the normalised routing weights.")
    swiglu_limit: float = Field(
        ge=0,
        le=1e12,
        description="Clamp inside every expert, routed and shared: gate above, up on both sides; 0 = none.",
    )


class Engram(Section):
    """N-gram memory: hashed rows of large tables, gated into the streams."""

    max_ngram_size: int = Field(ge=2, le=16, description="Longest n-gram that is hashed; sizes start at 2.")
    n_heads: int = Field(ge=1, le=1024, description="Hash heads for each n-gram size.")
    head_dim: Width = Field(description="Width of a table row.")
    vocab_size: int = Field(ge=2, le=MAX_ROWS, description="The primes of the hash buckets are searched from here.")
    num_embeddings: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_ROWS)], ...], Field(min_length=1, max_length=MAX_LAYERS)
    ] = Field(description="Rows of the table of each engram layer, in the order of layers.engram_layers.")
    hash_layers: (
        Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...], Field(min_length=1, max_length=MAX_LAYERS)]
        | None
    ) = Field(
        default=None,
        description="Of a model that was cut from another: the layer of that which each engram layer was, whose hash "
        "it keeps. Absent: the layer itself, and its place in the list.",
    )
    pad_id: TokenId = Field(description="Token id that stands for what lies before the sequence; a raw id.")
    compressed_vocab_size: int = Field(ge=1, le=MAX_VOCAB, description="Distinct ids after the token map.")
    storage: Literal["device", "host", "mapped", "disk"] = Field(
        default="mapped", description="Where tables live: GPU memory, pinned host memory, the mapped file, or the disk."
    )
    row_cache_bytes: int | None = Field(
        default=None,
        ge=0,
        le=1 << 50,
        description="Memory for rows that were read before, of all tables together, where storage is mapped or disk; "
        "absent: 64 MiB. 0: none.",
    )


class Weights(Section):
    """How the official checkpoint stores the weights; decides what the shape of a scale means."""

    linear: Literal["fp8_32x32", "fp8_row32", "bf16", "f32"] = Field(
        description="Dense quantised linears; fp8_row32 is MXFP8, a scale per 32 columns of each row."
    )
    experts: Literal["fp4_32", "fp8_32x32", "fp8_row32", "bf16", "f32"] = Field(description="Routed experts.")
    engram: Literal["fp8_row32", "bf16", "f32"] = Field(description="Engram tables.")
    scale: Literal["e8m0"] = Field(description="Number format of scales.")


class Numerics(Section):
    """Numerics options."""

    compute: Literal["f32", "bf16"] = Field(default="bf16", description="Number format between ops.")
    activation_quant: Literal["none", "fp8"] = Field(
        default="none", description="Whether inputs of quantised linears are rounded to FP8, as the released code does."
    )
    kv_cache: Literal["none", "reference", "packed"] = Field(
        default="reference",
        description="Whether caches and index queries are fake-quantised, as the released code does; packed stores the "
        "same values in their FP8 and FP4 form.",
    )


class Placement(Section):
    """Where the layers run: stage i runs layers up to `layer_ends[i]` (exclusive) on `devices[i]`.

    With `tensor_parallel` N above 1, a device stands for N of its family.
    """

    devices: Annotated[
        tuple[Annotated[str, Field(pattern=DEVICE_PATTERN)], ...], Field(min_length=1, max_length=MAX_LAYERS)
    ] = Field(default=("cpu:0",), description="Device of each stage, as family:index; a device may come again.")
    layer_ends: LayerList = Field(
        description="Exclusive upper bound of each stage; may be left out where there is one stage."
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=MAX_SHARDS,
        description="Processes that share each stage; of heads, groups, experts' width and vocabulary each has a part.",
    )


class CaptureEvery(Section):
    """Capture a region of several layers."""

    every: int = Field(ge=1, le=MAX_LAYERS, description="Layers in a captured region.")


class Runtime(Section):
    """Sizes of pools and chunks."""

    max_context: int = Field(ge=1, le=MAX_LENGTH, description="Tokens a session can hold.")
    max_sessions: int = Field(ge=1, le=MAX_SESSIONS, description="Sessions that are open at once at most.")
    prefill_chunk: int = Field(ge=1, le=MAX_LENGTH, description="Longest piece of a prompt fed at once.")
    decode_buckets: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_SESSIONS)], ...], Field(min_length=1, max_length=1024)
    ] = Field(description="Batch sizes that decode steps are padded to, ascending; cut at max_sessions.")
    capture: Literal["off", "layer", "all"] | CaptureEvery = Field(
        default="layer", description="What is captured as one graph: off, layer, {every: N} layers, or all."
    )

    @property
    def capture_text(self) -> str:
        """The capture setting as one word: `off`, `layer`, `all` or `every:N`."""
        return self.capture if isinstance(self.capture, str) else f"every:{self.capture.every}"


class Spec(Section):
    """What the model is and where it runs."""

    format: Literal["dsv41c.spec/1"] = Field(description="Version of this format.")
    name: str = Field(pattern=NAME_PATTERN, description="Name of the model: letters, digits, `.`, `_` and `-`.")
    model: Model
    tokens: Tokens
    layers: Layers
    attention: Attention
    rope: Rope
    indexer: Indexer
    mhc: Mhc
    moe: Moe
    engram: Engram | None = None
    weights: Weights
    numerics: Numerics
    placement: Placement
    runtime: Runtime


SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {
        "model": Model,
        "tokens": Tokens,
        "layers": Layers,
        "attention": Attention,
        "rope": Rope,
        "indexer": Indexer,
        "mhc": Mhc,
        "moe": Moe,
        "engram": Engram,
        "weights": Weights,
        "numerics": Numerics,
        "placement": Placement,
        "runtime": Runtime,
    }
)
# Sections a spec may leave out: they have defaults, or (engram) the model lacks the part.
OPTIONAL_SECTIONS = frozenset({"engram", "numerics", "placement", "runtime"})
# What a target may say: the machine, never the model.
TARGET_SECTIONS = ("numerics", "placement", "runtime")
