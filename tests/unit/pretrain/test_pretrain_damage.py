"""What goes wrong around a run: mistakes before it, damage between its parts, two at once. Nothing finished is lost, and a line says it."""

import contextlib
import fcntl
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertLMHeadModel, MambaConfig, MambaForCausalLM, T5Config, T5ForConditionalGeneration

from etude.errors import UserError
from etude.metrics import read_metrics
from etude.pretrain.config import pretrain_config
from etude.pretrain.loop import run_pretrain
from etude.view import Silent
from tests.unit.pretrain.world import INIT, lay_down, values


@pytest.fixture
def world(tmp_path):
    return lay_down(tmp_path, files=4, lines=9, weights=True)


def phase(world, **more):
    return {"steps": 2, "seq_len": 32, "batch": 2, "lr": 1e-2, "sources": [{"path": str(world / "code")}], **more}


def config(world, *phases, **more):
    return pretrain_config(values(world, list(phases or (phase(world),)), **{"checkpoints": {"every": 1, "keep": 3}, **more}))


def refusal(settings, run, **more):
    with pytest.raises(UserError) as caught:
        run_pretrain(settings, run, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Told(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_a_mistake_before_the_first_step_leaves_a_folder_that_the_same_command_can_use(world):
    assert "does not exist" in refusal(config(world, phase(world, sources=[{"path": "nowhere"}])), world / "run")
    assert not (world / "run" / "config.toml").exists()
    assert run_pretrain(config(world), world / "run", resume=True).steps == 2
    assert "already holds a run" in refusal(config(world), world / "run")
    assert "holds no run to resume" in refusal(config(world), world / "other", resume=True)
    assert not (world / "other").exists()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"rope": {"rope_type": "foo", "factor": 2.0}}, "phase 'late' with rope = .*foo.*: transformers refuses it"),
        ({"rope": {"rope_type": "yarn"}}, "phase 'late' with rope = .*: transformers refuses it"),
        ({"sources": [{"path": "nowhere"}]}, "source nowhere does not exist"),
        ({"supervised": True}, "supervised phases need conversations"),
    ],
)
def test_what_is_wrong_with_a_later_phase_is_said_before_the_first(world, second, message):
    settings = config(world, phase(world), phase(world, name="late", **second))
    with pytest.raises(UserError, match=message):
        run_pretrain(settings, world / "run")
    assert not (world / "run" / "metrics.jsonl").exists()


def test_rows_beyond_the_positions_of_the_model_are_refused_before_the_first_phase(world):
    model = {"path": str(world / "tiny")}
    settings = config(world, phase(world), phase(world, name="late", seq_len=8192), model=model)
    assert "phase 'late': seq_len 8192 is above the model's max_position_embeddings" in refusal(settings, world / "run")


def small(kind):
    size = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2}
    if kind == "bert":
        return BertLMHeadModel(BertConfig(**size, num_attention_heads=4, intermediate_size=48))
    if kind == "mamba":
        return MambaForCausalLM(MambaConfig(**size, state_size=4))
    return T5ForConditionalGeneration(T5Config(vocab_size=320, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4))


@pytest.mark.parametrize(
    ("kind", "message"),
    [("bert", "cannot be trained on packed documents"), ("mamba", "not plain attention"), ("t5", "no language model of the kind 't5'")],
)
def test_a_model_of_another_kind_is_refused(world, kind, message):
    small(kind).save_pretrained(world / kind)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(world / "tiny" / name, world / kind / name)
    assert message in refusal(config(world, model={"path": str(world / kind)}), world / "run")


@pytest.mark.parametrize(
    ("name", "data"),
    [("config.json", b"[]"), ("config.json", b'{"model_type": "zzz"}'), ("config.json", b"\xff"), ("model.safetensors", b"x")],
)
def test_a_damaged_model_folder_is_named(world, name, data):
    (world / "tiny" / name).write_bytes(data)
    assert str(world / "tiny") in refusal(config(world, model={"path": str(world / "tiny")}), world / "run")


def test_dimensions_that_transformers_refuses_are_told(world):
    assert "transformers refuses it" in refusal(config(world, init={**INIT, "more": {"hidden_act": "zz"}}), world / "run")


