"""Folders as Qwen3-MoE, DeepSeek-V3 and Kimi K2.5 publish them, into four ranks on two meshes and back: exact weights, exact bytes."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, Qwen3MoeForCausalLM

from etude.errors import UserError
from etude.model.export import export_model
from etude.model.shards import FP8_BLOCK, Folder, Reader, allocate, empty_model, load_shards, local_box, local_tensor, targets
from etude.parallel import Degrees, DualMesh, apply_dual_mesh
from tests.distributed.ranks import run_threads
from tests.unit.model.published import publish, stored_in

WORLD = 4
WHOLE = Degrees(shard=4, efsdp=2, ep=2)  # two whole experts of eight on each rank
CUT = Degrees(replicate=2, shard=2, efsdp=4)  # six experts, their rows cut in four
REPLICAS = Degrees(replicate=2, shard=1, cp=2, expert_replicate=2, efsdp=1, ep=2)
FROZEN = ("vision_tower", "mm_projector")


def on_mesh(config: Any, degrees: Degrees) -> nn.Module:
    model = empty_model(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in FROZEN))
    apply_dual_mesh(model, DualMesh(degrees))
    allocate(model, "cpu")
    return model


def load_and_export(config: Any, degrees: Degrees, folder: Path, target: Path, options: dict[str, Any], piece_bytes: int) -> Any:
    """On one rank: its shards and report."""
    model = on_mesh(config, degrees)
    report = load_shards(model, folder, piece_bytes=piece_bytes)
    shards = {name: (local_box(tensor), local_tensor(tensor).clone()) for name, tensor in targets(model).items()}
    export_model(model, target, config=config, **options)
    return shards, report


CASES = [("qwen3", 8, WHOLE), ("qwen3", 6, CUT), ("deepseek", 8, REPLICAS), ("deepseek", 6, CUT), ("kimi", 8, WHOLE), ("kimi", 6, CUT)]


@pytest.mark.parametrize(("name", "experts", "degrees"), CASES, ids=lambda value: str(getattr(value, "ep", value)))
def test_each_rank_reads_what_it_owns_and_together_they_write_the_same_folder(tmp_path, name, experts, degrees):
    _, expected = publish(name, tmp_path / "source", experts)
    config = AutoConfig.from_pretrained(tmp_path / "source")
    source, target = tmp_path / "source", tmp_path / "target"
    ranks = run_threads(load_and_export, WORLD, config, degrees, source, target, {"like": source}, 4096)

    for shards, _ in ranks:
        assert shards.keys() == expected.keys()
        for key, (box, local) in shards.items():
            assert torch.equal(local, expected[key][tuple(slice(low, high) for low, high in box)]), key
    for key, full in expected.items():
        boxes = {shards[key][0] for shards, _ in ranks}
        assert sum(int(torch.tensor([high - low for low, high in box]).prod()) for box in boxes) == full.numel(), key

    before, after = stored_in(source), stored_in(target)
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert tensor.dtype == after[key].dtype, key
        assert torch.equal(tensor, after[key]), key
    indices = [json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"] for folder in (source, target)]
    assert indices[0] == indices[1]
    text = [json.loads((folder / "config.json").read_text()).get("text_config", {}) for folder in (source, target)]
    assert text[0].get("quantization_config") == text[1].get("quantization_config")
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_a_rank_holds_its_shards_and_one_expert_of_a_plain_folder(tmp_path):
    config, expected = publish("qwen3", tmp_path / "source", 8)
    options = {"like": tmp_path / "source"}
    model_bytes = sum(tensor.nbytes for tensor in expected.values())
    for _, report in run_threads(load_and_export, WORLD, config, WHOLE, tmp_path / "source", tmp_path / "target", options, 2048):
        assert report.local_bytes == model_bytes // 4
        assert report.read_bytes == report.local_bytes  # fp32 in the file: nothing is read twice, nothing that is not owned
        assert report.peak_bytes == report.local_bytes + 16 * 32 * 4  # an expert's gate_proj, or 16 rows of the embeddings
        assert report.unused == ()


def test_a_rank_holds_its_shards_and_one_piece_of_a_packed_folder(tmp_path):
    config, expected = publish("kimi", tmp_path / "source", 8)
    options = {"like": tmp_path / "source"}
    parameters = sum(tensor.nbytes for key, tensor in expected.items() if "e_score" not in key)
    stored = stored_in(tmp_path / "source")
    read_whole = sum(tensor.nbytes for key, tensor in stored.items() if "wqkv" in key or "e_score" in key)
    cut = sum(tensor.nbytes for key, tensor in stored.items() if not re.search("wqkv|e_score|_shape", key))
    for _, report in run_threads(load_and_export, WORLD, config, WHOLE, tmp_path / "source", tmp_path / "target", options, 4096):
        assert report.local_bytes == parameters // 4 + 8 * 4  # the router's bias is on every rank
        assert report.read_bytes == cut // 4 + read_whole
        assert report.peak_bytes == report.local_bytes + 16 * 64 * (2 + 4)  # the projector's 16 rows: bf16 of the file, fp32 of the shard
    packed_expert = 32 * 2 * 4 + 32 * 1 * 2 + 32 * 16 * 4  # down_proj [32, 16]: entries, scales, floats
    for _, report in run_threads(load_and_export, WORLD, config, WHOLE, tmp_path / "source", tmp_path / "target", options, 512):
        assert report.peak_bytes == report.local_bytes + max(3 * 14 * 14 * (2 + 4), packed_expert // 4)  # one row of 588 is above 512 bytes


def test_without_a_source_the_folder_is_what_transformers_reads(tmp_path):
    config, expected = publish("qwen3", tmp_path / "source", 8)
    run_threads(load_and_export, WORLD, config, WHOLE, tmp_path / "source", tmp_path / "target", {"file_bytes": 60_000}, 1 << 20)
    loaded = Qwen3MoeForCausalLM.from_pretrained(tmp_path / "target").state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in expected.items())
    assert len(list((tmp_path / "target").glob("model-*-of-00004.safetensors"))) == 4


def test_another_dtype_unpacks_the_experts_and_leaves_the_router_bias(tmp_path):
    _, expected = publish("kimi", tmp_path / "source", 8)
    config = AutoConfig.from_pretrained(tmp_path / "source")
    options = {"like": tmp_path / "source", "dtype": torch.bfloat16}
    run_threads(load_and_export, WORLD, config, WHOLE, tmp_path / "source", tmp_path / "target", options, 1 << 20)
    stored = stored_in(tmp_path / "target")
    assert not [key for key in stored if "packed" in key]
    assert "quantization_config" not in (tmp_path / "target" / "config.json").read_text()
    expert = stored["language_model.model.layers.1.mlp.experts.3.down_proj.weight"]
    assert torch.equal(expert, expected["model.language_model.layers.1.mlp.experts.down_proj"][3].bfloat16())
    assert {str(tensor.dtype) for key, tensor in stored.items() if "e_score" not in key} == {"torch.bfloat16"}
    assert stored["language_model.model.layers.1.mlp.gate.e_score_correction_bias"].dtype == torch.float32


def test_fp8_blocks_are_scaled_wherever_the_rows_begin(tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(300, 260, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 3, generator=generator)
    save_file({"a.weight": weight, "a.weight_scale_inv": scale}, tmp_path / "model.safetensors")
    folder = Folder(tmp_path)
    (found,) = folder.weights().values()
    assert (found.packing, found.shape) == ("fp8", (300, 260))
    expected = torch.stack(
        [
            torch.stack([weight[r, c].float() * scale[r // FP8_BLOCK, c // FP8_BLOCK] for c in range(0, 260, 13)])
            for r in range(100, 290, 19)
        ]
    )
    with Reader(folder, piece_bytes=50 * 260 * 4) as reader:
        parts = [values.clone() for _, values in reader.pieces(found, ((100, 290), (0, 260)), torch.float32)]
    assert [len(part) for part in parts] == [50, 50, 50, 40]
    assert torch.equal(torch.cat(parts)[::19, ::13], expected)


def one_rank(function: Callable[..., Any], *arguments: Any) -> Any:
    return run_threads(function, 1, *arguments)[0]


def failure(config: Any, folder: Path) -> str:
    assert dist.get_world_size() == 1
    with pytest.raises(UserError) as caught:
        load_shards(on_mesh(config, Degrees()), folder)
    return str(caught.value)


def test_what_does_not_fit_is_named(tmp_path):
    config, _ = publish("qwen3", tmp_path / "source", 8)
    stored = stored_in(tmp_path / "source")

    def with_weights(weights: dict[str, Tensor]) -> str:
        folder = tmp_path / "other"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        save_file(weights, folder / "model.safetensors")
        return one_rank(failure, config, folder)

    expert = "model.layers.1.mlp.experts.7.up_proj.weight"
    assert "some are missing" in with_weights({key: tensor for key, tensor in stored.items() if key != expert})
    assert "1 missing, e.g. model.norm.weight" in with_weights(
        {key: tensor for key, tensor in stored.items() if key != "model.norm.weight"}
    )
    assert "config.json is of another model" in with_weights({**stored, "lm_head.weight": torch.zeros(321, 32)})
    file = tmp_path / "other" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    assert "is not a whole safetensors file (it ends before its tensors do)" in one_rank(failure, config, tmp_path / "other")
    file.write_bytes(struct.pack("<Q", 5) + b"torn")
    assert "is not a whole safetensors file" in one_rank(failure, config, tmp_path / "other")
    file.unlink()
    assert "has no weights" in one_rank(failure, config, tmp_path / "other")


def refused_export(config: Any, folder: Path) -> str:
    model = on_mesh(config, Degrees())
    load_shards(model, folder)
    model.requires_grad_(True)
    with pytest.raises(UserError) as caught:
        export_model(model, folder.with_name("target"), config=config, like=folder)
    return str(caught.value)


def test_a_trained_vision_tower_cannot_go_back_into_fused_weights(tmp_path):
    config, _ = publish("kimi", tmp_path / "source", 8)
    message = one_rank(refused_export, config, tmp_path / "source")
    assert re.search(r"q_proj\.\w+ was trained, and the folder's layout keeps it fused with others \(\S+wqkv\.\w+\)", message)
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def header(about: Any, data: bytes = b"") -> bytes:
    text = json.dumps(about).encode() if not isinstance(about, bytes) else about
    return struct.pack("<Q", len(text)) + text + data


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff" * 100, header(b"{"), header([]), header({"a": 3}), header({"a": {**ONE, "dtype": "F4"}}, b"8" * 8), header({"a": ONE}),
        header({"a": {**ONE, "shape": [3]}}, b"8" * 8), header({"a": {**ONE, "data_offsets": [-8, 0]}}, b"8" * 8),
        header({"a": {**ONE, "data_offsets": 1}}), header({"a": {**ONE, "shape": ["x"]}}, b"8" * 8), header(b"\xff\xff"),
    ],
)  # fmt: skip
def test_a_file_whose_header_is_not_true_is_one_line(tmp_path, data):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is not a whole safetensors file .*; fetch it again") as caught:
        Folder(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"weight_map": 3}', b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": "../x"}}', b"\xff"]
)
def test_an_index_that_is_none_is_one_line(tmp_path, data):
    (tmp_path / "model.safetensors.index.json").write_bytes(data)
    with pytest.raises(UserError, match=r"index\.json is no index of weights"):
        Folder(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a.weight_packed": torch.zeros(2, 1, dtype=torch.int32)}, "a.weight_scale is missing"),
        ({"a.weight_packed": torch.zeros(2, 1, dtype=torch.int32), "a.weight_scale": torch.zeros(3, 1)}, r"has shape \(3, 1\)"),
        ({"a.weight": torch.zeros(130, 2), "a.weight_scale_inv": torch.zeros(1, 1)}, r"has shape \(1, 1\), expected \(2, 1\)"),
    ],
)
def test_scales_that_do_not_fit_are_named(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=message):
        Folder(tmp_path).weights()
