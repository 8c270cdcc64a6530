"""Ways to train with torch alone: gradients of gradients, and of other kinds."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, grad_and_value, hessian, jacrev, jvp, stack_module_state, vmap
from torch.nn import functional as F  # noqa: N812
from torch.optim import SGD, Adam

from benchmarks.unchanged.loop_parts import classes, classify, mlp, rows
from benchmarks.unchanged.program import STEPS, Group, fit

GROUP = Group("loops")


@GROUP.program()
def gradient_penalty() -> object:
    critic, generator = mlp(8, 16, 1), mlp(4, 16, 8)
    both = [Adam(critic.parameters(), 1e-3), Adam(generator.parameters(), 1e-3)]
    for step in range(STEPS):
        real, fake = rows(), generator(torch.randn(16, 4)).detach()
        mixed = torch.lerp(real, fake, torch.rand(16, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        both[0].zero_grad()
        (critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
        both[0].step()
        if step % 2:
            both[1].zero_grad()
            (-critic(generator(torch.randn(16, 4))).mean()).backward()
            both[1].step()
    return critic, generator, both


@GROUP.program()
def double_backward_through_convolutions() -> object:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Conv2d(4, 1, 3))

    def loss() -> Tensor:
        images = torch.randn(4, 1, 10, 10, requires_grad=True)
        (slope,) = torch.autograd.grad(model(images).sum(), images, create_graph=True)
        return slope.square().sum()

    return fit(model, loss)


@GROUP.program()
def gradients_of_a_generator_of_parameters() -> object:
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        gradients = torch.autograd.grad(classify(model), model.parameters(), create_graph=True)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        optimizer.zero_grad()
        flat.square().sum().backward()
        optimizer.step()
    return model, optimizer


@GROUP.program()
def backward_with_a_graph_kept() -> object:
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = classify(model)
        loss.backward(create_graph=True)  # torch warns of this
        sum(p.grad.square().sum() for p in model.parameters()).backward()  # pyright: ignore
        optimizer.step()
    return model, optimizer


@GROUP.program()
def maml() -> object:
    model = mlp(8, 16, 4)
    optimizer = Adam(model.parameters(), 1e-3)
    names = [name for name, _ in model.named_parameters()]

    def loss() -> Tensor:
        total = torch.zeros(())
        for _task in range(3):
            fast = dict(model.named_parameters())
            for _inner in range(2):
                value = F.cross_entropy(functional_call(model, fast, rows()), classes())
                slopes = torch.autograd.grad(value, list(fast.values()), create_graph=True)
                fast = {n: w - 0.1 * g for n, w, g in zip(names, fast.values(), slopes)}
            total = total + F.cross_entropy(functional_call(model, fast, rows()), classes())
        return total

    return fit(model, loss, optimizer)


@GROUP.program()
def hessian_vector_products() -> object:
    model = mlp(8, 8, 4)
    seen = []

    def loss() -> Tensor:
        value = classify(model)
        weights = list(model.parameters())
        slopes = torch.autograd.grad(value, weights, create_graph=True)
        products = torch.autograd.grad(slopes, weights, [torch.randn_like(w) for w in weights], retain_graph=True)
        seen.append(torch.stack([p.norm() for p in products]))
        return value

    return fit(model, loss), seen


@GROUP.program()
def forward_mode_derivatives() -> object:
    model = mlp(8, 16, 4)
    seen = []

    def loss() -> Tensor:
        with forward_ad.dual_level():
            out = model(forward_ad.make_dual(rows(), torch.randn(16, 8)))
            seen.append(forward_ad.unpack_dual(out).tangent.detach().clone())
        return classify(model)

    return fit(model, loss), seen


@GROUP.program()
def forward_gradients() -> object:
    """Descent without any backward pass, from directional derivatives."""

    def one(model: nn.Module, x: Tensor, y: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, x), y)

    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        weights = {name: p.detach() for name, p in model.named_parameters()}
        direction = {name: torch.randn_like(w) for name, w in weights.items()}
        loss = partial(one, model, rows(), classes())
        _, slope = jvp(loss, (weights,), (direction,))
        for name, parameter in model.named_parameters():
            parameter.grad = slope * direction[name]
        optimizer.step()
    return model, optimizer


@GROUP.program()
def jacobians_and_hessians_of_torch_func() -> object:
    model = mlp(3, 8, 1)
    seen = []

    def loss() -> Tensor:
        x = torch.randn(3)
        seen.extend((jacrev(model)(x).detach(), hessian(lambda v: model(v).squeeze())(x).detach()))
        return model(torch.randn(8, 3)).square().mean()

    return fit(model, loss), seen


@GROUP.program()
def per_sample_gradients() -> object:
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), 0.1)

    def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, x[None]), y[None])

    for _ in range(STEPS):
        weights = {name: p.detach() for name, p in model.named_parameters()}
        each = vmap(grad(one), in_dims=(None, 0, 0))(weights, rows(), classes())
        for name, parameter in model.named_parameters():
            parameter.grad = each[name].clamp(-0.1, 0.1).mean(0)
        optimizer.step()
    return model, optimizer


@GROUP.program(steps=0)
def an_ensemble_of_torch_func() -> object:
    """No parameters of a module and no optimizer: nothing to watch, and nothing to disturb."""
    models = [mlp(8, 16, 4) for _ in range(3)]
    weights, buffers = stack_module_state(models)  # pyright: ignore
    base = copy.deepcopy(models[0]).to("meta")

    def loss(w: Any, b: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, (w, b), x), y)

    for _ in range(STEPS):
        slopes, values = vmap(grad_and_value(loss), in_dims=(0, 0, None, None))(weights, buffers, rows(), classes())
        weights = {name: (w - 0.1 * slopes[name]).detach() for name, w in weights.items()}
    return weights, values


@GROUP.program()
def random_ensemble_with_vmap() -> object:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    return fit(model, lambda: vmap(model, randomness="different")(torch.randn(3, 16, 8)).square().mean())