def test_only_one_process_works_in_a_run_folder(world):
    (world / "run").mkdir()
    with (world / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another process is working in" in refusal(config(world), world / "run")
    assert run_pretrain(config(world), world / "run").steps == 2


@pytest.mark.parametrize("how", ["cut", "gone", "no json", "not ours"])
def test_a_damaged_checkpoint_is_passed_over_and_the_run_ends_with_the_same_weights(world, how):
    settings = config(world, phase(world, steps=3))
    whole = load_file(run_pretrain(settings, world / "run").model / "model.safetensors")
    last = world / "run" / "checkpoints" / "step-000003"
    data = last / "__0_0.distcp"
    if how == "cut":
        data.write_bytes(data.read_bytes()[:100])
    elif how == "gone":
        data.unlink()
    else:
        (last / "etude.json").write_text("{" if how == "no json" else '{"files": {}, "extra": {"x": 1}}')
    view = Told()
    result = run_pretrain(settings, world / "run", resume=True, view=view)
    assert [note for note in view.notes if "step-000003 is no whole checkpoint" in note]
    again = load_file(result.model / "model.safetensors")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert [row["step"] for row in read_metrics(world / "run" / "metrics.jsonl")] == [1, 2, 3]
    for path in (world / "run" / "checkpoints").iterdir():
        (path / "etude.json").unlink()
    assert "no checkpoint in" in refusal(settings, world / "run", resume=True)


def test_bytes_that_changed_within_a_checkpoint_are_told(world):
    settings = config(world)
    run_pretrain(settings, world / "run")
    data = world / "run" / "checkpoints" / "step-000002" / ".metadata"
    data.write_bytes(b"\xff" * data.stat().st_size)
    assert "step-000002 is damaged; remove it to go on from the one before it" in refusal(settings, world / "run", resume=True)


def test_a_run_goes_on_with_the_tokens_it_began_with(world):
    settings = config(world, phase(world, steps=3))
    whole = run_pretrain(settings, world / "run").losses
    shutil.rmtree(world / "run" / "checkpoints" / "step-000003")
    (world / "code" / "new.py").write_text("new = 1\n" * 50)
    assert run_pretrain(settings, world / "run", resume=True).losses == whole
    shutil.rmtree(world / "cache")
    assert "has changed since the run began" in refusal(settings, world / "run", resume=True)
    (world / "code" / "new.py").unlink()
    assert run_pretrain(settings, world / "run", resume=True).losses == whole


@pytest.mark.parametrize("name", ["config.toml", "tokens.json", "metrics.jsonl"])
def test_a_damaged_file_of_a_run_is_named(world, name):
    settings = config(world)
    run_pretrain(settings, world / "run")
    (world / "run" / name).write_text("{\n{\n")
    assert name in refusal(settings, world / "run", resume=True)


def test_a_finished_run_is_exported_again_and_shows_its_own_speed(world):
    first = run_pretrain(config(world), world / "run")
    shutil.rmtree(first.model)
    again = run_pretrain(config(world), world / "run", resume=True)
    assert again == first
    assert again.tokens_per_s > 0
    assert (again.model / "model.safetensors").is_file()


def test_an_export_that_cannot_be_written_leaves_the_checkpoint_and_is_made_at_the_next_resume(world):
    (world / "run").mkdir()
    (world / "run" / ".model.partial").write_text("in the way")
    assert "cannot write the model to" in refusal(config(world), world / "run")
    (world / "run" / ".model.partial").unlink()
    assert run_pretrain(config(world), world / "run", resume=True).steps == 2


def test_a_model_from_scratch_does_not_take_over_how_the_tokenizers_model_generates(world):
    (world / "tiny" / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    made = run_pretrain(config(world), world / "scratch").model
    assert not (made / "generation_config.json").exists()
    kept = run_pretrain(config(world, model={"path": str(world / "tiny")}), world / "continued").model
    assert json.loads((kept / "generation_config.json").read_text()) == {"eos_token_id": 2}


def test_a_row_with_nothing_to_learn_is_passed_over(world):
    (world / "one.jsonl").write_text('{"text": "abcd"}')  # four bytes and the end token: the last row holds that alone
    result = run_pretrain(
        config(world, phase(world, batch=1, seq_len=2, steps=3, sources=[{"path": str(world / "one.jsonl")}])), world / "run"
    )
    rows = read_metrics(world / "run" / "metrics.jsonl")
    assert [row["loss"] is None for row in rows].count(True) == 1
    assert len(result.losses) == 2


def test_memory_that_is_not_there_says_what_to_lower(world):
    assert "lower micro_batch or seq_len" in refusal(config(world, phase(world, seq_len=10**13)), world / "run")


def test_the_lock_ends_with_the_run(world):
    with contextlib.suppress(UserError):
        run_pretrain(config(world, phase(world, sources=[{"path": "nowhere"}])), world / "run")
    with (world / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
