"""What a GGUF file says of the engram hash against what a plan derives: constants, and the map of its tokens."""

from __future__ import annotations

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.weights.checkpoint import Checkpoint


def contradictions(manifest: Manifest, checkpoint: Checkpoint) -> list[Diagnostic]:
    """Findings where a file was written for another hash. Derives the token map from the file's own tokenizer."""
    facts, engram = checkpoint.gguf, manifest.engram
    if facts is None or engram is None or not facts.tables:
        return []
    findings = list(checkpoint.located(facts.contradictions(engram.layers)))
    if facts.integers("token_map") is None:
        return findings
    from dsv41c.runtime.token_map import check_vocabulary, token_map
    from dsv41c.runtime.weights.gguf.tokenizer import gguf_tokenizer

    try:
        tokenizer = gguf_tokenizer(facts.keys, str(checkpoint.folder / facts.file), text=False)
        check_vocabulary(tokenizer, manifest.model.vocab_size)
        derived = token_map(tokenizer, manifest.model.vocab_size, engram.compressed_vocab_size)
    except UserFault as fault:
        return [*findings, *fault.diagnostics]
    return [*findings, *checkpoint.located(facts.wrong_token_map(derived))]
