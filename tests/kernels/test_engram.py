"""Engram: the published hash examples, history across calls, and the gate."""

import math

import pytest
import torch

from dsv41c.kernels.reference.engram import engram_gate, engram_ids, engram_rows
from dsv41c.kernels.step import Step

from .harness import hash_constants

SMALL = [[3, 17, 17, 5, 63, 0, 2, 9]]
SMALL_ROWS = {  # position: rows of layer 1, rows of layer 4
    0: ([3, 78, 139, 230, 355, 454], [40, 110, 248, 337, 448, 602]),
    1: ([64, 89, 149, 253, 365, 448], [41, 186, 230, 400, 453, 568]),
    2: ([21, 118, 179, 235, 337, 416], [59, 193, 206, 380, 451, 617]),
    3: ([60, 95, 151, 288, 341, 423], [4, 166, 299, 348, 412, 620]),
    4: ([37, 104, 142, 279, 293, 429], [7, 197, 198, 312, 459, 619]),
    5: ([4, 105, 143, 229, 302, 446], [3, 194, 289, 343, 504, 616]),
    6: ([42, 70, 178, 264, 303, 411], [37, 119, 213, 373, 477, 528]),
    7: ([39, 109, 158, 217, 311, 420], [41, 175, 242, 334, 510, 561]),
}
DEAD_ROWS = SMALL_ROWS | {
    3: ([5, 109, 198, 236, 345, 446], [87, 122, 203, 310, 499, 600]),
    4: ([43, 97, 197, 232, 295, 391], [86, 134, 279, 403, 483, 600]),
    5: ([4, 105, 203, 235, 357, 389], [3, 194, 277, 387, 422, 577]),
    6: ([42, 70, 178, 264, 290, 440], [37, 119, 213, 373, 495, 623]),
}
# fmt: off
FLASH_ROWS = {
    (0, 0): [5702652, 24393184, 39183301, 61503783, 78984481, 90144770, 103724983, 121476532, 131476717, 152385926,
        164143652, 191599181, 198145581, 217419202, 238329687, 247482304, 257520185, 283540304, 288689443, 315264704,
        322314652, 348890037, 367865216, 380066193],
    (0, 1): [14361964, 29977809, 32716444, 61209771, 67456205, 84275051, 108494439, 120604547, 132225184, 150270452,
        174805952, 178895254, 193207923, 211610196, 226280582, 252505246, 261362261, 279862797, 301364059, 312864848,
        328367036, 349372619, 363873742, 372375971],
    (3, 0): [379248, 18191193, 40143441, 48303286, 65018668, 94184119, 102190568, 114357284, 141971515, 148328099,
        170128869, 184338629, 202869581, 208948308, 226083122, 245587010, 264890446, 278007708, 294118255, 313377065,
        332736162, 339553833, 352322499, 369009118],
    (3, 1): [4638160, 20030499, 39019663, 50538662, 65556331, 93556986, 111429532, 113837035, 128337784, 158306615,
        166270104, 183866395, 196055012, 210820288, 235831227, 243983564, 267085132, 283887288, 290917324, 315361578,
        335795770, 339583560, 359564397, 382608907],
    (5, 0): [5412672, 18319159, 35492627, 60880252, 74962984, 95657733, 98005115, 127351390, 142153462, 153634984,
        168077962, 186615269, 198681150, 218726457, 232309254, 243775088, 265142686, 278120778, 293135957, 310147307,
        322045083, 340727061, 354320225, 377966980],
    (5, 1): [6939818, 27264717, 45254833, 51915000, 79245924, 86868470, 108849060, 119840903, 131185467, 159090647,
        165406262, 191800224, 207191332, 208728953, 233857771, 252354450, 259157582, 286244492, 291336484, 304097474,
        331588067, 349181933, 367069321, 377937246],
}
# fmt: on


def constants(*arguments):
    return [torch.tensor(part) for part in hash_constants(*arguments)]


SMALL_CONSTANTS = constants((1, 4), 4, 2, 64, 64)
IDENTITY = torch.arange(64)


def hashed(ids, history, positions, token_map=IDENTITY, parts=SMALL_CONSTANTS, slots=(0,), pad_id=2):
    positions = torch.tensor(positions)
    step = Step(torch.tensor(slots), positions, int(positions.max()) + ids.shape[1])
    return engram_ids(step, ids, history, token_map, *parts, pad_id=pad_id)[0]


def test_small_constants():
    multipliers, primes, offsets = SMALL_CONSTANTS
    assert multipliers.tolist() == [
        [118650432209603643, 7493640653728489, 55676810147952557, 114555519428547269],
        [127364524771245009, 7800076361716407, 114038564133282483, 29348051253447937],
    ]
    assert primes.tolist() == [[67, 71, 73, 79, 83, 89], [97, 101, 103, 107, 109, 113]]
    assert offsets.tolist() == [[0, 67, 138, 211, 290, 373], [0, 97, 198, 301, 408, 517]]


@pytest.mark.parametrize("history", [-1, 40])  # what a slot held before a sequence's start must not matter
@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dead", [False, True])
def test_small_example(cut, dead, history):
    ids, want = torch.tensor(SMALL), DEAD_ROWS if dead else SMALL_ROWS
    if dead:
        ids[0, 3] = -1
    pool = torch.full((3, 3), history)
    parts = [hashed(ids[:, at : at + cut], pool, [at]) for at in range(0, 8, cut)]
    rows = torch.cat(parts, dim=1)[0]
    for position in range(8):
        assert rows[position].tolist() == list(want[position]), position
    assert pool[0].tolist() == ids[0, -3:].tolist()
    assert (pool[1:] == history).all()


