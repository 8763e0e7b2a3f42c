"""The token map: keys by the release's rule, and with it the engram rows of the golden."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.token_map import normaliser, token_keys, token_map

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(GOLDEN / "tiny" / "tokenizer.json"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Word", "word"),
        (" word", "word"),
        ("\t", " "),
        ("\r\n \t", " "),
        ("  a \n b ", "a b"),
        ("", ""),
        ("É", "e"),
        ("ﬁ", "fi"),
        ("①", "1"),
        ("ｆｕｌｌ", "full"),
        ("कि", "क"),  # a spacing combining mark (Mc), dropped like the others
        ("ΟΔΟΣ", "οδοσ"),  # letter by letter: no final sigma
        ("\u0301", ""),
        ("\x1c", "\x1c"),  # Python would strip it
        ("\u2003x", "x"),
        ("\x0b", ""),
    ],
)
def test_normaliser(text, key):
    assert normaliser()(text) == key


def test_golden_tokenizer(tokenizer):
    compressed = token_map(tokenizer, 512, 426)
    assert max(compressed) == 425 and len(set(compressed)) == 426
    assert compressed[2] == 2
    assert all(rank <= token for token, rank in enumerate(compressed))


def test_keys_that_are_no_text_or_nothing(tokenizer):
    keys, vocabulary = token_keys(tokenizer, 512), tokenizer.get_vocab()
    assert keys[vocabulary["Ã"]] == "Ã"  # half a character: the vocabulary's own string
    assert keys[vocabulary["A"]] == keys[vocabulary["a"]] == "a"
    assert keys[vocabulary["Ċ"]] == keys[vocabulary["Ġ"]] == " "
    assert keys[0] == "<|begin▁of▁sentence|>"


@pytest.mark.parametrize("vocab_size", [511, 513, 100_000])
def test_wrong_vocabulary(tokenizer, vocab_size):
    with pytest.raises(UserFault) as fault:
        token_map(tokenizer, vocab_size)
    assert fault.value.diagnostics[0].code == "DSV740"


def test_gap_in_the_ids(tokenizer):
    document = json.loads(tokenizer.to_str())
    vocab = document["model"]["vocab"]
    last = max(vocab, key=vocab.get)
    vocab[last] = 600
    with pytest.raises(UserFault) as fault:
        token_map(Tokenizer.from_str(json.dumps(document)), 512)
    assert dict(fault.value.diagnostics[0].facts)["first id without a token"] == "511"


def test_wrong_compressed_vocabulary(tokenizer):
    with pytest.raises(UserFault) as fault:
        token_map(tokenizer, 512, 425)
    assert fault.value.diagnostics[0].code == "DSV741"


def _primes(layers, sizes, heads, start):
    """Per layer, n-gram size by size: the next primes from `start` on that were never handed out."""
    seen, result = set(), []
    for _ in layers:
        columns = []
        for _ in sizes:
            number = start - 1
            for _ in range(heads):
                number += 1
                while number in seen or any(number % d == 0 for d in range(2, int(number**0.5) + 1)):
                    number += 1
                seen.add(number)
                columns.append(number)
        result.append(columns)
    return result


def test_engram_rows_of_the_golden(tokenizer):
    golden = load_file(GOLDEN / "f32-act_none-kv_none.safetensors")
    compressed = token_map(tokenizer, 512, 426)
    ids = [compressed[token] for token in golden["ids"].tolist()]
    pad, layers = compressed[2], (1, 4)
    primes = _primes(layers, (2, 3, 4), 2, 64)
    rows = []
    for layer, columns in zip(layers, primes, strict=True):
        bound = max(1, (2**63 - 1) // 426 // 2)
        drawn = np.random.default_rng(10007 * layer).integers(0, bound, size=4, dtype=np.int64)
        multipliers = [int(number) * 2 + 1 for number in drawn]
        for position in range(len(ids)):
            back = [ids[position - i] if position >= i else pad for i in range(4)]
            mixed, row = back[0] * multipliers[0], []
            for i in range(1, 4):
                mixed ^= back[i] * multipliers[i]
                row += [mixed % columns[k] + sum(columns[:k]) for k in (2 * i - 2, 2 * i - 1)]
            rows.append(row)
    expected = np.array(rows).reshape(len(layers), len(ids), -1).transpose(1, 0, 2)
    assert (golden["prefill64.engram_ids"] == expected).all()
