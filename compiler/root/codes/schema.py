"""Codes 2xx: unknown, missing, wrongly typed or contradicting keys; and what `import` finds in a config."""

from __future__ import annotations

from dsv41c.codes.code import Code

_SPEC: tuple[Code, ...] = (
    Code(
        "DSV201",
        "unknown-key",
        "error",
        "a key is not part of the format",
        "Nothing reads this key. If it were ignored, a misspelt option would silently keep its default, so it is\n"
        "an error. The nearest known key is suggested. Keys have a home: `head_dim` belongs in `attention`, not\n"
        "in `model`.",
        bad="extends: toy\nruntime: {max_session: 2}\n",
        good="extends: toy\nruntime: {max_sessions: 2}\n",
    ),
    Code(
        "DSV202",
        "missing-key",
        "error",
        "a required key is not given",
        "Sizes and lists of a model have no defaults: a wrong guess would load and compute something else. Only\n"
        "`numerics`, `placement` and `runtime` have defaults, and parts a model may lack may be left out. To\n"
        "start from a whole spec and change a few values, use `extends`.",
        bad='extends: toy\nplacement: {devices: ["cpu:0", "cpu:0"]}\n',
        good='extends: toy\nplacement: {devices: ["cpu:0", "cpu:0"], layer_ends: [5, 8]}\n',
    ),
    Code(
        "DSV203",
        "wrong-type",
        "error",
        "a value has the wrong type",
        'Types are strict: `"3"` is text, not 3, and `true` is not 1. Text that looks like a number must be\n'
        "quoted, a number must not. A list is written in brackets even if it has one entry.",
        bad="extends: toy\nmodel: {dim: wide}\n",
        good="extends: toy\nmodel: {dim: 128}\n",
    ),
    Code(
        "DSV204",
        "out-of-range",
        "error",
        "a value is outside its range",
        "The value has the right type but cannot work: a size below one, more active experts than there are, a\n"
        "context longer than the model was made for. Upper bounds are far above any model of this family; they\n"
        "keep a slip of the keyboard from allocating without limit.",
        bad="extends: toy\nindexer: {topk: -1}\n",
        good="extends: toy\nindexer: {topk: 8}\n",
    ),
    Code(
        "DSV205",
        "unknown-word",
        "error",
        "a value is not among the words its key takes",
        "The key takes one of a few words, listed in the finding. `score_func` takes only `sqrtsoftplus`, the one\n"
        "router score of this model family: another one would route to other experts without any error.",
        bad="extends: toy\nnumerics: {compute: f16}\n",
        good="extends: toy\nnumerics: {compute: f32}\n",
    ),
    Code(
        "DSV206",
        "spellings-disagree",
        "error",
        "a value is given in two spellings that disagree",
        "Keys may be spelt as the released code does (`kv_source_layers`) or as HF configs do\n"
        "(`kv_source_layer_ids`). Given both ways with different values, neither can be trusted. Keep one.",
        bad="extends: toy\nlayers: {kv_source_layers: [2, 5], kv_source_layer_ids: [2, 4]}\n",
        good="extends: toy\nlayers: {kv_source_layer_ids: [2, 5]}\n",
    ),
    Code(
        "DSV207",
        "spelled-twice",
        "note",
        "a value is given in two spellings that agree",
        "Both spellings are accepted and say the same. Keeping one avoids that they drift apart.",
        bad="extends: toy\nlayers: {kv_source_layers: [2, 5], kv_source_layer_ids: [2, 5]}\n",
        good="extends: toy\nlayers: {kv_source_layers: [2, 5]}\n",
    ),
    Code(
        "DSV208",
        "ratio-count",
        "error",
        "compress_ratios has the wrong number of entries",
        "Every backbone layer has a ratio. The released config also lists the draft (MTP) layers behind the\n"
        "backbone, so the number of entries is `n_layers`, or `n_layers` + `n_mtp_layers`. A short list is never\n"
        "padded: a zero in the wrong place turns a compressed layer into a window-only one, with the right\n"
        "shapes.",
        bad="extends: toy\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1]}\n",
        good="extends: toy\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1]}\n",
    ),
    Code(
        "DSV209",
        "draft-ratio",
        "error",
        "a draft layer has a ratio other than 0",
        "Entries of compress_ratios behind the backbone belong to draft layers, which are window-only in this\n"
        "family. Anything but 0 there means that the list is shifted or that the layer count is wrong.",
        bad="extends: toy\nmodel: {n_mtp_layers: 1}\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1, 1]}\n",
        good="extends: toy\nmodel: {n_mtp_layers: 1}\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1, 0]}\n",
    ),
    Code(
        "DSV210",
        "ratio-ranges",
        "error",
        "the compact map of compress_ratios has a bad, missing or double range",
        "In the compact form each key is `first-last` (both included) or one layer, and together they cover every\n"
        "layer once: `{0-1: 0, 2-19: 2, 20-39: 1}`. Gaps are not filled and overlaps are not resolved.",
        bad="extends: toy\nlayers: {compress_ratios: {0-1: 0, 3-4: 2, 5-7: 1}}\n",
        good="extends: toy\nlayers: {compress_ratios: {0-1: 0, 2-4: 2, 5-7: 1}}\n",
    ),
    Code(
        "DSV211",
        "carried-state",
        "error",
        "`layers.reads` names a source for state that is carried",
        "Only shared state has a choice of producer: compress_kv, index_k, topk and candidates. Everything else\n"
        "is carried from one sublayer to the next or belongs to one layer. The pre-mix above all: attention\n"
        "collapses the streams with the pre-mix made by the previous layer's FFN, the FFN with the one made by\n"
        "this layer's attention. A pre-mix taken from the sublayer itself has the same shape and gives wrong\n"
        "results, so it cannot be written.",
        bad="extends: toy\nlayers: {reads: {4: {pre: 4}}}\n",
        good="extends: toy\nlayers: {reads: {4: {compress_kv: 2}}}\n",
    ),
    Code(
        "DSV212",
        "bad-name",
        "error",
        "the name of the model is not a plain one",
        "The name goes into manifests, generated code and file names, so it is 1 to 100 letters, digits, `.`, `_`\n"
        "or `-`, and starts with a letter or a digit.",
        bad="extends: toy\nname: 'a\"; import os #'\n",
        good="extends: toy\nname: my-model\n",
    ),
    Code(
        "DSV213",
        "bad-device",
        "error",
        "a device is not a family and an index",
        "Devices are written `family:index`: `cpu:0`, `cuda:1`, `rocm:0`, `hpu:7`. The index counts the devices\n"
        "of the machine that runs the plan, from 0.",
        bad='extends: toy\nplacement: {devices: ["gpu:0"]}\n',
        good='extends: toy\nplacement: {devices: ["cuda:0"]}\n',
    ),
    Code(
        "DSV214",
        "unknown-format",
        "error",
        "the format line names a version that is not read here",
        "`format` says how to read the rest. This tool reads `dsv41c.spec/1`; a spec of another version may mean\n"
        "something else by the same keys.",
        bad="extends: toy\nformat: dsv41c.spec/2\n",
        good="extends: toy\nformat: dsv41c.spec/1\n",
    ),
    Code(
        "DSV215",
        "does-not-divide",
        "error",
        "a width does not divide as the model needs it to",
        "Heads split into `o_groups` groups of the same size; rotation takes channels in pairs; quantised\n"
        "weights, caches and activations share a scale over 32 values along a row, so the widths along which they\n"
        "do are multiples of 32. Which widths those are depends on `weights` and `numerics`: a spec with plain\n"
        "bf16 weights has fewer rules.",
        bad="extends: toy\nattention: {o_groups: 3, o_lora_rank: 32}\n",
        good="extends: toy\nattention: {o_groups: 2, o_lora_rank: 32}\n",
    ),
    Code(
        "DSV220",
        "unknown-spec",
        "error",
        "no shipped spec or target has this name",
        "Where a spec is asked for, a path, `-` for standard input, or the name of a shipped spec will do. A file\n"
        "in the current folder without a suffix is written `./NAME`.",
        bad="extends: tooy\n",
        good="extends: toy\n",
    ),
    Code(
        "DSV221",
        "endless-extends",
        "error",
        "specs extend one another in a circle, or too deep",
        "Each spec may start from another one, but the chain must end, after at most eight steps, at one that\n"
        "stands alone.",
    ),
    Code(
        "DSV222",
        "extends-outside",
        "error",
        "`extends` names a file outside the folder of the spec",
        "A spec may extend a shipped spec, or a file in its own folder or below. Absolute paths and `..` are\n"
        "refused: a spec from elsewhere could otherwise make a report show lines of any file on the machine.",
        bad="extends: ../secret/base.yaml\n",
        good="extends: toy\n",
    ),
    Code(
        "DSV223",
        "target-key",
        "error",
        "a target says something about the model",
        "A target describes a machine: `placement`, `numerics`, `runtime`. What the model is belongs in the spec,\n"
        "or the same spec would mean different models on different machines.",
    ),
    Code(
        "DSV224",
        "bad-override",
        "error",
        "a `--set` names no place in the spec",
        "Overrides are written `--set path=value`, where the path goes through sections and list indexes\n"
        "(`layers.kv_source_layers.2=14`) and the value is YAML. Missing maps are created; a list grows only by\n"
        "being replaced as a whole.",
    ),
)
_IMPORT: tuple[Code, ...] = (
    Code(
        "DSV230",
        "unknown-architecture",
        "error",
        "the config is of another architecture",
        "Only configs that name this architecture exactly are imported. Neighbours with a similar name compute\n"
        "something else: `deepseek_v4` has a compressor in every layer and ratios 4 and 128, and its checkpoints\n"
        "would load into a graph that gives nonsense. Names are compared whole, never by prefix.",
    ),
    Code(
        "DSV231",
        "levels-disagree",
        "error",
        "the config gives a value at two places that disagree",
        "Text parameters are nested under `text_config`; some tools copy them to the top level, or flatten the\n"
        "file, and spellings differ. A value found at two places must be the same in both.",
    ),
    Code(
        "DSV232",
        "unknown-quantisation",
        "error",
        "the checkpoint is quantised in a way that is not read here",
        "The official layout is FP8 with 32x32 blocks and power-of-two scales, with FP4 experts. Other flavours\n"
        "use the same tensor names with scales of other shapes and meanings (NVFP4, Quark, EXL3, 128x128 blocks),\n"
        "so the quantisation block of the config must match exactly.",
    ),
    Code(
        "DSV233",
        "other-mathematics",
        "error",
        "the config asks for mathematics that this model family does not have",
        "Some keys have one value in this family: `hidden_act: silu`, `norm_topk_prob: true`, `topk_method:\n"
        "noaux_tc`, one KV head, no attention bias, untied embeddings, YaRN rope scaling. Another value means\n"
        "another model.",
    ),
    Code(
        "DSV234",
        "key-not-read",
        "warning",
        "a key of the config is not read",
        "The key is not part of the released config and resembles no key that is. It is most likely bookkeeping\n"
        "of the tool that wrote the file; if it changes what the model computes, the imported spec does not say\n"
        "so.",
    ),
    Code(
        "DSV235",
        "misspelt-config-key",
        "error",
        "a key of the config resembles a known one",
        "A key that is nearly that of a model parameter was probably meant to be it. Ignoring it would silently\n"
        "leave that parameter out.",
    ),
    Code(
        "DSV236",
        "value-assumed",
        "warning",
        "the config leaves a value out, and the released model's was taken",
        "Some configs leave out values that others give: the official inference config has no token ids, for\n"
        "instance. The value taken is in the finding and in the imported spec; check that it fits the checkpoint.",
    ),
    Code(
        "DSV237",
        "missing-config-key",
        "error",
        "the config lacks a parameter of the model",
        "Both spellings were looked for, at the top level and under `text_config`. An absent list is not an empty\n"
        "one: a model without KV sources would compile to a window-only one.",
    ),
)
CODES: tuple[Code, ...] = _SPEC + _IMPORT
