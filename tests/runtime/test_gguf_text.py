"""The tokenizer in a GGUF file: the same ids and text as the tokenizer.json that it was made from."""

import random

import pytest
from golden_tiny import TINY, plan

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.constants import make_constants
from dsv41c.runtime.run import Prompt, RunOptions, run_plan
from dsv41c.runtime.text import Text, load_tokenizer
from dsv41c.runtime.weights.gguf.header import Value
from dsv41c.runtime.weights.gguf.tokenizer import gguf_tokenizer, read_keys

from .weights import gguf_made as made

TEXTS = (
    "Once upon a time",
    "  two  blanks\n\nlines\tand tabs ",
    "it's 12345 o'clock",
    "naïve Ünïcödé 你好 🙂",
    "",
    "<think>",
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return made.write(tmp_path_factory.mktemp("text") / "x.gguf", made.tensors("a"), made.keys("a"))


def test_ids_and_text_are_those_of_the_release_layout(file):
    ours, theirs = (Text.load(place, plan().manifest) for place in (file, TINY))
    rng = random.Random(3)
    noise = ["".join(chr(rng.randrange(1, 0x2FFF)) for _ in range(40)) for _ in range(50)]
    for text in (*TEXTS, *noise):
        ids = theirs.encode_prompt(text)
        assert ours.encode_prompt(text) == ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert all(ours.decode([token]) == theirs.decode([token]) for token in range(512))
    name = "<｜User｜>"
    assert ours.encode_prompt(f"a{name}b") == theirs.encode_prompt(f"a{name}b")
    assert ours.tokenizer.token_to_id(name) == theirs.tokenizer.token_to_id(name)


def test_the_token_map_is_the_same(file):
    wanted = [entry.id for entry in plan().manifest.constants if entry.kind == "token_map"]
    ours, theirs = (make_constants(plan().manifest, place, wanted) for place in (file, TINY))
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)


def test_a_run_of_text(file):
    options = RunOptions(n=4)
    results = [run_plan(plan(), place, Prompt(text="Once upon a time"), options) for place in (file, TINY)]
    assert results[0].text == results[1].text and results[0].ids == results[1].ids


@pytest.fixture(scope="module")
def keys(file):
    """The keys of the file with some of its tokenizer changed."""
    whole, _ = read_keys(file)

    def changed(**changes):
        kinds = {name: "string" if isinstance(value, str | list) else "i32" for name, value in changes.items()}
        made_of = {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
        return dict(whole) | {
            f"tokenizer.ggml.{name}": Value(kinds[name], not isinstance(value, str), value)
            for name, value in made_of.items()
        }

    return changed


def test_the_models_own_rule_splits_digits_by_three(keys):
    """And words from marks: the rule of the release, by the name that its converter gives it."""
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), 0x120)]
    merges = ["1 2", "12 3", "123 4", "a b", "Ġ ab"]
    tokens = [*letters, *("".join(merge.split(" ")) for merge in merges)]
    for pre, expected in (("joyai-llm", ["123", "4", "Ġab", "!"]), ("gpt-2", ["1234", "Ġab", "!"])):
        tokenizer = gguf_tokenizer(keys(tokens=tokens, merges=merges, pre=pre, token_type="none"), "x.gguf")
        assert tokenizer.encode("1234 ab!", add_special_tokens=False).tokens == expected


WRONG = {
    "another kind": ({"model": "llama"}, "`llama`, expected `gpt2`"),
    "an unknown rule": ({"pre": "qwen9"}, "`qwen9`, which is unknown here; known are default"),
    "a merge of three": ({"merges": ["a b c"]}, "has `a b c`, whose parts and whole are not all tokens"),
    "a merge into nothing": ({"merges": ["qq zz"]}, "has `qq zz`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_gives_no_tokenizer(name, keys):
    changes, said = WRONG[name]
    with pytest.raises(UserFault) as raised:
        gguf_tokenizer(keys(**changes), "x.gguf")
    (found,) = raised.value.diagnostics
    assert found.code == "DSV769" and said in found.message and found.span.file == "x.gguf"


def test_faults_come_together():
    with pytest.raises(UserFault) as raised:
        gguf_tokenizer({}, "x.gguf")
    assert [found.code for found in raised.value.diagnostics] == ["DSV769"] * 3


def test_ids_run_without_a_known_rule(tmp_path):
    file = made.write(tmp_path / "x.gguf", made.tensors("a"), made.keys("a") | {".tokenizer.ggml.pre": "of-tomorrow"})
    result = run_plan(plan(), file, Prompt(ids=[0, 5, 6]), RunOptions(n=2))
    assert len(result.ids) == 2 and result.text is None
    with pytest.raises(UserFault) as raised:
        run_plan(plan(), file, Prompt(text="hi"), RunOptions(n=2))
    assert raised.value.diagnostics[0].code == "DSV769"


def test_a_vocabulary_of_another_model(file):
    with pytest.raises(UserFault) as raised:
        load_tokenizer(file, 513)
    assert raised.value.diagnostics[0].code == "DSV740"
