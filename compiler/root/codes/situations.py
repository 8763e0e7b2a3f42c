"""How the codes that no spec shows come about, and the same mended: commands, or what is in a file or a program.

Commands are run by a test, in a folder with `toy.plan` and `toy.checkpoint`, as README makes them. The situations
themselves are made by the triggers in `tests/diagnostics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_FETCHED = "the file as the publisher has it"
_COMPILED = "dsv41c compile toy -o toy.plan"
_GRAPH = "dsv41c graph toy > toy.graph; dsv41c validate toy.graph"
_EXPORTED = "the file exported again by a tool that keeps to the format"

_TEXT = {
    "DSV102": ("a spec saved as Latin-1, with an `é` in a comment", "the same saved as UTF-8"),
    "DSV103": ("a spec with colour codes, pasted from a terminal", "the same without them"),
    "DSV104": ("a spec saved as `UTF-8 with BOM`", "the same saved as UTF-8; `dsv41c validate SPEC --fix` shows it"),
    "DSV111": ("dsv41c validate ./model-00001-of-00048.safetensors, by mistake for a spec", "dsv41c validate toy"),
    "DSV117": ("dsv41c validate specs/absent.yaml", "dsv41c validate toy"),
    "DSV130": (f"{_GRAPH}, with `layers.0.attn.mix =` changed to `layers.0.attn.mix <-`", _GRAPH),
    "DSV150": ("dsv41c graph toy --select 'layers 3'", "dsv41c graph toy --select 'layers.3'"),
    "DSV151": ("dsv41c graph toy --select topk@L3", "dsv41c graph toy --select topk@L4"),
    "DSV152": ("DSV41C_DEBUG=much dsv41c validate toy", "DSV41C_DEBUG=1 dsv41c validate toy"),
    "DSV153": ("DSV41C_TREADS=2 dsv41c validate toy", "DSV41C_THREADS=2 dsv41c validate toy"),
    "DSV154": ("dsv41c graph toy -o absent/toy.txt", "dsv41c graph toy -o toy.txt"),
    "DSV156": (
        "`dsv41c graph toy --format html --overlay F`, where F is a text",
        "F as `run` or `bench --json` wrote it",
    ),
    "DSV157": ("`--overlay` with the numbers of a model of 40 layers, over one of 8", "the numbers of this model"),
    "DSV158": ("`dsv41c validate --json`, without a SPEC", "`dsv41c validate toy --json`"),
}
_SPEC = {
    "DSV221": ("a.yaml has `extends: b.yaml`, and b.yaml `extends: a.yaml`", "b.yaml has `extends: toy`"),
    "DSV223": ("`--target machine.yaml` with `model: {dim: 256}` in it", "`numerics: {compute: f32}` in it"),
    "DSV224": (
        "dsv41c validate toy --set layers.kv_source_layers.7=3",
        "dsv41c validate toy --set layers.kv_source_layers.1=5",
    ),
    "DSV230": ('a config with `"model_type": "deepseek_v4"`', 'one with `"model_type": "deepseek_v41"`'),
    "DSV231": (
        '`"num_hidden_layers": 43` beside a `text_config` that has 40',
        "the number once, or the same in both places",
    ),
    "DSV232": (
        '`"quantization_config": {"quant_method": "exl3"}`',
        "a checkpoint in the official layout",
    ),
    "DSV233": ('`"hidden_act": "gelu"`', '`"hidden_act": "silu"`'),
    "DSV234": ('`"colour": "blue"` in `text_config`', "the config without it"),
    "DSV235": ('`"kv_sources_layer": [2]` in `text_config`', '`"kv_source_layer_ids": [2]`'),
    "DSV236": ("a config without `bos_token_id`", "the config with it"),
    "DSV237": ("a config without `index_source_layer_ids`", "the config with it"),
}
_FLOW = {
    "DSV402": (f"{_GRAPH}, where an `attend` reads `topk@none`", _GRAPH),
    "DSV406": (f"{_GRAPH}, where an `index_score` reads `index_k@none`", _GRAPH),
    "DSV420": (f"{_GRAPH}, without the line of `layers.3.attn.query`", _GRAPH),
    "DSV421": (f"{_GRAPH}, with two ops that write `topk@L4`", _GRAPH),
    "DSV422": (f"{_GRAPH}, with `layers.3.ffn.route` before `layers.3.ffn.norm`", _GRAPH),
    "DSV423": (f"{_GRAPH}, where a `norm` has no `eps`", _GRAPH),
    "DSV424": (f"{_GRAPH}, where an `attend` reads `query=query_latent@L3`", _GRAPH),
    "DSV425": (f"{_GRAPH}, where `experts` write a value of kind `compress_kv`", _GRAPH),
    "DSV426": (f"{_GRAPH}, where layer 3 reads `post@L2.attn`", _GRAPH),
    "DSV427": (f"{_GRAPH}, where `layers.3.attn.collapse` reads `pre@L3.attn`", _GRAPH),
    "DSV428": (f"{_GRAPH}, where `layers.4.attn.collapse` reads `streams@L3.ffn`", _GRAPH),
    "DSV429": (f"{_GRAPH}, where an `attend` reads `window_kv@L3`", _GRAPH),
    "DSV430": (f"{_GRAPH}, with a `window_store` before the `attend` that reads the ring", _GRAPH),
    "DSV431": (f"{_GRAPH}, without a `window_store`", _GRAPH),
    "DSV505": ("the graph of two stages without the transfer of a selection", "the graph as the compiler places it"),
    "DSV506": ("the graph of two stages with compressed KV in a `transfer`", "with compressed KV in a `mirror`"),
    "DSV508": ("the graph of two shards without an `all_reduce`", "the graph as the compiler splits it"),
    "DSV601": ("a target whose family has no kernel for an op of the spec", "a family that the finding lists"),
    "DSV602": ("`indexer.candidate_block_size: 8192` with `--target cuda`", "of 4096"),
}
_CUTS = {
    "DSV240": ("dsv41c cut toy --layers 0,1,3,6", "dsv41c cut toy --layers 0-3,5,6"),
    "DSV241": ("dsv41c cut toy --layers 6-8", "dsv41c cut toy --layers 5-7"),
    "DSV242": ("dsv41c cut toy --layers 0 --experts 1", "dsv41c cut toy --layers 0 --experts 2"),
    "DSV243": ("a cut without layer 5, which alone reads the selection of 4, under `reads: {4: {topk: 2}}`", "with it"),
}
_WEIGHTS = {
    "DSV700": (
        "dsv41c validate toy --checkpoint absent.checkpoint",
        "dsv41c validate toy --checkpoint toy.checkpoint",
    ),
    "DSV701": ("a download that is an error page, or the pointer of a clone without large files", _FETCHED),
    "DSV702": ("a tensor of dtype `F6_E2M3`", "the tensor as FP8 with its scale, BF16 or F32"),
    "DSV703": ("a download that broke off", _FETCHED),
    "DSV704": ("a tensor F32[2] whose `data_offsets` span 4 bytes", _EXPORTED),
    "DSV705": ("an index that is `[]`", _FETCHED),
    "DSV706": ('an index with `"a": "../x.safetensors"`', "the shard in the folder, and named plainly"),
    "DSV707": ("47 of 48 shards", "all of them"),
    "DSV708": ("the index of one revision beside shards of another", "both of one revision"),
    "DSV709": ("shards of two downloads in one folder", "those of one"),
    "DSV710": ("`embed.weight` beside `model.norm.weight`", "all names with the same prefix, or none"),
    "DSV711": (
        "experts of a layer in one tensor [8, 2304], which lacks a dimension",
        "in one of shape [8, 2304, 2560]",
    ),
    "DSV712": ("an index whose metadata says `dsv41c.gate_up: up`", "one that says `up_gate`"),
    "DSV720": (
        "a spec with 3 among its `kv_source_layers`, over a checkpoint without such a compressor",
        "without the 3",
    ),
    "DSV721": (
        "a checkpoint whose layer 8 has a compressor, under a spec without that KV source",
        "a spec that has it",
    ),
    "DSV722": ("`layers.0.attn.wo_b.weight` of shape [32, 64], where the spec's widths give [64, 64]", "[64, 64]"),
    "DSV723": ("a matrix stored as F16", "stored as the spec's `weights` say, or as BF16 or F32"),
    "DSV724": ("FP8 codes without `layers.0.attn.wo_b.scale`", "the codes and their scale"),
    "DSV725": ("a scale by row, [64, 2], where the spec says `linear: fp8_32x32`", "a scale by block, [2, 2]"),
    "DSV726": ("`.scale` and `.weight_scale_inv` beside one weight", "one of them"),
    "DSV727": ("a scale beside a BF16 matrix", "the matrix alone"),
    "DSV728": ("3 experts a layer, where `moe.n_routed_experts` is 2", "`n_routed_experts: 3`"),
    "DSV730": ("an E8M0 scale with a byte of 255", _FETCHED),
    "DSV731": ("an F32 matrix with 1.0000001 in it, under `numerics.compute: bf16`", "`numerics.compute: f32`"),
    "DSV732": ("a shard that is still being written", "the shard when the download has ended"),
    "DSV733": ("a shard that is fetched again while `run` reads its table", "the shard left alone meanwhile"),
    "DSV734": ("`swiglu_limit` of 7 in config.json, `moe.swiglu_limit` of 2 in the spec", "of 2 in both"),
    "DSV740": ("a tokenizer of 512 ids for a model of 500", "the tokenizer of the checkpoint"),
    "DSV741": ("`engram.compressed_vocab_size: 400` for a tokenizer with 426 distinct keys", "426"),
    "DSV750": ("dsv41c synth toy -o small.checkpoint --max-bytes 100", "dsv41c synth toy -o small.checkpoint"),
    "DSV751": ("dsv41c synth toy -o toy.checkpoint", "dsv41c synth toy -o another.checkpoint"),
    "DSV752": ("`synth` with `engram.compressed_vocab_size` above `model.vocab_size`", "with at most as many"),
    "DSV753": ("`synth` with experts in `fp4_32` and `model.dim: 33`", "with `model.dim: 64`"),
    "DSV754": ("`dsv41c cut SPEC --checkpoint model.gguf`", "the folder that the GGUF file was made of"),
    "DSV755": ("`dsv41c repack PLAN --checkpoint model.gguf`", "a checkpoint of safetensors"),
    "DSV756": ("a disk that gives back other bytes than were written to it", "a sound disk"),
    "DSV760": ("a GGUF file written in big-endian order", "in little-endian order"),
    "DSV761": ("a file whose `general.architecture` is `deepseek4`", "one of `deepseek41`"),
    "DSV762": ("a file with the key `deepseek41.kv_source_layers`", "one with `attention.kv_source_layer_ids`"),
    "DSV763": ("a tensor of type 43", "of BF16, Q8_0 or MXFP4"),
    "DSV764": ("engram tables and no `engram.multipliers`", "with multipliers, primes and the token map"),
    "DSV765": ("`engram.multipliers` as an array of i32", "of u64"),
    "DSV766": ("an engram table of 100 rows for buckets of 211", "of 211"),
    "DSV767": ("`swiglu_clamp_exp` of 10 in one layer and 7 in another", "of 10 in all"),
    "DSV768": ("a file with `output_hc_base.weight`", "without tensors of the older architecture"),
    "DSV769": ("`tokenizer.ggml.pre` with a name that is unknown here", "`joyai-llm`; or `--ids` instead of text"),
    "DSV770": ("part 1 of 2 beside part 2 of an export in 3", "both of one export"),
    "DSV771": ("`swiglu_clamp_exp` of 7 in the file, `moe.swiglu_limit` of 10 in the spec", "of 10 in both"),
}
_PLANS = {
    "DSV801": ("dsv41c inspect .", "dsv41c inspect toy.plan"),
    "DSV802": ("a plan of `dsv41c.plan/2.0`", _COMPILED),
    "DSV803": ("a manifest without `ops`", _COMPILED),
    "DSV804": ("a manifest that lists the file `../elsewhere`", _COMPILED),
    "DSV810": ("a plan copied without its `stage_0.py`", "the whole folder"),
    "DSV811": ("a plan whose `stage_0.py` was edited", _COMPILED),
    "DSV812": ("the same with `--allow-edited`", _COMPILED),
    "DSV813": ("`import os` in a `stage_0.py`", _COMPILED),
    "DSV814": ("`iterations=19` in a `stage_0.py` whose manifest says 20", _COMPILED),
    "DSV820": ("dsv41c compile toy -o toy.checkpoint", "dsv41c compile toy -o another.plan"),
    "DSV821": ("a compile over a plan folder with notes.txt in it", "the same with the notes elsewhere"),
    "DSV822": ("a disk that fills up while a plan is written", "a disk with room"),
    "DSV830": ("dsv41c estimate toy --host-memory 1MiB", "dsv41c estimate toy --host-memory 16GiB"),
}
_RUNS = {
    "DSV840": ("a kernel that reads an index beyond its input", "the kernels that ship"),
    "DSV841": ("a chunk of 4096 tokens on a device that has room for 512", "`--chunk 512`"),
    "DSV842": ("a kernel that writes beyond its output on a GPU", "the kernels that ship"),
    "DSV843": ("a native kernel on a device that lacks what it needs", "a device that `dsv41c targets` lists"),
    "DSV844": ("a kernel that gives [B, 1] where the plan says [B, 4]", "the kernels that ship"),
    "DSV845": ("a step whose `experts` overflow", "weights and inputs as the model was made for"),
    "DSV846": ("a matrix with a NaN in it", _FETCHED),
    "DSV848": ("`session.length = 3` by hand in a slot that another session had", "tokens fed to the session itself"),
    "DSV849": ('Engine(plan, checkpoint, tail="short")', 'Engine(plan, checkpoint, tail="exact")'),
    "DSV850": (
        "dsv41c run toy.plan --checkpoint toy.checkpoint --ids 1,99999 -n 1",
        "dsv41c run toy.plan --checkpoint toy.checkpoint --ids 1,2 -n 1",
    ),
    "DSV851": (
        "dsv41c run toy.plan --checkpoint toy.checkpoint --ids 1,2 -n 9999",
        "dsv41c run toy.plan --checkpoint toy.checkpoint --ids 1,2 -n 1",
    ),
    "DSV852": ("a fifth `engine.open()` where `runtime.max_sessions` is 4", "a `session.close()` before it"),
    "DSV853": ("session.close(); session.feed([1])", "session = engine.open(); session.feed([1])"),
    "DSV854": ("session.feed([])", "session.feed([0])"),
    "DSV855": ("engine.feed(session, [1]), with a session of another engine", "session.engine.feed(session, [1])"),
    "DSV856": ("session.feed([1]) after a step that was interrupted", "session.reset(); session.feed([1])"),
    "DSV857": ("engine.decode([(session, 1), (session, 2)])", "engine.decode([(one, 1), (another, 2)])"),
    "DSV858": ("a plan for `hpu:0`, run where there is none", "the spec compiled with `--target cpu`"),
    "DSV859": ("session.feed([5], chunk=0)", "session.feed([5], chunk=1)"),
    "DSV860": ("Sampler(top_p=0.0)", "Sampler(top_p=0.9)"),
    "DSV861": ("a checkpoint without `tokenizer.json`", "with the one of its release"),
    "DSV862": ("a prompt typed in a terminal that is not UTF-8", "the same with LC_ALL=C.UTF-8"),
    "DSV863": (
        "`--chat` with a tokenizer without `<｜User｜>`",
        "`--prompt`, or the tokenizer of the release",
    ),
    "DSV864": ("a message with `<｜deepseek_image｜>` in it", "the message without it"),
    "DSV865": ("`run --logits-out absent/l.safetensors`", "`run --logits-out l.safetensors`"),
    "DSV866": ("`--compare reference` with a kernel that adds 1 to the logits", "with the kernels that ship"),
    "DSV867": (
        "dsv41c run toy.plan --checkpoint toy.checkpoint --ids 1 -n 1 --compare reference --until topk@L77",
        "dsv41c run toy.plan --checkpoint toy.checkpoint --ids 1 -n 1 --compare reference --until topk@L5",
    ),
    "DSV868": ("logits with a NaN, from a damaged weight", "the weight as the publisher has it"),
    "DSV869": ("`--states-out` with a plan whose code calls its kernels in another order", _COMPILED),
}
_GRAPHS = {
    "DSV870": ("`result.tolist()` in a kernel", "the tensor left on the device"),
    "DSV871": ("`result.nonzero()` in a kernel", "all rows, with a mask"),
    "DSV872": ("a kernel that keeps `result * 2` in a list", "a kernel that returns it, or drops it"),
    "DSV873": ("a pool replaced by another tensor between two steps", "values copied into the pool that was captured"),
    "DSV874": ("`pool[slot].add_(rows)` in a kernel", "`pool.index_put_((slots,), rows)`"),
    "DSV875": ("`pool[:, n:]` in a kernel, with another n at each step", "`pool.index_select(1, positions)`"),
    "DSV876": ("a kernel that does more with each call", "one that does the same"),
    "DSV877": ("`torch.tensor([1, 2])` in a kernel", "`torch.arange(1, 3, device=x.device)`"),
}
_BENCHES = {
    "DSV880": (
        "dsv41c bench toy.plan --batch 5 --context 16 --steps 1 --rounds 1",
        "dsv41c bench toy.plan --batch 4 --context 16 --steps 1 --rounds 1",
    ),
    "DSV881": ("`bench` with a `--context` above the plan's `runtime.max_context`", "a shorter one"),
    "DSV882": ("`bench --arms layers`", "`bench --arms layer`"),
    "DSV883": ("`bench --stored-experts 1`, where a token takes 2", "`--stored-experts 2`"),
    "DSV884": ("`bench` of the released model on a laptop", "with `--stored-experts 8`, and fewer sessions"),
    "DSV885": ("`bench two.plan --against` a plan of two devices too", "a plan of one device"),
    "DSV890": ("`torchrun --nproc-per-node 3` with a plan of two devices", "`--nproc-per-node 2`"),
    "DSV891": ("no memory left in the process of another stage", "a smaller `--chunk`"),
    "DSV892": ("a process that the system has killed", "all of them running"),
    "DSV893": ("processes that feed different prompts", "the same program on the same input in each"),
}
SITUATIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {**_TEXT, **_SPEC, **_FLOW, **_CUTS, **_WEIGHTS, **_PLANS, **_RUNS, **_GRAPHS, **_BENCHES}
)
