"""A trained model is an ordinary folder again."""

import torch

from etude.model.load import load_model, save_model
from etude.model.tiny import tiny_folder


def test_a_saved_model_loads_with_the_same_weights_and_tokenizer_and_replaces_an_older_one(tmp_path):
    source, target = tiny_folder(tmp_path / "source"), tmp_path / "run" / "model"
    target.parent.mkdir()
    model = load_model(source, torch.float32)
    save_model(model, source, target)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    save_model(model, source, target)
    again = load_model(target, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert (target / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert [p.name for p in target.parent.iterdir()] == ["model"]
