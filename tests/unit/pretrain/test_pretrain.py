"""Pretraining on one process: schedules, what the loss counts, phases, and mistakes that are told in one line."""

import json
import math

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from etude.corpus import Document
from etude.errors import UserError
from etude.metrics import read_metrics
from etude.model.tiny import tiny_folder
from etude.pretrain.config import Phase, pretrain_config
from etude.pretrain.data import ChatEncoder
from etude.pretrain.loop import learning_rate_of, run_pretrain, sparkline, summed_loss
from etude.view import Silent
from tests.unit.model.published import publish, stored_in
from tests.unit.pretrain.world import lay_down, values


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = lay_down(tmp_path_factory.mktemp("world"), files=6, lines=9, weights=True)
    rows = [{"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"{i}!"}]} for i in range(12)]
    (folder / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def config(world, phases, **more):
    return pretrain_config(values(world, phases, **more))


def bulk(world, **more):
    return {"steps": 2, "seq_len": 64, "batch": 2, "lr": 1e-2, "sources": [{"path": str(world / "code")}], **more}


class Told(Silent):
    def __init__(self):
        self.stages, self.notes = [], []

    def stage(self, name, total=None):
        self.stages.append(name)

    def note(self, text):
        self.notes.append(text)


def test_three_phases_end_in_a_folder_that_transformers_reads(world, tmp_path):
    chat = {"name": "answers", "supervised": True, "fresh_optimizer": True, "sources": [{"path": str(world / "chat.jsonl")}]}
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    phases = [bulk(world, steps=6), bulk(world, name="long", seq_len=128, rope=yarn), bulk(world, **chat)]
    view = Told()
    result = run_pretrain(config(world, phases), tmp_path / "run", view=view)
    model, info = AutoModelForCausalLM.from_pretrained(result.model, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.config.rope_parameters["factor"] == 2.0
    assert model.config.max_position_embeddings == 128
    assert Tokenizer.from_file(str(result.model / "tokenizer.json")).get_vocab_size() <= model.config.vocab_size == 320
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl", "pretrain")
    assert [row["phase"] for row in rows] == ["bulk"] * 6 + ["long"] * 2 + ["answers"] * 2
    assert rows[5]["loss"] < rows[0]["loss"] - 0.5
    assert abs(rows[0]["loss"] - math.log(320)) < 0.1
    assert result.losses == tuple(row["loss"] for row in rows)
    assert [stage for stage in view.stages if stage.startswith("phase")] == [
        "phase 1 of 3: bulk", "phase 2 of 3: long", "phase 3 of 3: answers",
    ]  # fmt: skip
    assert "gate_up_proj" in (tmp_path / "run" / "routing.txt").read_text()


def test_a_folder_is_continued_with_its_own_weights_and_dtypes(world, tmp_path):
    before = AutoModelForCausalLM.from_pretrained(world / "tiny").state_dict()
    model = {"path": str(world / "tiny"), "freeze": ["layers"]}
    result = run_pretrain(config(world, [bulk(world, steps=1)], model=model, optimizer={"name": "adamw"}), tmp_path / "run")
    after = AutoModelForCausalLM.from_pretrained(result.model).state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"}
    assert after["lm_head.weight"].data_ptr() == after["model.embed_tokens.weight"].data_ptr()


def test_a_packed_model_with_a_vision_tower_is_trained_and_comes_back_packed_with_the_tower_untouched(world, tmp_path):
    source = tmp_path / "kimi"
    publish("kimi", source, 8)
    tiny_folder(source, weights=False)
    phase = bulk(world, steps=1, seq_len=32, lr=1.0)  # a small step is less than half a step of four bits, and rounded away
    result = run_pretrain(config(world, [phase], model={"path": str(source)}), tmp_path / "run")
    before, after = stored_in(source), stored_in(result.model)
    assert {key: tensor.dtype for key, tensor in before.items()} == {key: tensor.dtype for key, tensor in after.items()}
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert not [key for key in moved if "vision_tower" in key or "mm_projector" in key]
    assert [key for key in moved if key.endswith("weight_packed")]
    assert "language_model.model.layers.0.self_attn.q_a_proj.weight" in moved


def test_a_tokenizer_of_another_model_is_refused(world, tmp_path):
    publish("qwen3", tmp_path / "model", 8)
    wide = Tokenizer.from_file(str(world / "tiny" / "tokenizer.json"))
    wide.add_tokens([f"word{i}" for i in range(100)])
    (tmp_path / "words").mkdir()
    wide.save(str(tmp_path / "words" / "tokenizer.json"))
    model = {"path": str(tmp_path / "model"), "tokenizer": str(tmp_path / "words")}
    with pytest.raises(UserError, match="has 359 tokens and the model 320: they do not belong together"):
        run_pretrain(config(world, [bulk(world, seq_len=32)], model=model), tmp_path / "run")


def test_micro_batches_and_checkpointed_activations_change_nothing_but_memory(world, tmp_path):
    def losses(name, **more):
        phases = [bulk(world, batch=4, micro_batch=more.pop("micro_batch", 4), steps=3)]
        return run_pretrain(config(world, phases, **more), tmp_path / name).losses

    whole = losses("whole")
    model = {"tokenizer": str(world / "tiny"), "checkpoint": True}
    assert losses("micro", micro_batch=1) == pytest.approx(whole, rel=1e-5)
    assert losses("checkpointed", model=model) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(
    ("phases", "more", "message"),
    [
        ([{"seq_len": 64}, {"seq_len": 128, "rope": {}}], {"model": "tiny", "init": {}}, None),
        ([{"seq_len": 8192}], {"model": "tiny"}, r"seq_len 8192 is above the model's max_position_embeddings 4096; add rope"),
        ([{"sources": [{"path": "nowhere"}]}], {}, "source nowhere does not exist"),
        ([{"supervised": True}], {}, "supervised phases need conversations"),
        ([{}], {"mesh": {"ep": 2}}, "expert_replicate x ep = 1 x 2 = 2 does not divide the 1 ranks"),
        ([{}], {"model": "none"}, r"no tokenizer\.json in"),
    ],
)
def test_a_mistake_is_one_line(world, tmp_path, phases, more, message):
    if "model" in more:
        more = {**more, "model": {"path": str(world / more["model"])}}
    settings = config(world, [bulk(world, **{"steps": 1, **phase}) for phase in phases], **more)
    if message is None:
        assert run_pretrain(settings, tmp_path / "run").steps == 2
        with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
            run_pretrain(settings, tmp_path / "run")
        assert run_pretrain(settings, tmp_path / "run", resume=True).steps == 2
    else:
        with pytest.raises(UserError, match=message) as caught:
            run_pretrain(settings, tmp_path / "run")
        assert "\n" not in str(caught.value)


def test_a_damaged_configuration_of_a_resumed_run_is_one_line(world, tmp_path):
    (tmp_path / "config.toml").write_text("phases = [")
    with pytest.raises(UserError, match=r"config\.toml is no TOML file") as caught:
        run_pretrain(config(world, [bulk(world, steps=1)]), tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_the_loss_of_a_conversation_counts_what_the_assistant_writes(world):
    encoder = ChatEncoder(world / "tiny")
    messages = (("system", "S"), ("user", "hi"), ("assistant", "ho"), ("user", "<|im_end|>"), ("assistant", "hum"))
    (encoded,) = encoder.encode([Document(name="x", messages=messages)])
    text = Tokenizer.from_file(str(world / "tiny" / "tokenizer.json"))
    assert (
        text.decode([i for i, t in zip(encoded.ids, encoded.trained, strict=True) if t], skip_special_tokens=False)
        == "ho<|im_end|>hum<|im_end|>"
    )
    whole = text.decode(list(encoded.ids), skip_special_tokens=False)
    assert whole.startswith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n")
    assert list(encoded.ids).count(2) == 5, "the name of a special token in a message is text"


@pytest.mark.parametrize(
    "roles", [("user",), ("assistant", "user"), ("user", "assistant", "assistant"), ("user", "assistant", "user", "user", "assistant")]
)
def test_a_conversation_that_is_none_is_named(world, roles):
    with pytest.raises(UserError, match=r"^x\.jsonl:3: "):
        ChatEncoder(world / "tiny").encode([Document(name="x.jsonl:3", messages=tuple((role, "text") for role in roles))])


def test_warm_up_stable_decay():
    phase = Phase(steps=10, lr=1.0, schedule="wsd", warmup_steps=4, decay_steps=4, floor=0.2, sources=({"path": "x"},))
    assert [round(learning_rate_of(phase, k), 6) for k in range(10)] == [0.25, 0.5, 0.75, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]


def test_the_summed_loss_equals_the_one_of_all_logits_at_once():
    logits = torch.randn(3000, 7, requires_grad=True)
    labels = torch.randint(0, 7, (3000,))
    labels[::3] = -100
    found = summed_loss(logits, labels)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(torch.autograd.grad(found, logits)[0], torch.autograd.grad(expected, logits)[0])


def test_the_curve_shows_the_fall():
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert sparkline([1.0] * 100) == "▁" * 24