def test_history_of_a_short_sequence_is_dead():
    pool = torch.full((2, 3), 40)
    hashed(torch.tensor([[9]]), pool, [0])
    assert pool[0].tolist() == [-1, -1, 9]


def test_flash_example():
    multipliers, primes, offsets = parts = constants((1, 14), 4, 8, 16000000, 99092)
    assert multipliers[0].tolist() == [76632096046245, 4839876093313, 35959672319349, 73987337458391]
    assert multipliers[1].tolist() == [67716810739261, 51510806800915, 30921347202721, 82619226485591]
    assert primes.sum(1).tolist() == [384006168, 384016682]
    assert offsets[1, -1] == 368015793
    ids = torch.tensor([[0, 5, 17, 99091, 2, 5]])
    rows = hashed(ids, torch.full((2, 3), -1), [0], torch.arange(99092), parts)
    for (position, layer), want in FLASH_ROWS.items():
        assert rows[0, position, layer].tolist() == want


def test_pad_id_and_ids_go_through_the_token_map():
    token_map = torch.arange(64).flip(0)
    raw = hashed(63 - torch.tensor(SMALL), torch.full((2, 3), -1), [0], token_map, pad_id=61)
    assert torch.equal(raw, hashed(torch.tensor(SMALL), torch.full((2, 3), -1), [0]))


def test_sessions_in_any_row_order_with_padding():
    generator = torch.Generator().manual_seed(2)
    lines = torch.randint(0, 64, (3, 9), generator=generator)
    alone = []
    for line in lines:
        pool = torch.full((2, 3), -1)
        alone.append(torch.cat([hashed(line[None, a:b], pool, [a]) for a, b in ((0, 4), (4, 9))], dim=1)[0])
    pool = torch.full((4, 3), 17)
    starts = [0, 0, 0]
    for rows, count in (([2, 0], 1), ([0, 1, 2], 3), ([1], 2), ([1, 0], 4), ([2], 5)):
        ids = torch.stack([lines[s, starts[s] : starts[s] + count] for s in rows] + [lines[0, :count]])
        out = hashed(ids, pool, [*[starts[s] for s in rows], 0], slots=(*rows, 3))
        for row, s in enumerate(rows):
            assert torch.equal(out[row], alone[s][starts[s] : starts[s] + count])
            starts[s] += count


def test_rows_are_side_by_side_in_column_order():
    class Table:
        def rows(self, ids):
            return torch.stack([ids * 2.0, ids * 2.0 + 1], dim=-1)

    ids = torch.arange(12).reshape(1, 1, 2, 6)
    assert engram_rows(ids, Table(), index=1).tolist() == [[[float(i) for i in range(12, 24)]]]


def gate(streams, keys, value=None, dtype=torch.float32, **options):
    """The kernel with a projection that hands over these keys [S, D] and value [D]."""
    streams, keys = torch.tensor(streams, dtype=dtype), torch.tensor(keys)
    value = torch.zeros(streams.shape[1]) if value is None else torch.tensor(value)
    wkv = torch.cat([keys, value[None]]).flatten()[:, None].to(dtype)
    ones = torch.ones(keys.shape)
    options = {"eps": 1e-20, "activation_quant": "none"} | options
    out, gates = engram_gate(streams[None, None], torch.ones(1, 1, 1), wkv, ones, ones, **options)
    return out[0, 0], gates[0, 0]


def test_gate_worked_value():
    """dim 4, h = (1, 2, -1, .5), key = (.5, -1, 2, 1): dot -0.96, gate 0.2729322840."""
    out, gates = gate([[1.0, 2.0, -1.0, 0.5]], [[0.5, -1.0, 2.0, 1.0]], [1.0, 0.0, -2.0, 0.0])
    assert gates.item() == pytest.approx(0.2729322840, abs=1e-7)
    assert out[0].tolist() == pytest.approx([1 + 0.2729322840, 2.0, -1 - 2 * 0.2729322840, 0.5], abs=1e-6)


def test_gate_of_zero_counts_as_positive():
    sigmoid = 1 / (1 + math.exp(-1e-3))
    _, gates = gate([[1.0, 0.0]], [[0.0, 1.0]])
    assert gates.item() == pytest.approx(sigmoid, abs=1e-7)  # 0.50025, not 0.5
    _, gates = gate([[-1.0, 0.0]], [[1e-10, 1.0]])
    assert gates.item() == pytest.approx(1 - sigmoid, abs=1e-7)  # just below


def test_gate_norms_are_per_stream_and_eps_is_tiny():
    streams, keys = [[1.0, 2.0], [1e-6, -2e-6]], [[0.5, 1.0], [3e-5, 1e-5]]
    _, gates = gate(streams, keys)
    for s in range(2):
        dot = sum(h * k for h, k in zip(streams[s], keys[s], strict=True))
        norms = math.sqrt(sum(h * h for h in streams[s]) / 2 * sum(k * k for k in keys[s]) / 2)
        dot = dot / norms / math.sqrt(2)
        want = 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)))
        assert gates[s].item() == pytest.approx(want, abs=1e-6)


def test_gate_rounds_once_in_bf16():
    streams, keys, value = [[1.0, 2.0, -1.0, 0.5]], [[0.5, -1.0, 2.0, 1.0]], [0.125, 3.0, 7.0, -1.0]
    low, _ = gate(streams, keys, value, torch.bfloat16)
    high, _ = gate(streams, keys, value)
    assert torch.equal(low, high.bfloat16())
