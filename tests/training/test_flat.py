from __future__ import annotations

import torch
from torch import nn

from clusterctl.engine.task.task import Task
from clusterctl.engine.training.flat import Differentiated, FlatModel
from clusterctl.shared.node.signals import StopRequest


def test_parameters_and_gradients_are_views_of_two_vectors(lone_task: Task) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    inputs = torch.randn(5, 3)
    expected = torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))

    flat = FlatModel(model)
    assert all(torch.equal(new, old) for new, old in zip(model.parameters(), before, strict=True))
    for _ in range(2):  # gradients do not accumulate
        loss, _ = flat.backward(model(inputs).square().sum(), StopRequest()).read()
    assert loss == float(model(inputs).square().sum().detach())
    torch.testing.assert_close(flat.gradients, torch.cat([gradient.flatten() for gradient in expected]))
    flat.values.fill_(0.5)
    assert all((parameter == 0.5).all() for parameter in model.parameters())


def test_gradients_that_come_with_the_loss_add_up_over_the_parts_of_a_step(lone_task: Task) -> None:
    flat = FlatModel(nn.Linear(2, 1))
    for step in range(2):
        flat.differentiate(Differentiated(torch.tensor(1.0), torch.tensor([1.0, 2.0, 3.0])))
        part = Differentiated(torch.tensor(0.5), torch.tensor([step, 1.0, 1.0]))
        assert flat.backward(part, StopRequest(), further=True).read()[0] == 1.5
        assert flat.gradients.tolist() == [1.0 + step, 3.0, 4.0]


def test_an_unused_parameter_has_zero_gradient(lone_task: Task) -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    flat = FlatModel(model)
    flat.backward(model[0](torch.ones(1, 2)).sum(), StopRequest())
    assert (flat.gradients[6:] == 0).all()
    assert (flat.gradients[:6] != 0).all()


def test_a_stop_request_is_reduced_with_the_gradients(lone_task: Task) -> None:
    model = nn.Linear(1, 1)
    flat, stop = FlatModel(model), StopRequest()
    assert flat.backward(model(torch.ones(1, 1)).sum(), stop).read()[1] == (False, False, False)
    stop.warned = True
    assert flat.backward(model(torch.ones(1, 1)).sum(), stop).read()[1] == (True, False, False)
    stop.terminated = True
    assert flat.backward(model(torch.ones(1, 1)).sum(), stop).read()[1] == (True, True, False)
