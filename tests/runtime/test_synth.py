"""Random checkpoints: official layout, the plan's own vocabulary, sane values, the same bytes again."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.reference.encodings import dense
from dsv41c.runtime.synth import synth
from dsv41c.runtime.synth.layout import plan_shards, plan_weights
from dsv41c.runtime.synth.tokenizer import BOS, CHAT, tokenizer_files
from dsv41c.runtime.token_map import token_map
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.headers import open_checkpoint
from dsv41c.runtime.weights.match import match

HERE = Path(__file__).resolve().parent
TINY = HERE.parent / "golden" / "tiny"
_spec = importlib.util.spec_from_file_location("hand_made_plans", HERE / "weights" / "hand_made.py")
plans = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plans)
CONFIG = json.loads((TINY / "config.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def plan():
    return plans.tiny(TINY)


@pytest.fixture(scope="module")
def made(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("synth") / "made"
    report = synth(plan, CONFIG, folder, seed=7)
    return folder, report


def fault(*args, **kwargs):
    with pytest.raises(UserFault) as caught:
        synth(*args, **kwargs)
    return caught.value.diagnostics[0]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_has_what_the_golden_has(made):
    """Same tensors, same dtypes and shapes, same size, as the golden checkpoint of the same plan."""
    folder, report = made
    official, ours = open_checkpoint(TINY).tensors, open_checkpoint(folder).tensors
    assert {(t.name, t.dtype, t.shape) for t in ours.values()} == {
        (t.name, t.dtype, t.shape) for t in official.values()
    }
    assert (report.tensors, report.bytes, report.shards) == (821, 4750180, 2)
    assert json.loads((folder / "config.json").read_text()) == CONFIG


def test_other_readers_take_it(made):
    folder, _ = made
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as reader:
            assert reader.keys()


def test_it_matches_and_values_are_sane(made, plan):
    folder, _ = made
    assert not match(plan, open_checkpoint(folder)).diagnostics
    weights = bind(plan, folder)
    for name, width in (("layers.0.wq_b", 96), ("layers.3.wo_a", 256), ("head", 128), ("layers.1.engram_wkv", 192)):
        assert weights[name].isfinite().all()
        assert math.isclose(weights[name].std(), width**-0.5, rel_tol=0.05)
    expert = dense(weights["layers.5.experts_w1"][3], torch.float32)
    assert math.isclose(expert.std(), 128**-0.5, rel_tol=0.08) and abs(expert.mean()) < 0.01
    assert math.isclose(weights["layers.4.engram_table"].rows(torch.arange(630)).std(), 1, rel_tol=0.05)
    assert math.isclose(weights["final_norm"].mean(), 1, abs_tol=0.05)


@pytest.mark.parametrize("width", [64, 96, 128, 2304, 4000, 5120])
def test_random_fp4_has_the_wanted_deviation(tmp_path, width):
    symbols = {"inter_dim": 32, "dim": width, "experts": 8}
    plan = plans.manifest([plans.entry("experts_w1", symbols, 0)])
    synth(plan, {}, tmp_path / "x")
    values = torch.stack([dense(item, torch.float32) for item in bind(plan, tmp_path / "x")["layers.0.experts_w1"]])
    assert math.isclose(values.std(), width**-0.5, rel_tol=0.1)


def test_same_bytes_elsewhere_other_bytes_for_another_seed(made, plan, tmp_path):
    folder, _ = made
    (tmp_path / "deep").mkdir()
    synth(plan, CONFIG, tmp_path / "deep" / "again", seed=7)
    synth(plan, CONFIG, tmp_path / "other", seed=8)
    same, other = contents(tmp_path / "deep" / "again"), contents(tmp_path / "other")
    assert same == contents(folder)
    shards = [name for name in same if name.endswith(".safetensors")]
    assert all(same[name] != other[name] for name in shards)


def test_pieces_do_not_change_what_is_written_where(plan, made, tmp_path, monkeypatch):
    """Small pieces, as large weights have: every element is still written, and decodes to the same kind of values."""
    monkeypatch.setattr("dsv41c.runtime.synth.values.CHUNK", 32 * 128)
    synth(plan, CONFIG, tmp_path / "x", seed=7)
    weights = bind(plan, tmp_path / "x")
    assert math.isclose(weights["layers.0.wo_b"][96:].std(), 64**-0.5, rel_tol=0.1)
    assert weights["embed"].std(1).min() > 0.5


def test_progress_reaches_the_whole(plan, tmp_path):
    seen = []
    synth(plan, CONFIG, tmp_path / "x", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1]


def test_too_large(plan, tmp_path):
    diagnostic = fault(plan, CONFIG, tmp_path / "x", max_bytes=4750179)
    assert diagnostic.code == "DSV750" and "4,750,180" in diagnostic.message
    assert not list(tmp_path.iterdir())
    huge = plans.manifest([plans.entry("engram_table", {"engram_rows": 384006168, "engram_head_dim": 256}, 1)])
    assert "94.4 GiB" in fault(huge, {}, tmp_path / "x").message


@pytest.mark.parametrize("kind", ["file", "link", "full"])
def test_occupied(plan, tmp_path, kind):
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "link":
        out.symlink_to(tmp_path / "nowhere")
    else:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    assert fault(plan, CONFIG, out).code == "DSV751"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_will_do(plan, tmp_path):
    (tmp_path / "out").mkdir()
    synth(plan, CONFIG, tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_stays_behind(plan, tmp_path, monkeypatch, error):
    def full(weight, seed):
        raise error

    monkeypatch.setattr("dsv41c.runtime.synth.checkpoint.pieces", full)
    with pytest.raises((UserFault, KeyboardInterrupt)) as caught:
        synth(plan, CONFIG, tmp_path / "out")
    if isinstance(error, OSError):
        assert "no space left" in caught.value.diagnostics[0].message
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way_of_the_folder(plan, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert fault(plan, CONFIG, tmp_path / "file" / "out").code == "DSV751"


def test_impossible_encodings(tmp_path):
    symbols = {"inter_dim": 8, "dim": 33, "experts": 2}
    diagnostic = fault(plans.manifest([plans.entry("experts_w1", symbols, 0)]), {}, tmp_path / "x")
    assert diagnostic.code == "DSV753" and "33" in diagnostic.message


@pytest.mark.parametrize("stored", ["bf16", "f32", "fp8_32x32"])
def test_other_declared_encodings(tmp_path, stored):
    symbols = {"inter_dim": 40, "dim": 72, "experts": 2}
    plan = plans.manifest([plans.entry("experts_w1", symbols, 0, stored={**plans.STORED, "experts": stored})])
    synth(plan, {}, tmp_path / "x")
    assert dense(bind(plan, tmp_path / "x")["layers.0.experts_w1"][1], torch.float32).shape == (40, 72)


def test_giant_among_dwarfs_still_gives_two_shards():
    big = plans.entry("embed", {"vocab_size": 1 << 20, "dim": 1024})
    small = plans.entry("final_norm", {"dim": 4})
    for entries in ([big, small], [small, big], [small, big, small]):
        weights = plan_weights(plans.manifest(entries))
        shards = plan_shards(weights)
        assert len(shards) >= 2 and [w for s in shards for w in s.weights] == weights


def tokenizer(vocab, compressed, tokens=(0, 1, 2)):
    files = tokenizer_files(plans.manifest([], vocab=vocab, compressed=compressed, tokens=tokens))
    return Tokenizer.from_str(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"])


VOCABULARIES = [
    (512, 426),
    (512, 512),
    (512, 300),
    (512, 9),
    (300, 270),
    (96, 80),
    (64, 48),
    (64, 4),
    (20, 20),
    (4, 4),
    (3, 3),
]


@pytest.mark.parametrize(("vocab", "compressed"), [*VOCABULARIES, (5000, 3800), (4000, 20)])
def test_vocabulary_is_exact(vocab, compressed):
    made, _ = tokenizer(vocab, compressed)
    compressed_ids = token_map(made, vocab, compressed)
    assert compressed_ids[2] == 2


@pytest.mark.parametrize(("vocab", "compressed"), [(512, 426), (1000, None), (300, 264), (5000, 3800)])
def test_text_survives(vocab, compressed):
    made, config = tokenizer(vocab, compressed)
    for text in ("The quick brown fox: 12 + 30 = 42!\n\tReally?", "".join(map(chr, range(128))), "naïve ½ 日本 😀"):
        assert made.decode(made.encode(text).ids) == text
    chat = BOS + CHAT[0] + "hi" + CHAT[1] + CHAT[4]
    ids = made.encode(chat).ids
    assert made.decode(ids, skip_special_tokens=False) == chat and ids[0] == 0
    assert config["bos_token"] == BOS


def test_special_ids_follow_the_plan():
    made, config = tokenizer(512, 426, tokens=(500, 1, 1))
    assert made.token_to_id(BOS) == 500 and made.token_to_id(config["eos_token"]) == 1
    assert config["pad_token"] == config["eos_token"]
    token_map(made, 512, 426)


@pytest.mark.parametrize(
    ("vocab", "compressed", "tokens"),
    [
        (512, 513, (0, 1, 2)),
        (512, 2, (0, 1, 2)),
        (512, 3, (0, 1, 2)),
        (512, 426, (0, 1, 512)),
        (512, 426, (-1, 1, 2)),
        (2, 2, (0, 1, 2)),
    ],
)
def test_impossible_vocabularies(vocab, compressed, tokens):
    with pytest.raises(UserFault) as caught:
        tokenizer(vocab, compressed, tokens)
    assert caught.value.diagnostics[0].code == "DSV752"
