"""The registry covers the catalogue, kernels take what the catalogue says, and nothing can be changed."""

import inspect

import pytest
import torch

from dsv41c.kernels.catalog import CARRIERS, FAMILIES, OPS
from dsv41c.kernels.reference.embed import embed, head
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.registry import kernels_for, variants


@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_has_a_reference_kernel(family):
    kernels = kernels_for(family)
    for op in OPS:
        assert callable(getattr(kernels, op, None)) == (op not in CARRIERS)
    native = ("triton",) if family in ("cuda", "rocm") else ()
    assert variants(family) == ("reference", "static", *native)


@pytest.mark.parametrize("variant", ["reference", "static"])
@pytest.mark.parametrize("op", [op for op in OPS if op not in CARRIERS])
def test_signatures_follow_the_catalogue(op, variant):
    kind = OPS[op]
    parameters = inspect.signature(getattr(kernels_for("cpu", variant), op)).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    required = [port.name for port in kind.reads if not port.optional]
    assert len(positional) == kind.uses_step + len(required) + len(kind.weights)
    assert positional[kind.uses_step :][: len(required)] == required
    optional = [port.name for port in kind.reads if port.optional]
    assert by_name == [*optional, *kind.optional_weights, *kind.attrs, *kind.optional_attrs]


def test_unknown_family_or_variant_names_what_exists():
    with pytest.raises(ValueError, match="cpu: reference"):
        kernels_for("tpu")
    with pytest.raises(ValueError, match="no `triton` kernels for family `cpu`"):
        kernels_for("cpu", "triton")


def test_kernels_cannot_be_changed():
    kernels = kernels_for("cpu")
    with pytest.raises(AttributeError, match="cannot be changed"):
        kernels.mix = None
    with pytest.raises(AttributeError, match="cannot be changed"):
        del kernels.mix
    known = "all_gather, all_reduce, attend, "
    with pytest.raises(AttributeError, match=f"no reference kernel for op `transfer` on cpu; there are: {known}"):
        _ = kernels.transfer
    assert "mix" in dir(kernels)


def test_embed_norm_and_head():
    table = torch.arange(12.0).reshape(4, 3).bfloat16()
    streams, pre = embed(torch.tensor([[2, 0]]), table, streams=2)
    assert streams.tolist() == [[[[6.0, 7, 8]] * 2, [[0.0, 1, 2]] * 2]]
    assert streams.dtype == torch.bfloat16
    assert pre.tolist() == [[[1.0, 0.0]] * 2]
    x = torch.tensor([[[1e-8, -2e-8, 2e-8]]])
    want = x / (9e-16 / 3) ** 0.5 * torch.tensor([1.0, 2.0, 3.0])
    assert torch.allclose(norm(x, torch.tensor([1.0, 2.0, 3.0]), eps=1e-20), want, rtol=1e-4)
    assert torch.equal(norm(torch.zeros(1, 1, 3), torch.ones(3), eps=1e-20), torch.zeros(1, 1, 3))
    logits = head(x.bfloat16(), torch.ones(5, 3))
    assert (logits.dtype, logits.shape) == (torch.float32, (1, 1, 5))
