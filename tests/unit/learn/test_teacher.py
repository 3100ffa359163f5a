"""The teacher: what each kind is, how the EMA moves, what a checkpoint holds, that nothing flows into it."""

import pytest
import torch

from etude.learn.batch import to_batch
from etude.learn.branches import branch_of, separate_hidden
from etude.learn.head import hidden_states
from etude.learn.teacher import Teacher


def shift(model, amount: float = 0.5) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += amount


def test_a_live_teacher_is_the_student_and_a_frozen_one_stays(make_model) -> None:
    model = make_model()
    live, frozen = Teacher(model, "live"), Teacher(model, "frozen")
    before = [p.clone() for p in model.parameters()]
    shift(model)
    frozen.update()
    assert live.module is model
    assert all(torch.equal(a, b) for a, b in zip(frozen.module.parameters(), before, strict=True))


def test_the_ema_moves_by_its_rate_toward_the_student(make_model) -> None:
    model = make_model()
    teacher, before = Teacher(model, "ema", 0.25), [p.clone() for p in model.parameters()]
    shift(model, 1.0)
    teacher.update()
    for ours, old in zip(teacher.module.parameters(), before, strict=True):
        torch.testing.assert_close(ours, old + 0.25, rtol=0, atol=1e-12)
    teacher.update()
    for ours, old in zip(teacher.module.parameters(), before, strict=True):
        torch.testing.assert_close(ours, old + 0.4375, rtol=0, atol=1e-12)


def test_a_bf16_ema_adds_up_steps_that_bf16_alone_would_lose(make_model) -> None:
    model = make_model(dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    teacher = Teacher(model, "ema", 0.01)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.125)
    lost = torch.ones((), dtype=torch.bfloat16).lerp(torch.tensor(1.125, dtype=torch.bfloat16), 0.01)
    assert float(lost) == 1.0
    for _ in range(100):
        teacher.update()
    wanted = torch.tensor(1.125 - 0.125 * 0.99**100).bfloat16()
    for parameter in teacher.module.parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, wanted.expand_as(parameter))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_ema_goes_on_bit_for_bit(make_model, dtype: torch.dtype) -> None:
    model = make_model(dtype=dtype, tie_word_embeddings=True)
    teacher = Teacher(model, "ema", 0.1)
    shift(model)
    teacher.update()
    state = {name: value.clone() for name, value in teacher.state_dict().items()}
    resumed = Teacher(model, "ema", 0.1)
    resumed.load_state_dict(state)
    for one in (teacher, resumed):
        one.update()
    assert all(torch.equal(a, b) for a, b in zip(teacher.module.parameters(), resumed.module.parameters(), strict=True))
    assert all(torch.equal(a, resumed.state_dict()[name]) for name, a in teacher.state_dict().items())
    assert Teacher(model, "live").state_dict() == {}


def test_state_of_another_kind_is_refused(make_model) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="does not fit a 'live' teacher"):
        Teacher(model, "live").load_state_dict(Teacher(model, "ema").state_dict())
    with pytest.raises(ValueError, match="'eam'"):
        Teacher(model, "eam")


@pytest.mark.parametrize("kind", ["ema", "frozen"])
@pytest.mark.parametrize("implementation", ["etude", "sdpa"])
def test_other_weights_read_hint_and_no_hint_as_full_forwards_would(make_model, make_samples, kind: str, implementation: str) -> None:
    model = make_model(implementation=implementation)
    samples = make_samples(model, num=5)
    teacher = Teacher(model, kind)
    assert teacher.shares_prefix == (implementation == "etude")
    shift(model, 0.02)
    batch = to_batch(samples)
    places = [(row, span) for row, sample in enumerate(samples) for span in sample.hints]
    branches = [branch_of(row, samples[row], span) for row, span in places]
    read = teacher.hinted(batch, branches, None)
    torch.testing.assert_close(read.hidden_MD, separate_hidden(teacher.module, branches, [s.ids for s in samples]), rtol=0, atol=1e-12)
    with torch.no_grad():
        whole = [hidden_states(teacher.module, torch.tensor([samples[row].ids]))[0, s.start - 1 : s.stop - 1] for row, s in places]
    torch.testing.assert_close(read.unhinted_MD, torch.cat(whole), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["ema", "frozen", "live"])
def test_a_teacher_asks_for_no_gradient(make_model, make_samples, kind: str) -> None:
    model = make_model(implementation="sdpa")
    samples = make_samples(model, num=1)
    teacher = Teacher(model, kind)
    read = teacher.hinted(to_batch(samples), [branch_of(0, samples[0], span) for span in samples[0].hints], None)
    assert not read.hidden_MD.requires_grad
    assert not teacher.head().weight.requires_grad
    if kind != "live":
        assert not any(p.requires_grad for p in teacher.module.parameters())
