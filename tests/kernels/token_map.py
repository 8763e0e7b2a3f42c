"""Raw token id -> compressed id of a tokenizer.json, by the checkpoint's rules and the `tokenizers` package."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers

_SPACE = "\ue000"  # stands for a lone space while strip runs


def compressed_ids(tokenizer_file: Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    normalise = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _SPACE),
            normalizers.Strip(),
            normalizers.Replace(_SPACE, " "),
        ]
    )
    first: dict[str, int] = {}
    ids = []
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if "\ufffd" in text else normalise.normalize_str(text) or text
        ids.append(first.setdefault(key, len(first)))
    return ids
