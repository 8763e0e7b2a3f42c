"""What a GGUF file says of its model, in the names of config.json."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.checkpoint import Checkpoint
from dsv41c.runtime.weights.gguf.facts import GgufFacts
from dsv41c.runtime.weights.gguf.families import IGNORED, PREFIX
from dsv41c.runtime.weights.gguf.uniform import LISTS, scalar
from dsv41c.runtime.weights.names import shown
from dsv41c.words import joined

Config = dict[str, object]

# How the release stores its weights. What a file in blocks of its own holds was made from that, and binds to the same.
QUANTISATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
GATING = {1: "softmax", 2: "sigmoid", 4: "sqrtsoftplus"}
_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
# Without keys for it, the second level of selection is the release's where all of these are.
_RELEASED = {"num_hidden_layers": 40, "max_position_embeddings": 1048576, "index_topk": 512}
_SECOND_LEVEL = {"candidate_block_size": 8, "candidate_topk_blocks": 2048}
# Parameters that a file may lack, beside those of engrams: they follow from its tensors, or have one value anyway.
_OPTIONAL = (
    "candidate_block_size",
    "candidate_source_layer_id",
    "candidate_topk_blocks",
    "hidden_act",
    "index_source_layer_ids",
    "kv_source_layer_ids",
    "norm_topk_prob",
    "num_hash_layers",
    "num_key_value_heads",
    "num_nextn_predict_layers",
    "rope_scaling.beta_fast",
    "rope_scaling.beta_slow",
    "rope_scaling.rope_type",
    "topk_method",
    "vocab_size",
)


def config_of(checkpoint: Checkpoint) -> tuple[Config, list[Diagnostic]]:
    """The config of a GGUF checkpoint, and what its keys lack or what was worked out in their place."""
    facts = checkpoint.gguf
    assert facts is not None, "asked of GGUF checkpoints"
    found: Config = {}
    for parameter in facts.family.parameters:
        key = facts.key(parameter)
        if key is not None:
            value = facts.keys[key]
            found[parameter] = _list(value.data) if parameter in LISTS else scalar(value)
    findings = _missing(facts, found)
    if findings:
        return {}, findings
    gating = found["scoring_func"]
    found["scoring_func"] = GATING.get(gating, gating) if isinstance(gating, int) else gating
    for parameter, name in _TOKENS.items():
        token = facts.keys.get(f"tokenizer.ggml.{name}_token_id")
        if token is not None:
            found[parameter] = scalar(token)
    ratios = found["compress_ratios"]
    if isinstance(ratios, list) and isinstance(found["num_hidden_layers"], int):
        found.setdefault("num_nextn_predict_layers", max(0, len(ratios) - found["num_hidden_layers"]))
    embed = checkpoint.tensors.get("embed.weight")
    if embed is not None:
        found.setdefault("vocab_size", embed.shape[0])
    findings += _sources(facts, found)
    findings += _engram(facts, found)
    findings += _not_read(facts)
    config: Config = {"model_type": "deepseek_v41", "quantization_config": QUANTISATION}
    scaling: Config = {"rope_type": "yarn"}
    for parameter, given in found.items():
        outer, _, inner = parameter.partition(".")
        if inner:
            scaling[inner] = given
        else:
            config[outer] = given
    return {**config, "rope_scaling": scaling}, findings


def _list(data: object) -> object:
    return list(data) if isinstance(data, Sequence) and not isinstance(data, str) else data


def _missing(facts: GgufFacts, found: Config) -> list[Diagnostic]:
    needed = (name for name in facts.family.parameters if name not in _OPTIONAL and not name.startswith("engram_"))
    lacks = [parameter for parameter in needed if found.get(parameter) is None]
    if not lacks:
        return []
    keys = [f"`{PREFIX}{facts.family.parameters[parameter][0]}`" for parameter in lacks]
    text = f"the file has no {joined(keys, 'and')}"
    return [
        Diagnostic("DSV764", text, Span(facts.file), help="use a file that has the keys, or write the spec by hand")
    ]


def _worked_out(facts: GgufFacts, parameter: str, value: object, why: str) -> Diagnostic:
    text = f"the file has no key for `{parameter}`, took {value}: {why}"
    return Diagnostic("DSV236", text, Span(facts.file), help="check that it fits; change it in the spec if not")


def _sources(facts: GgufFacts, found: Config) -> list[Diagnostic]:
    """The layers that compress and select, by their tensors where no key says it."""
    findings = []
    for parameter, tensor in (
        ("kv_source_layer_ids", "attn_compressor_kv.weight"),
        ("index_source_layer_ids", "indexer.attn_q_b.weight"),
    ):
        if parameter not in found:
            found[parameter] = list(facts.layers_with.get(tensor, ()))
            findings.append(_worked_out(facts, parameter, found[parameter], f"the layers that have `{tensor}`"))
    if "candidate_source_layer_id" in found:
        return findings
    ratios, sources = found["compress_ratios"], found["index_source_layer_ids"]
    first = None
    if isinstance(ratios, list) and isinstance(sources, list):
        first = next((layer for layer, ratio in enumerate(ratios) if ratio == 1 and layer in sources), None)
    if first is None:
        found["candidate_source_layer_id"] = -1
        return findings
    if any(found.get(parameter) != value for parameter, value in _RELEASED.items()):
        names = ("candidate_source_layer_id", *_SECOND_LEVEL)
        keys = [f"`{PREFIX}{facts.family.parameters[name][0]}`" for name in names if name not in found]
        text = f"the file has no {joined(keys, 'and')}, which are known without only for the released model"
        help_text = "use a file that has the keys, or write the spec by hand"
        return [*findings, Diagnostic("DSV764", text, Span(facts.file), help=help_text)]
    found["candidate_source_layer_id"] = first
    findings.append(_worked_out(facts, "candidate_source_layer_id", first, "the first index source of ratio 1"))
    for parameter, value in _SECOND_LEVEL.items():
        if parameter not in found:
            found[parameter] = value
            findings.append(_worked_out(facts, parameter, value, "the released model's"))
    return findings


def _engram(facts: GgufFacts, found: Config) -> list[Diagnostic]:
    """Sizes of the engram, from tables and constants where no key gives them."""
    layers = list(facts.engram_layers)
    found["engram_layer_ids"] = layers
    if not layers:
        for parameter in [name for name in found if name.startswith("engram_") and name != "engram_layer_ids"]:
            del found[parameter]
        return []
    multipliers, primes = facts.integers("multipliers") or (), facts.integers("primes") or ()
    found.setdefault("engram_num_embeddings", [facts.tables[layer][0] for layer in layers if layer in facts.tables])
    widths = {width for _, width in facts.tables.values()}
    if len(widths) == 1:
        found.setdefault("engram_head_dim", widths.pop())
    size = found.setdefault("engram_max_ngram_size", len(multipliers) // len(layers))
    if isinstance(size, int) and size > 1:
        found.setdefault("engram_n_heads", len(primes) // len(layers) // (size - 1))
    mapped = facts.integers("token_map") or ()
    found.setdefault("engram_compressed_vocab_size", max(mapped, default=-1) + 1)
    if primes:
        found.setdefault("engram_vocab_size", roundest_start(primes[0]))
    return _pad(facts, found, mapped)


def _pad(facts: GgufFacts, found: Config, mapped: Sequence[int]) -> list[Diagnostic]:
    """The raw id that pads n-grams; some families give its compressed one."""
    compressed = facts.keys.get(PREFIX + "engram.pad_id")
    if "engram_pad_token_id" in found or compressed is None:
        return []
    pad = found.get("pad_token_id")
    if isinstance(pad, int) and 0 <= pad < len(mapped) and mapped[pad] == compressed.data:
        found["engram_pad_token_id"] = pad
        return []
    first = next((token for token, key in enumerate(mapped) if key == compressed.data), None)
    if first is None:
        given = shown(str(compressed.data))
        text = f"`{PREFIX}engram.pad_id` is {given}, and no token of the token map has this compressed id"
        return [Diagnostic("DSV765", text, Span(facts.file), help="export the file again")]
    found["engram_pad_token_id"] = first
    return []


def roundest_start(first: int) -> int:
    """Where a search for primes started whose first result is `first`.

    Every number after the prime before it gives the same; taken is the one that most powers of two divide, as a size
    that people choose.
    """
    start = first
    while start > 2 and first - start < 1 << 12 and not (start < first and _is_prime(start)):
        start -= 1
    best = first
    for candidate in range(start + 1, first + 1):
        if candidate & -candidate > best & -best:
            best = candidate
    return best


def _is_prime(number: int) -> bool:
    if number < 1 << 40:
        return number > 1 and all(number % divisor for divisor in range(2, min(isqrt(number), 1 << 20) + 1))
    return False


def _not_read(facts: GgufFacts) -> list[Diagnostic]:
    """One finding for all keys of the architecture that nothing reads."""
    read = {key for keys in facts.family.parameters.values() for key in keys}
    read |= {key for keys in facts.family.constants.values() for key in keys} | set(IGNORED)
    stray = [key for key in facts.keys if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in read]
    if not stray:
        return []
    text = f"keys that are not read: {', '.join(f'`{shown(key)}`' for key in stray)}"
    return [
        Diagnostic("DSV234", text, Span(facts.file), help="nothing to do if they do not change what the model computes")
    ]
