"""Ways to train with torch alone: what modules are made of, and what hangs on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import Adam

from benchmarks.unchanged.loop_parts import classes, classify, mlp, rows
from benchmarks.unchanged.program import Group, fit

GROUP = Group("loops")


@GROUP.program()
def weight_and_spectral_norm() -> object:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(),
        parametrizations.spectral_norm(nn.Linear(16, 16)), parametrizations.orthogonal(nn.Linear(16, 4)),
    )  # fmt: skip
    return fit(model, lambda: classify(model))


@GROUP.program()
def weight_norm_of_old() -> object:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 16)), nn.utils.spectral_norm(nn.Linear(16, 4)))
    return fit(model, lambda: classify(model))


@GROUP.program()
def a_parametrization_of_ones_own() -> object:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).T

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    parametrize.register_parametrization(model[0], "weight", Symmetric())

    def loss() -> Tensor:
        with parametrize.cached():
            return classify(model)

    return fit(model, loss)


@GROUP.program()
def pruning() -> object:
    model = mlp(8, 16, 4)
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.random_structured(model[2], "weight", 0.2, dim=1)
    return fit(model, lambda: classify(model))


@GROUP.program()
def tied_and_reused_weights() -> object:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for _ in range(3):
                h = h + self.body(h).tanh()
            return self.head(h)

    model = Tied()
    return fit(model, lambda: F.cross_entropy(model(t := torch.randint(0, 20, (32,))), t))


@GROUP.program()
def lazy_modules() -> object:
    model = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(4))
    model(torch.randn(2, 3, 8))
    return fit(model, lambda: model(torch.randn(16, 3, 8)).square().mean())


@GROUP.program()
def recurrent_networks() -> object:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LSTM(8, 8, 2, dropout=0.2, bidirectional=True, batch_first=True, proj_size=4)
            self.second, self.third, self.cell = nn.GRU(8, 8), nn.RNN(8, 8), nn.LSTMCell(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, [6, 5, 4, 2], batch_first=True)
            h, _ = nn.utils.rnn.pad_packed_sequence(self.first(packed)[0], batch_first=True)
            return self.cell(self.third(self.second(h)[0])[0][:, -1])[0]

    model = Three()
    return fit(model, lambda: model(torch.randn(4, 6, 8)).square().mean())


@GROUP.program()
def a_transformer_of_torch() -> object:
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return fit(model, lambda: model(torch.randn(4, 6, 16), torch.randn(4, 5, 16), tgt_mask=mask).square().mean())


@GROUP.program()
def in_place_everywhere() -> object:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.Dropout(0.2, inplace=True),
        nn.Conv2d(8, 8, 3), nn.ReLU6(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    return fit(model, lambda: model(torch.randn(4, 3, 10, 10)).square().mean())


@GROUP.program()
def hooks_of_the_users_own() -> object:
    model, heard = mlp(8, 16, 4), []
    model[0].register_forward_pre_hook(lambda m, x: (x[0] * 1.5,))
    model[1].register_forward_hook(lambda m, x, out: out + 0.01)
    model[2].register_full_backward_hook(lambda m, gi, go: tuple(g if g is None else g * 0.5 for g in gi))
    model[0].register_full_backward_pre_hook(lambda m, go: heard.append(float(go[0].sum())))
    model[2].weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    optimizer = Adam(model.parameters(), 1e-3)
    optimizer.register_step_pre_hook(lambda o, a, k: heard.append("before"))
    optimizer.register_step_post_hook(lambda o, a, k: heard.append("after"))
    nn.modules.module.register_module_forward_hook(lambda m, x, out: heard.append(type(m).__name__))
    return fit(model, lambda: classify(model), optimizer), heard


@GROUP.program()
def autograd_functions_of_ones_own() -> object:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
            ctx.scale = scale
            ctx.save_for_backward(x)
            ctx.mark_non_differentiable(kept := x.sign())
            return (x * scale).round() / scale, kept

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            return gradients[0] * (x.abs() < 2), None

    model = mlp(8, 16, 4)
    return fit(model, lambda: Straight.apply(classify(model), 8.0)[0])  # pyright: ignore


@GROUP.program()
def backward_inside_backward() -> object:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                again = x.detach().requires_grad_()
                again.sin().sum().backward()
            return gradient * again.grad  # pyright: ignore

    model = mlp(8, 16, 4)
    return fit(model, lambda: Nested.apply(model(rows())).square().mean())  # pyright: ignore


@GROUP.program()
def quantisation_aware_training() -> object:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    def fake() -> nn.Module:
        return FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    model = nn.Sequential(fake(), nn.Linear(8, 16), fake(), nn.ReLU(), nn.Linear(16, 4), fake())
    return fit(model, lambda: classify(model))


@GROUP.program()
def a_subclass_of_tensor() -> object:
    class Tagged(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Tagged.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    model = mlp(8, 16, 4)
    result = fit(model, lambda: F.cross_entropy(model(rows().as_subclass(Tagged)), classes()))
    return result, Tagged.calls


@GROUP.program()
def a_torch_dispatch_mode() -> object:
    """It sees every operation of the training, and none of a watcher's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model = mlp(8, 16, 4)
    with Log():
        return fit(model, lambda: classify(model)), seen


@GROUP.program()
def counting_floating_point_operations() -> object:
    from torch.utils.flop_counter import FlopCounterMode

    model = mlp(8, 16, 4)
    with FlopCounterMode(display=False) as counter:
        result = fit(model, lambda: classify(model))
    return result, counter.get_total_flops()
